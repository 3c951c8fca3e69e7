"""telemetry: the records that runs leave: Parquet tables, the same from a simulation and from a
broker.

They are the interface between programs that run and programs that analyse
(docs/reference/parquet-schema.md)."""
