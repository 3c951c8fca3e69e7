"""Defects of the literal schema (`benchmarks.redis.literal`), each found in it, and not in ours."""

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.redis.literal import LiteralQueue
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    DropSession,
    PutSession,
    Release,
    Settle,
    packet_id_of,
)
from flowguard.stores import Store
from flowguard.types import Properties, Publish
from tests.flowguard.stores.redis.benches import new_prefix, open_store, shared_server
from tests.flowguard.stores.test_contract import delivery, entry, queue_of, session_of


@pytest.fixture
def client() -> Iterator[Any]:
    with shared_server().client(decode_responses=True) as client:
        client.flushdb()
        yield client


@pytest.fixture
def queue(client: Any) -> LiteralQueue:
    return LiteralQueue(client, "c")


@pytest.fixture(params=["stream", "zset"])
def store(client: Any, request: pytest.FixtureRequest) -> Iterator[Store]:
    store = open_store(shared_server(), new_prefix(), layout=request.param)
    store.commit([PutSession("c", 10, None)])
    yield store
    store.close()


def test_the_literal_schema_keeps_messages_in_order_and_within_its_limit(client: Any) -> None:
    """It does what it is known for, or the rest would prove nothing."""
    queue = LiteralQueue(client, "c", limit=3)
    assert queue.add("1", "2", "3") == 0
    assert queue.add("4") == 3
    assert queue.payloads() == ["2", "3", "4"]
    queue.remove(3)
    client.delete(f"{queue.messages}_2")  # It has expired.
    assert queue.payloads() == ["4"]
    assert client.zcard(queue.messages) == 1


def test_a_packet_identifier_that_comes_round_again_overwrites_what_is_not_acknowledged(
    queue: LiteralQueue, store: Store
) -> None:
    queue.add("first")
    for start in range(0, 65_535, 1_000):
        count = min(1_000, 65_535 - start)
        queue.add(*["x"] * count)
        queue.remove(*range(start + 2, min(start + count + 1, 65_535) + 1))
    assert "first" not in queue.payloads()

    first = delivery(b"first")
    store.commit([Append("c", 1, first)])
    for start in range(2, 70_000, 1_000):
        positions = range(start, start + 1_000)
        store.commit([Append("c", pos, delivery()) for pos in positions])
        store.commit([Settle("c", pos, delivery()) for pos in positions])
    assert queue_of(store) == [entry(1, first)]


def test_an_expiry_of_zero_breaks_off_in_the_middle_and_what_was_written_stays(
    client: Any, queue: LiteralQueue, store: Store
) -> None:
    from redis import ResponseError

    with pytest.raises(ResponseError, match="expire"):
        queue.add("x", msgExpiryInterval=0)
    with pytest.raises(ResponseError):
        client.eval(
            "redis.call('SET', KEYS[1], 'half'); redis.call('SET', KEYS[1], 'x', 'EX', 0)", 1, "k"
        )
    assert client.get("k") == "half"

    message = Publish("t", b"x", 1, properties=Properties(message_expiry_interval=0))
    sent = Delivery(message, 1, False, (), 1_000.0)
    assert not store.commit([Append("c", 1, sent), Append("c", 2, delivery())])
    assert queue_of(store) == [entry(1, sent), entry(2, delivery())]


def test_a_released_message_stays_for_ever(queue: LiteralQueue, store: Store) -> None:
    queue.add("x")
    assert queue.ttl_s(1) > 0
    queue.release(1)
    assert queue.ttl_s(1) == -1

    sent = delivery(qos=2)
    store.commit([Append("c", 1, sent)])
    store.commit([Release("c", 1, packet_id_of(1, 2), sent)])
    assert session_of(store).unsettled_bytes == 0  # Of the message only its identifier is left.
    assert queue_of(store) == [(1, packet_id_of(1, 2), None)]


def test_a_client_id_that_begins_with_a_brace_lies_in_several_slots(
    client: Any, store: Store
) -> None:
    from redis.crc import key_slot

    from flowguard.stores.redis.keys import KeyNames

    odd = LiteralQueue(client, "}c")
    assert key_slot(odd.messages.encode()) != key_slot(odd.last_id.encode())

    for client_id in ("}c", "{", "{}", "a{b}c", "\0$share/{g}/t"):
        names = KeyNames("fg1").session(client_id.encode())
        assert len({key_slot(name) for name in names}) == 1
        store.commit([PutSession(client_id, 10, None), Append(client_id, 1, delivery())])
        assert queue_of(store, client_id) == [entry(1, delivery())]


def test_numbers_and_empty_lists_are_changed_on_their_way(
    queue: LiteralQueue, store: Store
) -> None:
    queue.add("x", time=2**53 + 1, userProperties=[])
    (found,) = queue.all()
    assert found["time"] != 2**53 + 1
    assert found["userProperties"] == {}

    properties = Properties(correlation_data=(2**53 + 1).to_bytes(8, "big"), user_properties=())
    sent = Delivery(Publish("t", b"\xff\0", 1, properties=properties), 1, False, (), NEVER_S)
    store.commit([Append("c", 1, sent)])
    assert queue_of(store) == [entry(1, sent)]


def test_a_queue_is_read_as_a_whole(queue: LiteralQueue, store: Store) -> None:
    for _ in range(10):
        queue.add(*["x"] * 100)
    assert len(queue.payloads()) == 1_000  # There is no other way to ask.

    store.commit([Append("c", pos, delivery()) for pos in range(1, 1_001)])
    assert [each.pos for each in store.fetch("c", 500, 10)] == list(range(501, 511))


def test_the_last_identifier_of_a_client_outlives_its_messages(
    client: Any, queue: LiteralQueue, store: Store
) -> None:
    queue.add("x")
    queue.remove(1)
    assert client.keys("{c}*") == [queue.last_id]
    assert client.ttl(queue.last_id) == -1

    store.commit([Append("c", 1, delivery()), Settle("c", 1), DropSession("c")])
    assert client.keys("*}:[squm]:*c") == []
