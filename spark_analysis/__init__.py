"""Parquet in, report and tables out. It imports nothing of flowguard: the files are the interface.

- `runs`         which runs can be read, their tables as DataFrames, and runs from a topic of Kafka
- `grains`       one row per slice, per node, per instant, per second; `segments` of windows
- `questions`    pure functions from DataFrames to one row per run
- `comparing`    means and `intervals` over seeds; courses over time;
                 `loads` decides which live runs can be compared
- `analysis`     all of it, in a `session` on `java`; `tables` and `report` write it down
- `job`          the work of the `command` flowguard analyze, on a `terminal`; with --follow it is
                 `following` a run under way
- `tuner`        the work of flowguard tune: limits out of runs, by an objective
"""
