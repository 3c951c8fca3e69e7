"""A simulated node.

- `broker`    one process with its real gate, windows, pool, journal and policy
- `sockets`   accepts and reads; `entrance` connects clients
- `packets`   serves clients; `wide` delivers a message to thousands, `replays` what waited
- `loop`      drives the real turns
- `machine`   the host of a process: its `disk`, its `counters`; `host` has its interface
- `shard_places`  the node of each shard of a cluster
"""
