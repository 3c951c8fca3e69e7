"""Traces: packets and decisions of chosen clients, line by line, while a reader waits for them.

- `heads`      splits bytes into packets, and keeps the beginning of each
- `words`      describes a packet
- `tap`        the stream of a traced connection
- `decisions`  what the broker decides about a connection
- `lines`      the bounded lines of one trace
- `tracing`    chooses connections
- `web`        `GET /trace`

Without a trace nothing of this runs: a tap takes the place of the stream of a chosen connection,
and `Tracing` that of the callbacks for begin, end and rejections.
"""
