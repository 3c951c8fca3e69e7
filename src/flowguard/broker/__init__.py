"""The only room with trio: sockets, the readiness loop, commits, the clock, signals.

- `reactor`       one task, one epoll set, connections as plain objects
- `link`          a socket and its conversation
- `committer`     journal batches to a store that blocks, in a thread
- `housekeeping`  the 100 ms tick: deadlines, load signals, `$SYS`
- `overload_log`  what overload protection did, a line per interval at most
- `server`        listeners, the nursery, drain
"""
