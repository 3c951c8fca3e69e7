"""The store by itself, and as a broker's clients see it: RocksDB against the bounds it was given.

`make bench-store` runs all of it, and `make bench` ends with it.

- `filling`    a store with sessions and messages in it; as a program, to be killed with them
- `layouts`    what a message costs the engine, layout `window` against `status`
- `fetch`      a page right after a commit, with a million settled messages behind it
- `reconnect`  ten thousand messages to a client that comes back
- `restart`    from a directory with a hundred thousand messages to a broker that listens
- `drift`      how long the event loop is away under load while RocksDB compacts
- `merging`    two replicas become one
- `durable_log`  a message for many that are away: stored once, or once for each; its replay
"""
