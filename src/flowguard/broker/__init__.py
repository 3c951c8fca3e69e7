"""The only room with trio: sockets, the readiness loop, commits, the clock, signals.

- `reactor`       one task, one epoll set, connections as plain objects; drives `node.turns`
- `link`          a socket and its conversation
- `listeners`     who is at the door, and whether it is let in
- `committer`     journal batches to a store that blocks, in a thread
- `housekeeping`  the 100 ms tick: deadlines, load signals, `$SYS`
- `memory`        what the process may hold, has, and gives back
- `descriptors`   how many connections there are file descriptors for
- `overload_log`  what overload protection did, a line per interval at most
- `error_log`     what went wrong with single connections, a few lines per interval
- `server`        the nursery around all of it, drain
"""
