"""Opens the link that an address asks for: to a server, to a cluster, or by Sentinels."""

from collections.abc import Callable
from functools import partial

from flowguard.stores.redis.connection.cluster import Greet, RedisCluster, is_cluster
from flowguard.stores.redis.connection.link import RedisLink
from flowguard.stores.redis.connection.sentinel import find_primary, is_sentinel


def _any_server(link: RedisLink) -> None:
    """Accept every server."""


def open_link(
    url: str,
    timeout_s: float,
    greet: Greet = _any_server,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> RedisLink | RedisCluster:
    """Return the link; `greet` is called with each new connection.

    Raises ConfigError, `StallError` and other `StoreError`.
    """
    if is_cluster(url):
        return RedisCluster(url, timeout_s, greet, clock=clock, sleep=sleep)
    find = partial(find_primary, url, timeout_s) if is_sentinel(url) else None
    return RedisLink(url, timeout_s, greet, find)
