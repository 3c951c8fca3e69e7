"""Properties of layout `zset` only: references, and strings that expire."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from flowguard.config import Settings
from flowguard.records import NEVER_S, Append, DropSession, PutSession, Settle
from flowguard.stores.redis.keys import KeyNames
from flowguard.stores.redis.store import RedisStore
from store_tools.redis_reader import RedisReader
from tests.flowguard.stores.redis.benches import new_prefix, open_store, shared_server
from tests.flowguard.stores.test_contract import delivery, entry, queue_of, session_of


@pytest.fixture
def prefix() -> str:
    shared_server()
    return new_prefix()


@pytest.fixture
def store(prefix: str) -> Iterator[RedisStore]:
    store = open_store(shared_server(), prefix, layout="zset")
    store.commit([PutSession("c", 10, None)])
    yield store
    store.close()


@pytest.fixture
def client() -> Iterator[Any]:
    with shared_server().client() as client:
        yield client


def test_a_queue_is_a_sorted_set_of_references_and_a_string_for_each_message(
    store: RedisStore, prefix: str, client: Any
) -> None:
    sent = delivery(b"x")
    store.commit([Append("c", 1, sent), Append("c", 5, sent)])
    names = KeyNames(prefix)
    _, queue, _ = names.session(b"c")
    size = sent.size_bytes
    assert client.zrange(queue, 0, -1, withscores=True) == [
        (b"1:%d" % size, 1.0),
        (b"5:%d" % size, 5.0),
    ]
    assert client.exists(names.message(b"c", 1), names.message(b"c", 5)) == 2
    store.commit([Settle("c", 1, sent), Settle("c", 5)])
    assert client.keys(f"{prefix}:*[qm]:*c") == []


def test_a_message_expires_in_redis_after_its_owner_would_have_dropped_it(
    store: RedisStore, prefix: str, client: Any
) -> None:
    (now_s, _) = client.time()
    messages = [delivery(expires_at_s=each) for each in (NEVER_S, now_s + 1_000, 5.0)]
    store.commit([Append("c", pos, each) for pos, each in enumerate(messages, 1)])
    forever, late, soon = (client.ttl(KeyNames(prefix).message(b"c", pos)) for pos in (1, 2, 3))
    assert forever == -1
    assert 1_000 < late <= 1_301
    assert 0 < soon <= 300


def test_a_reference_without_its_message_is_read_as_expired_and_cleaned_by_settling(
    store: RedisStore, prefix: str, client: Any
) -> None:
    """The owner drops what has expired, counts it, and settles it: no counter is ever wrong."""
    sent = delivery(b"x" * 100)
    store.commit([Append("c", pos, sent) for pos in (1, 2, 3)])
    before_bytes = session_of(store).unsettled_bytes
    client.delete(KeyNames(prefix).message(b"c", 2))
    _, gone, _ = store.fetch("c", 0, 10)
    assert gone.delivery is not None
    assert (gone.pos, gone.delivery.expires_at_s) == (2, 0.0)
    url = shared_server().unix_url
    reader = RedisReader(url, prefix, clock=time.monotonic, sleep=time.sleep)
    assert not reader.verify().problems
    reader.close()

    store.commit([Settle("c", 2, gone.delivery)])
    assert queue_of(store) == [entry(1, sent), entry(3, sent)]
    found = session_of(store)
    assert (found.unsettled_count, found.unsettled_bytes) == (2, before_bytes * 2 // 3)


def test_names_of_clients_and_positions_are_never_mistaken_for_each_other(
    store: RedisStore, prefix: str, client: Any
) -> None:
    for name in ("1", "1:c", "}:q:", "c:1"):
        store.commit([PutSession(name, 10, None), Append(name, 1, delivery(name.encode()))])
    for name in ("1", "1:c", "}:q:", "c:1"):
        assert queue_of(store, name) == [entry(1, delivery(name.encode()))]
    for name in ("1", "1:c", "}:q:", "c:1"):
        store.commit([DropSession(name)])
    assert client.keys(f"{prefix}:*:m:*") == []


def test_a_queue_that_may_be_longer_than_the_schema_takes_is_refused() -> None:
    words = {"store": {"kind": "redis"}, "redis": {"layout": "zset"}}
    Settings.model_validate({**words, "session": {"queue_messages_max": 65_535}})
    with pytest.raises(ValidationError, match="65535"):
        Settings.model_validate({**words, "session": {"queue_messages_max": 65_536}})
