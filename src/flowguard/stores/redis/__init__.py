"""Store on Redis: sessions outlive the machine that serves them (docs/operate/redis.md).

- `store`    `RedisStore`, the contract on a server or a Redis Cluster
- `changes`  a batch as the changes of each session
- `kept`     the last commits, for a server that returns without them
- `intent`   a commit over several buckets of a Redis Cluster, recorded before it is done
- `queues`   the layouts `stream` and `zset`
- `keys`     names of keys
- `values`   values of keys
- `lease`    ownership of a prefix by one broker at a time

- `connection/`  servers, Sentinels, Redis Cluster
- `lua/`         functions that run in Redis
"""

from flowguard.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
