"""The only room with trio: sockets, the readiness loop, commits, the clock, signals.

- `reactor`       one task, one epoll set, connections as plain objects; drives `node.turns`
- `socket_set`    the sockets of a loop in one epoll set, the broker's or a proxy's
- `other_tasks`   whether another task can run, so that the loop may wait in trio's place
- `link`          a socket and its conversation
- `listeners`     who is at the door, and whether it is let in
- `doorway`      a listening socket, and the layers between its connections and MQTT
- `layer`         what stands between a socket and MQTT, seen from the reactor
- `layer_gate`    how many handshakes of layers are in process, and who waits unread
- `proxied`       PROXY protocol as such a layer: whose connection it is
- `tls`           TLS as such a layer
- `websocket`     WebSocket as such a layer
- `certificates`  which files have a certificate that has expired
- `identity_checks`  who a CONNECT is from, asked off the loop; `scram_exchange`: in two steps
- `hashers`       threads for what takes tens of milliseconds, and which of them is asked
- `committer`     journal batches to a store that blocks, in a thread; `reading`: pages from there
- `application_committer`  the same for applications
- `presence`      has this broker run all the time, or may another one have its store?
- `housekeeping`  the 100 ms tick: deadlines, load signals, `$SYS`
- `memory`        what the process may hold, has, and gives back
- `descriptors`   how many connections there are file descriptors for
- `overload_log`  what overload protection did, a line per interval at most
- `full_store_log`  that the store has no room, and that it has some again
- `error_log`     what went wrong with single connections, a few lines per interval
- `output_lines`  standard output and standard error, written by a thread
- `local_client`  a client in the same process; `local_packets`: what it is asked to send
- `clock`         seconds since the Unix epoch that never go backwards
- `server`        the nursery around all of it, drain
"""
