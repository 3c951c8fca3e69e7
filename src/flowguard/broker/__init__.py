"""The tasks and sockets of a broker: the only package of the server that knows trio.

- `server`        the nursery around all tasks, and the drain
- `leaving`       clients are disconnected one after the other before it
- `housekeeping`  the tick of 100 ms: deadlines, load signals, `$SYS`
- `memory`        the memory that the process may use, uses and returns
- `protected`     the interface that logs and measurements read, also of the proxy
- `clock`         seconds since the Unix epoch that never go backwards

- `sockets/`   the event loop, listeners, connections
- `layers/`    TLS, WebSocket and PROXY protocol
- `commits/`   threads that write to the stores and read from them
- `identity/`  checks of credentials outside the loop
- `logs/`      log lines with a bound
- `local/`     clients in the same process
"""
