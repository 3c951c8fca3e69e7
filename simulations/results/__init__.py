"""Runs of scenarios, and what they leave behind.

- `run`       a scenario to its end, and its figures; `view` shows them
- `archive`   keeps runs in a directory
- `recorder`  writes a run as Parquet tables, with `samples` of nodes
"""
