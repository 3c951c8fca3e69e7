"""Store on Redis: sessions outlive the machine that serves them (docs/redis.md).

- `store`      `RedisStore`, the contract on a server or a Redis Cluster
- `changes`    a batch as what it leaves of each session
- `functions`  what runs in Redis: a commit, checked by its owner's token
- `queues`     the layouts `stream` and `zset`; `queue_functions`: the same in Redis
- `keys`       names of keys; `values`: what lies there
- `lease`      one broker at a time has a prefix
- `reader`     what is stored, for looking at
- `tbmq`       queues that a TBMQ has left
- `server`     can this server keep what is promised?
- `cluster`    all primaries of a Redis Cluster, as `link` is one server
- `sentinel`   which server is the primary
- `link`       one connection, made anew when it breaks; the only file that knows redis-py
"""

from flowguard.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
