"""Store on Redis: sessions outlive the machine that serves them (docs/operate/redis.md).

- `store`      `RedisStore`, the contract on a server or a Redis Cluster
- `changes`    a batch as what it leaves of each session
- `functions`  what runs in Redis: a commit, checked by its owner's token
- `kept`       the last commits, for a server that comes back without them
- `intent`     a commit over several buckets of a Redis Cluster, written down before it is done
- `queues`     the layouts `stream` and `zset`; `queue_functions`: the same in Redis
- `keys`       names of keys; `values`: what lies there
- `lease`      one broker at a time has a prefix
- `reader`     what is stored, for looking at
- `tbmq`       queues that a TBMQ has left
- `server`     can this server keep what is promised?
- `cluster`    all primaries of a Redis Cluster, as `link` is one server
- `sentinel`   which server is the primary
- `packing`    commands as the server reads them
- `link`       one connection, made anew when it breaks; the only file that knows redis-py
"""

from flowguard.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
