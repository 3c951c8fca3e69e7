"""telemetry: what runs leave behind: Parquet tables, the same from a simulation and from a broker.

The interface between whoever runs and whoever analyses; described in docs/parquet-schema.md.
"""
