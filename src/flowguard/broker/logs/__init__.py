"""Log lines with a bound: a flood of events does not flood the log.

- `error_log`       failures of single connections, a few lines per interval
- `life_log`        clients that connect, subscribe and disconnect
- `levels`          the level of each kind of events, changeable while running
- `overload_log`    actions of overload protection, one line per interval
- `full_store_log`  a store without space, and its recovery
- `output_lines`    standard output and standard error, written by a thread
"""
