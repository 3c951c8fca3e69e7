"""One broker node without a socket: sessions, routing, wills, the journal.

- `node`     the object that all connections share: their begin and end, expiry, drain
- `journal`  operations that must be durable before an answer leaves: group commit

The other packages, by topic:

- `connect/`       CONNECT, rights, the registry of sessions
- `publish/`       PUBLISH, from its topic to its acknowledgement
- `subscribe/`     SUBSCRIBE and UNSUBSCRIBE, retained messages, start times
- `shared/`        shared subscriptions and their queues
- `applications/`  clients whose messages have a store of their own
- `loop/`          the scheduling rounds of the loop, and the order in which clients are served
- `upkeep/`        timers, memory, `$SYS`

Sans-IO: calls come in with `now_s` (seconds since the Unix epoch, monotonic within the process).
Bytes go out through outboxes. `flowguard.broker`, or the stage of a test, commits the journal.
"""
