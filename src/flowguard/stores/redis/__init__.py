"""Store on Redis: sessions survive the loss of the broker's machine (docs/operate/redis.md).

- `store`    `RedisStore`, the contract on a server or a Redis Cluster
- `changes`  converts a batch to the changes of each session
- `kept`     the last commits, for a server that restarts without them
- `intent`   a record of a commit over several buckets of a Redis Cluster
- `queues`   the layouts `stream` and `zset`
- `keys`     names of keys
- `values`   values of keys
- `lease`    ownership of a prefix by one broker at a time
- `cluster_table`  the table of a cluster: nodes, and places of shards

- `connection/`  servers, Sentinels, Redis Cluster
- `lua/`         functions that run in Redis
"""

from flowguard.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
