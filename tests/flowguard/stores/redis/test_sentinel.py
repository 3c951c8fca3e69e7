"""Sentinels say who is the primary; when another one is, commits go on there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowguard.errors import ConfigError, StallError, StoreError
from flowguard.records import Append, PutSession, StoreOp
from flowguard.stores.redis.store import RedisStore
from tests.flowguard.stores.redis.benches import new_prefix, open_store
from tests.flowguard.stores.redis.test_replicated import pair, told
from tests.flowguard.stores.test_contract import delivery, entry, queue_of
from tests.support.redis_cluster import until
from tests.support.redis_server import RedisServer


@contextmanager
def sentinel_of(folder: Path, primary: RedisServer) -> Iterator[RedisServer]:
    settings = {
        "sentinel monitor here": f"127.0.0.1 {primary.port} 1",
        "sentinel down-after-milliseconds here": "500",
        "sentinel failover-timeout here": "2000",
    }
    sentinel = RedisServer(folder, settings, "--sentinel")
    try:
        yield sentinel.start()
    finally:
        sentinel.remove()


def commit_until_taken(store: RedisStore, batch: list[StoreOp]) -> None:
    """As the journal does."""

    def is_taken() -> bool:
        try:
            return not store.commit(batch)
        except StallError:
            return False

    until(is_taken)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "demoted"])
def test_commits_go_on_where_the_sentinels_say(tmp_path: Path, how: str) -> None:
    with pair(tmp_path) as (primary, replica), sentinel_of(tmp_path / "sentinel", primary) as it:
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{it.port}/here"
        store = open_store(primary, new_prefix(), url=url, durability="memory")
        commit_until_taken(store, [PutSession("c", 10, None), Append("c", 1, delivery(b"1"))])
        with primary.client() as client:
            client.wait(1, 10_000)
        with it.client() as client:
            until(lambda: len(client.execute_command("SENTINEL REPLICAS", "here")) == 1)
            if how == "killed":
                primary.kill()
            else:
                until(lambda: is_begun(it))
        until(lambda: told(replica, "role") == "master")
        # The old one may still take this, and forget it: then the new one is given it again.
        commit_until_taken(store, [Append("c", 2, delivery(b"2"))])
        if how == "demoted":
            until(lambda: told(primary, "role") == "slave")
        commit_until_taken(store, [Append("c", 3, delivery(b"3"))])
        assert queue_of(store) == [entry(pos, delivery(b"%d" % pos)) for pos in (1, 2, 3)]
        assert str(replica.port) in store._link.where
        store.close()


def is_begun(sentinel: RedisServer) -> bool:
    """Whether a Sentinel has begun to replace the primary, as it was asked to."""
    import redis

    try:
        with sentinel.client() as client:
            client.execute_command("SENTINEL FAILOVER", "here")
    except redis.ResponseError:  # It does not know its replica well enough yet.
        return False
    return True


def test_an_address_that_does_not_say_whose_primary_is_refused(tmp_path: Path) -> None:
    with pair(tmp_path) as (primary, _), sentinel_of(tmp_path / "sentinel", primary) as it:
        start = f"redis+sentinel://127.0.0.1:{it.port}"
        with pytest.raises(ConfigError, match="no name of a primary"):
            open_store(primary, new_prefix(), url=start)
        with pytest.raises(StoreError, match="knows no primary 'other'"):
            open_store(primary, new_prefix(), url=f"{start}/other")
