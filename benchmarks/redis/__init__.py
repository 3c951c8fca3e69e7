"""The store on Redis beside the published schema, its predecessor and RocksDB: costs of a message.

- `measures`  what is asked of each subject; `__main__`: the table, and the goals
- `subjects`  our stores, the published schema and its predecessor, each behind the same few calls
- `literal`   the published schema's scripts; `postgres`: the two tables before it
- `brokers`   whole brokers, on Redis and on RocksDB
- `servers`   redis-server and PostgreSQL, started and ended by the run
"""
