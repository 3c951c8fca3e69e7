"""Connections to Redis: one server, or all primaries of a Redis Cluster.

- `link`      one connection, opened again after a failure; it alone knows the driver
- `cluster`   all primaries of a Redis Cluster, with the interface of `link`
- `sentinel`  asks Sentinels for the primary
- `server`    checks that a server can keep its promises
- `packing`   commands as the server reads them
"""
