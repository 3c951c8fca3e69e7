"""A server that lost the end of what it had confirmed is given it again; else it is said so."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowguard.errors import DataLostError
from flowguard.records import (
    NEVER_S,
    Append,
    PutRetained,
    PutSession,
    PutSubscription,
    Settle,
    StoreOp,
)
from flowguard.types import Publish, SubscriptionOptions
from tests.flowguard.stores.redis.benches import new_prefix, open_store
from tests.flowguard.stores.test_contract import delivery, entry, queue_of, session_of
from tests.support.redis_server import ALWAYS, RedisServer, redis_server

if TYPE_CHECKING:
    from flowguard.stores.redis import RedisStore


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """It has what it had when `save` was called, and nothing else."""
    with redis_server(tmp_path) as server:
        yield server


def save(server: RedisServer) -> None:
    with server.client() as client:
        client.save()


def go_back(server: RedisServer) -> None:
    """As after a fail-over to a replica that was behind."""
    server.kill()
    server.start()


def test_what_it_lost_is_written_again_before_anything_else(server: RedisServer) -> None:
    prefix = new_prefix()
    store = open_store(server, prefix, durability="memory")
    store.commit([PutSession("c", 10, None), Append("c", 1, delivery(b"1"))])
    save(server)
    store.commit([PutSession("d", 10, None), PutSubscription("d", "a", SubscriptionOptions(1))])
    store.commit([Append("d", 1, delivery(b"lost")), Append("c", 2, delivery(b"2"))])
    store.commit([Settle("c", 1), PutRetained(Publish("r", b"x", 0, True), NEVER_S)])
    go_back(server)
    assert not store.commit([Append("c", 3, delivery(b"3"))])
    assert queue_of(store) == [entry(2, delivery(b"2")), entry(3, delivery(b"3"))]
    assert queue_of(store, "d") == [entry(1, delivery(b"lost"))]
    assert session_of(store, "d").subscriptions == {"a": SubscriptionOptions(1)}
    assert [message.topic for message, _ in store.retained()] == ["r"]
    store.close()
    after = open_store(server, prefix, durability="memory")
    assert queue_of(after, "d") == [entry(1, delivery(b"lost"))]
    after.close()


def test_lost_commits_are_written_again_when_the_store_closes(server: RedisServer) -> None:
    prefix = new_prefix()
    store = open_store(server, prefix, durability="memory")
    store.commit([PutSession("c", 10, None)])
    save(server)
    store.commit([Append("c", 1, delivery(b"lost"))])
    go_back(server)
    store.close()
    after = open_store(server, prefix, durability="memory")
    assert queue_of(after) == [entry(1, delivery(b"lost"))]
    after.close()


def test_it_is_noticed_though_nothing_is_committed(server: RedisServer) -> None:
    store = open_store(server, new_prefix(), durability="memory", lease_s=0.5)
    save(server)
    store.commit([PutSession("c", 10, None), Append("c", 1, delivery(b"1"))])
    go_back(server)
    while not store._lease.is_due(store._clock()):
        pass
    store.maintain()
    with server.client() as client:
        assert client.keys("*:q:c")
    store.close()


def test_what_is_not_kept_any_more_is_lost_and_says_so(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowguard.stores.redis import kept as module

    monkeypatch.setattr(module, "KEPT_BYTES", 1_000)
    store = open_store(server, new_prefix(), durability="memory")
    store.commit([PutSession("c", 10, None)])
    save(server)
    store.commit([Append("c", 1, delivery(b"x" * 1_000))])
    store.commit([Append("c", 2, delivery(b"2"))])
    go_back(server)
    with pytest.raises(DataLostError, match="at commit 1 of 3"):
        store.commit([Append("c", 3, delivery(b"3"))])
    store.close()


def test_a_server_that_is_empty_now_has_lost_everything_and_says_so(server: RedisServer) -> None:
    store = open_store(server, new_prefix(), durability="memory")
    store.commit([PutSession("c", 10, None)])
    go_back(server)
    with pytest.raises(DataLostError):
        store.commit([Append("c", 1, delivery())])
    store.close()


def test_a_server_that_was_emptied_under_it_is_noticed(server: RedisServer) -> None:
    store = open_store(server, new_prefix(), durability="memory")
    store.commit([PutSession("c", 10, None)])
    with server.client() as client:
        client.flushall()
    with pytest.raises(DataLostError, match=":meta no more"):
        store.commit([Append("c", 1, delivery())])
    store.close()


def test_a_server_that_has_forgotten_its_functions_is_given_them_again(
    server: RedisServer,
) -> None:
    store = open_store(server, new_prefix(), durability="memory")
    store.commit([PutSession("c", 10, None)])
    with server.client() as client:
        client.execute_command("FUNCTION", "FLUSH")
    assert not store.commit([Append("c", 1, delivery())])
    assert queue_of(store) == [entry(1, delivery())]
    store.close()


def test_a_connection_may_be_lost_any_number_of_times(server: RedisServer) -> None:
    """A broker lives for months, and so may a server that is restarted now and then."""
    store = open_store(server, new_prefix(), durability="memory")
    for _ in range(150):
        store._link.close()
        store.commit([PutSession("a", 10, None)])
    store.close()


def tear_the_last_commit(server: RedisServer, store: "RedisStore", ops: list[StoreOp]) -> None:
    """Kill the server when it has written the beginning of this commit."""
    (file,) = (server.folder / "appendonlydir").glob("*.incr.aof")
    before_bytes = file.stat().st_size
    store.commit(ops)
    after_bytes = file.stat().st_size
    server.kill()
    with file.open("r+b") as writer:
        writer.truncate((before_bytes + after_bytes) // 2)
    server.start()


@pytest.mark.parametrize("layout", ["stream", "zset"])
def test_nothing_comes_back_of_a_commit_that_was_cut_off(tmp_path: Path, layout: str) -> None:
    """Broker and server are killed together. Redis leaves the beginning of the commit in its file,
    and would do that with the next commit when it starts again."""
    with redis_server(tmp_path, ALWAYS) as server:
        prefix = new_prefix()
        killed = open_store(server, prefix, durability="fsync", layout=layout, lease_s=0.5)
        killed.commit([PutSession("c", 10, None), Append("c", 1, delivery(b"1"))])
        cut_off = [Append("c", pos, delivery(b"cut off")) for pos in range(2, 12)]
        tear_the_last_commit(server, killed, cut_off)
        killed._link.close()
        after = open_store(server, prefix, durability="fsync", layout=layout, lease_s=0.5)
        assert queue_of(after) == [entry(1, delivery(b"1"))]
        after.commit([Append("c", 2, delivery(b"2"))])
        after._link.close()
        go_back(server)
        last = open_store(server, prefix, durability="fsync", layout=layout, lease_s=0.5)
        assert queue_of(last) == [entry(1, delivery(b"1")), entry(2, delivery(b"2"))]
        last.close()


@pytest.mark.parametrize("layout", ["stream", "zset"])
def test_a_commit_that_was_cut_off_is_whole_when_its_broker_sends_it_again(
    tmp_path: Path, layout: str
) -> None:
    with redis_server(tmp_path, ALWAYS) as server:
        prefix = new_prefix()
        store = open_store(server, prefix, durability="fsync", layout=layout, lease_s=0.5)
        store.commit([PutSession("c", 10, None), Append("c", 1, delivery(b"1"))])
        appended = [Append("c", pos, delivery(b"x")) for pos in range(2, 12)]
        tear_the_last_commit(server, store, appended)
        store.commit([Settle("c", 1, delivery(b"1"))])
        expected = [entry(pos, delivery(b"x")) for pos in range(2, 12)]
        assert queue_of(store) == expected
        store._link.close()
        for _ in range(2):
            go_back(server)
            after = open_store(server, prefix, durability="fsync", layout=layout, lease_s=0.5)
            assert queue_of(after) == expected
            after._link.close()


def test_owner_ends_if_a_part_of_its_sessions_is_not_its_own_any_more(server: RedisServer) -> None:
    """A replica may have the lease of a new owner, and not yet what this one has adopted."""
    prefix = new_prefix()
    open_store(server, prefix, durability="memory").close()
    store = open_store(server, prefix, durability="memory")
    with server.client() as client:
        client.hset(f"{prefix}:meta", "adopted", "the last owner")
        client.save()
    go_back(server)
    with pytest.raises(DataLostError, match="who owns its sessions"):
        store.commit([PutSession("c", 10, None)])
