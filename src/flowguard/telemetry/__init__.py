"""telemetry: the records of runs, as Parquet tables, for simulations and brokers alike.

They are the interface between programs that run and programs that analyse
(docs/reference/parquet-schema.md).
"""
