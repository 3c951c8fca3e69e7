"""Stores on a server that all tests of a process share: each has a prefix of its own."""

import atexit
import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flowguard.config import Settings
from flowguard.errors import StoreError
from tests.support.opened import OPENED
from tests.support.patience import HANG_S
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import EVERY_SECOND, RedisServer, needs_redis

if TYPE_CHECKING:
    from flowguard.stores.redis import RedisStore

MOVED = (b"c", b"d", b"a", b"a/b", b"new", b"a\0b")
"""Client ids and topics of which the slots move."""
_numbers = itertools.count(1)


@cache
def shared_server() -> RedisServer:
    """The server, started when the first test asks for it."""
    needs_redis()
    folder = Path(tempfile.mkdtemp(prefix="fg-redis-"))
    server = RedisServer(folder, EVERY_SECOND).start()

    def end() -> None:
        server.remove()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return server


@contextmanager
def moving(cluster: RedisCluster) -> Iterator[RedisCluster]:
    """Move slots all the time, but only during a test, since that takes half a core."""
    from flowguard.stores.redis.connection.cluster import slot_of
    from flowguard.stores.redis.keys import bucket_of

    slots = [slot_of(b"%03x" % bucket_of(name)) for name in MOVED]
    with pytest.MonkeyPatch.context() as patch, cluster.moving(slots, seed=next(_numbers)):
        # A user of the store tries again for as long as a slot is half moved.
        patch.setattr("flowguard.stores.redis.connection.cluster.RETRY_S", HANG_S)
        yield cluster


def new_prefix() -> str:
    return f"t{next(_numbers)}"


def settings_for(server: RedisServer | RedisCluster, prefix: str, **more: Any) -> Settings:
    durability = more.pop("durability", "os")
    redis = {"url": server.unix_url, "prefix": prefix, **more}
    return Settings.model_validate(
        {"store": {"kind": "redis", "durability": durability}, "redis": redis}
    )


def open_store(
    server: RedisServer | RedisCluster, prefix: str, *, name: str = "here", **more: Any
) -> "RedisStore":
    """A store under a token of its own; tests that wait for a lease wait really."""
    from flowguard.stores.redis import RedisStore

    store = RedisStore(
        settings_for(server, prefix, **more),
        token=f"{name}-{next(_numbers)}",
        name=name,
        clock=time.monotonic,
        sleep=time.sleep,
    )
    OPENED.append(store._link)  # Not the store, which would send to a dead server.
    return store


def opened_at_last(
    server: RedisServer | RedisCluster, *, name: str = "here", **more: Any
) -> "RedisStore":
    """One that waits for an answer a short while only, under a prefix of its own: tried until Redis
    has time for all the answers of a start."""
    deadline_s = time.monotonic() + HANG_S
    while True:
        try:
            return open_store(server, new_prefix(), name=name, **more)
        except StoreError:
            if time.monotonic() > deadline_s:
                raise


def patient_store(
    server: RedisServer | RedisCluster, prefix: str, *, name: str = "here", **more: Any
) -> "RedisStore":
    """Return a store that waits for an answer as long as for a hang, and has no successor before
    `end_lease`."""
    return open_store(server, prefix, name=name, timeout_s=HANG_S, lease_s=2 * HANG_S, **more)


def end_lease(cluster: RedisCluster, prefix: str) -> None:
    """Let time pass in which the owner of the prefix does not renew."""
    from flowguard.stores.redis.connection.cluster import slot_of
    from flowguard.stores.redis.keys import KeyNames

    meta = KeyNames(prefix).meta
    with cluster.primary_of(slot_of(meta)).client() as client:
        client.hset(meta, "beat", 1)
