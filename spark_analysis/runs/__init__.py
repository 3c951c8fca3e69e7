"""Runs as the analysis reads them.

- `contracts`          the tables of a run, version 1
- `examination`        which runs can be read, and why others cannot
- `reading`            the tables of examined runs as DataFrames
- `topic`              runs from a topic of Kafka into Parquet
- `client_properties`  access to Kafka, in a file of properties
"""
