"""Parquet in; report, tables and limits out; empty so far.

This room will hold the schemas, the transforms (one question per file), the Spark jobs, the report
and the tuner whose limits `flowguard serve --limits FILE` loads. It imports nothing of flowguard:
the Parquet schema is the interface.
"""
