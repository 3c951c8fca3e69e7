"""With the level `replicated` a commit is complete when enough replicas have confirmed it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowguard.errors import StallError, StoreError
from flowguard.flow.load.signals import StoreState
from flowguard.records import Append, Durability, PutInbound, PutSession, StoreOp
from flowguard.stores.redis.store import RedisStore
from tests.flowguard.stores.redis.benches import new_prefix, open_store
from tests.flowguard.stores.test_contract import delivery, entry, queue_of, session_of
from tests.support.patience import HANG_S
from tests.support.redis_server import RedisServer, redis_server


@pytest.fixture(autouse=True)
def _brief_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas have 0.3 s for confirming a commit; the primary may take as long as it wants."""
    monkeypatch.setattr("flowguard.stores.redis.store.WAIT_SHARE", 0.3 / HANG_S)


@contextmanager
def pair(folder: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary and its replica, which has caught up."""
    with redis_server(folder / "primary") as primary:
        settings = {"replicaof": f"127.0.0.1 {primary.port}"}
        with redis_server(folder / "replica", settings) as replica:
            until(lambda: told(primary, "connected_slaves") == 1)
            until(lambda: told(replica, "master_link_status") == "up")
            yield primary, replica


def told(server: RedisServer, key: str) -> object:
    with server.client() as client:
        return client.info("replication").get(key)


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def promote(server: RedisServer) -> None:
    with server.client() as client:
        client.replicaof("NO", "ONE")


def test_a_replica_that_takes_its_primarys_place_has_all_that_was_answered(tmp_path: Path) -> None:
    prefix = new_prefix()
    with pair(tmp_path) as (primary, replica):
        store = open_store(primary, prefix, durability="replicated", lease_s=0.5)
        assert store.durability is Durability.REPLICATED
        store.commit([PutSession("c", 10, None)])
        for pos in range(1, 101):
            store.commit([Append("c", pos, delivery(b"%d" % pos))])
        primary.kill()
        promote(replica)
        after = open_store(replica, prefix, durability="memory", lease_s=0.5)
        expected = [entry(pos, delivery(b"%d" % pos)) for pos in range(1, 101)]
        assert queue_of(after) == expected
        after.close()
        store.close()


def is_taken(store: RedisStore, batch: list[StoreOp]) -> bool:
    """Whether a commit reaches its level in time: sent again, it has no second effect."""
    try:
        return not store.commit(batch)
    except StallError:
        return False


@pytest.mark.parametrize(
    ("durability", "is_answered"), [("memory", True), ("replicated", False)], ids=["control", "on"]
)
def test_who_is_cut_off_from_its_replica_answers_nobody(
    tmp_path: Path, durability: str, is_answered: bool
) -> None:
    """The control does answer, and the replica that takes its place has not got it."""
    prefix = new_prefix()
    with pair(tmp_path) as (primary, replica):
        store = open_store(primary, prefix, durability=durability, timeout_s=HANG_S, lease_s=0.5)
        until(lambda: is_taken(store, [PutSession("c", 10, None)]))
        if is_answered:
            with primary.client() as client:
                client.wait(1, 10_000)
        promote(replica)  # Now it has lost its primary.
        until(lambda: told(primary, "connected_slaves") == 0)
        if is_answered:
            assert not store.commit([Append("c", 1, delivery())])
        else:
            with pytest.raises(StallError, match="0 of 1 replicas"):
                store.commit([Append("c", 1, delivery())])
            assert store.load().state is StoreState.STOPPED
        primary.kill()
        after = open_store(replica, prefix, durability="memory", lease_s=0.5)
        assert queue_of(after) == []
        after.close()
        store.close()


def test_a_commit_that_waited_for_a_replica_is_done_once_when_it_is_back(tmp_path: Path) -> None:
    with pair(tmp_path) as (primary, replica):
        store = open_store(primary, new_prefix(), durability="replicated", timeout_s=HANG_S)
        until(lambda: is_taken(store, [PutSession("c", 10, None)]))
        replica.pause()
        batch = [Append("c", 1, delivery(b"once"))]
        for _ in range(2):
            with pytest.raises(StallError):
                store.commit(batch)
        replica.resume()

        until(lambda: is_taken(store, batch))
        assert queue_of(store) == [entry(1, delivery(b"once"))]
        store.close()


def test_what_a_dead_broker_left_is_on_the_replica_before_another_one_answers_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher that repeats its QoS 2 message gets its answer from the stored state, at once."""
    prefix = new_prefix()
    with pair(tmp_path) as (primary, replica):
        how: dict[str, Any] = {"durability": "replicated", "timeout_s": HANG_S, "lease_s": 0.5}
        store = open_store(primary, prefix, **how)
        until(lambda: is_taken(store, [PutSession("c", 10, None)]))
        replica.pause()
        with pytest.raises(StallError):
            store.commit([PutInbound("c", 7)])
        store._link.close()
        with monkeypatch.context() as patch:
            patch.setattr("flowguard.stores.redis.store.START_S", 0.0)
            with pytest.raises(StoreError, match="0 of 1 replicas"):
                open_store(primary, prefix, **how)
        replica.resume()
        after = open_store(primary, prefix, **how)
        assert session_of(after).inbound_ids == {7}
        after.close()


def test_a_commit_sent_again_on_another_connection_still_waits_for_the_replica(
    tmp_path: Path,
) -> None:
    """There it changes nothing any more, and must not be told yes for that."""
    with pair(tmp_path) as (primary, replica):
        store = open_store(primary, new_prefix(), durability="replicated", timeout_s=HANG_S)
        until(lambda: is_taken(store, [PutSession("c", 10, None)]))
        replica.pause()
        batch = [Append("c", 1, delivery(b"once"))]
        for _ in range(3):
            with pytest.raises(StallError):
                store.commit(batch)
            store._link.close()
        replica.resume()
        until(lambda: is_taken(store, batch))
        assert queue_of(store) == [entry(1, delivery(b"once"))]
        store.close()
