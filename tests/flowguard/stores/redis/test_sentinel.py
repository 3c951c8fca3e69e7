"""Sentinels name the primary; after a failover, commits go on at the new one."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flowguard.errors import ConfigError, StallError, StoreError
from flowguard.records import Append, PutSession, StoreOp
from flowguard.stores.redis.store import RedisStore
from tests.flowguard.stores.redis.benches import new_prefix, open_store
from tests.flowguard.stores.redis.test_replicated import pair, told
from tests.flowguard.stores.test_contract import delivery, entry, queue_of
from tests.support.redis_cluster import until
from tests.support.redis_server import RedisServer, redis_server


@contextmanager
def sentinel_of(folder: Path, primary: RedisServer) -> Iterator[RedisServer]:
    settings = {
        "sentinel monitor here": f"127.0.0.1 {primary.port} 1",
        "sentinel down-after-milliseconds here": "60000",  # A busy machine is no failure.
        "sentinel failover-timeout here": "20000",
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
            client.set("behind", "it")  # WAIT is for what the same connection has written.
            assert client.wait(1, 0) == 1
        with it.client() as client:
            until(lambda: len(client.execute_command("SENTINEL REPLICAS", "here")) == 1)
            if how == "killed":
                client.execute_command("SENTINEL", "SET", "here", "down-after-milliseconds", 500)
        if how == "killed":
            primary.kill()
            until(lambda: role_of(replica) == "master")
        else:
            # A Sentinel on a busy machine gives one up, and begins another only on request.
            until(lambda: role_of(replica) == "master" or ask_for_another(it))
        # The old one may still take this, and forget it: then the new one is given it again.
        commit_until_taken(store, [Append("c", 2, delivery(b"2"))])
        if how == "demoted":
            until(lambda: role_of(primary) == "slave")
        commit_until_taken(store, [Append("c", 3, delivery(b"3"))])
        assert queue_of(store) == [entry(pos, delivery(b"%d" % pos)) for pos in (1, 2, 3)]
        assert str(replica.port) in store._link.where
        store.close()


def role_of(server: RedisServer) -> object:
    """The role of a server; a Sentinel that gives it another one ends its connections."""
    import redis

    try:
        return told(server, "role")
    except redis.ConnectionError:
        return None


def ask_for_another(sentinel: RedisServer) -> bool:
    """Ask that another server becomes the primary; never whether it has."""
    import redis

    with suppress(redis.ResponseError), sentinel.client() as client:  # It may be at it already.
        client.execute_command("SENTINEL FAILOVER", "here")
    return False


def test_a_server_that_has_just_become_a_replica_has_lost_nothing(tmp_path: Path) -> None:
    """It forgets everything before it starts again, which must not count as a loss."""
    with pair(tmp_path / "one") as (primary, _), redis_server(tmp_path / "other") as other:
        store = open_store(primary, new_prefix(), durability="memory")
        store.commit([PutSession("c", 10, None), Append("c", 1, delivery(b"1"))])
        with primary.client() as client:
            client.replicaof("127.0.0.1", other.port)
            until(lambda: told(primary, "master_link_status") == "up")
            assert client.dbsize() == 0
        with pytest.raises(StallError, match="is a replica"):
            store._write_again(store._link)
        store.close()


def test_an_address_that_does_not_say_whose_primary_is_refused(tmp_path: Path) -> None:
    with pair(tmp_path) as (primary, _), sentinel_of(tmp_path / "sentinel", primary) as it:
        start = f"redis+sentinel://127.0.0.1:{it.port}"
        with pytest.raises(ConfigError, match="no name of a primary"):
            open_store(primary, new_prefix(), url=start)
        with pytest.raises(StoreError, match="knows no primary 'other'"):
            open_store(primary, new_prefix(), url=f"{start}/other")
