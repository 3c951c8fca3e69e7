"""Connections to Redis: one server, or all primaries of a Redis Cluster.

- `link`      one connection, which reconnects after a failure; the only user of the driver
- `cluster`   all primaries of a Redis Cluster, with the interface of `link`
- `sentinel`  asks Sentinels for the primary
- `opening`   chooses one of these by the address
- `server`    checks that a server can provide the configured durability
- `packing`   encoder of commands
"""
