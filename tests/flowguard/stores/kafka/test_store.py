"""Queues of applications in topics of a real Kafka: what the contract does not ask."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from flowguard.errors import ConfigError, StallError, StoreError
from flowguard.records import (
    Append,
    Delivery,
    Forward,
    PutInbound,
    PutSession,
    Release,
    Sent,
    Settle,
    StoreOp,
    packet_id_of,
)
from flowguard.stores import MemoryStore
from flowguard.types import Publish
from tests.flowguard.stores.kafka.deletion import delete_topic
from tests.flowguard.stores.kafka.retention import delete_before
from tests.flowguard.stores.test_contract import queue_of, session_of
from tests.support.kafka import kafka, shared_kafka
from tests.support.patience import HANG_S

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from aiokafka.admin import AIOKafkaAdminClient

from flowguard.stores.kafka.plan import CHANGES_MAX
from flowguard.stores.kafka.store import KafkaStore
from flowguard.stores.kafka.topics import topic_of
from tests.flowguard.stores.kafka.benches import new_prefix, open_store, place_on

pytestmark = pytest.mark.slow

R = TypeVar("R")


def delivery(number: int, qos: int = 1) -> Delivery:
    return Delivery(Publish("t", b"%d" % number, qos), qos, False, (), float("inf"))


def appends(first: int, last: int, qos: int = 1) -> list[Append]:
    return [Append("c", pos, delivery(pos, qos)) for pos in range(first, last + 1)]


def positions(store: KafkaStore) -> list[int]:
    return [pos for pos, *_ in queue_of(store)]  # type: ignore[misc]


def positions_at_last(store: KafkaStore) -> list[int]:
    """As a page is read: asked for again until the store answers."""
    return at_last(lambda: positions(store))


def at_last(work: Callable[[], R]) -> R:
    """The result of `work()`, tried until Kafka answers in time."""
    deadline_s = time.monotonic() + HANG_S
    while True:
        try:
            return work()
        except StallError:
            if time.monotonic() > deadline_s:
                raise


def crash(store: KafkaStore) -> None:
    """End as a killed process does: nothing is written any more."""
    store._reader.close()
    store._link.close()


def test_what_was_released_is_known_after_a_crash_and_what_was_acknowledged_comes_again() -> None:
    """In-flight state is written while it changes, not when the client leaves."""
    base, place = MemoryStore(), place_on(shared_kafka(), new_prefix())
    store = open_store(base, place)
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, 4, qos=2)])
    store.commit([Sent("c", 3), Settle("c", 1)])
    store.commit([Release("c", 2, packet_id_of(2, 2))])
    crash(store)
    again = open_store(base, place)
    assert [(each.pos, each.delivery is None) for each in again.fetch("c", 0, 9)] == [
        (2, True),
        (3, False),
        (4, False),
    ]
    again.commit([Settle("c", 3)])  # No caller waits for it: 3 may come again.
    crash(again)
    last = open_store(base, place)
    assert positions(last)[-1] == 4
    assert set(positions(last)) >= {2, 4}
    last.close()


def test_a_topic_that_a_node_does_not_know_yet_is_not_taken_as_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base, place = MemoryStore(), place_on(shared_kafka(), new_prefix())
    store = open_store(base, place)
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, 2)])
    crash(store)
    known, listings = AIOKafkaAdminClient.list_topics, []

    async def list_late(admin: AIOKafkaAdminClient) -> list[str]:
        topics: list[str] = await known(admin)
        listings.append(topics)
        return topics if len(listings) > 2 else []

    monkeypatch.setattr(AIOKafkaAdminClient, "list_topics", list_late)
    again = open_store(base, place)
    assert (positions(again), len(listings)) == ([1, 2], 3)
    again.close()


def test_nothing_is_skipped_however_often_it_is_read() -> None:
    base, place = MemoryStore(), place_on(shared_kafka(), new_prefix())
    store = open_store(base, place)
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, 20)])
    store.commit([Settle("c", pos) for pos in range(2, 21)])
    for _ in range(5):
        assert positions(store) == [1]
    store.close()
    again = open_store(base, place)
    assert positions(again) == [1]
    found = session_of(again)
    assert (found.unsettled_count, found.next_pos) == (1, 21)
    again.close()


def test_a_batch_that_was_sent_twice_is_there_once() -> None:
    """A node dies between Kafka's answer and its own commit; the topic has records without
    owner."""
    base, place = MemoryStore(), place_on(shared_kafka(), new_prefix())
    store = open_store(base, place)
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, 2)])
    plan = store._planned(appends(3, 4))
    store._write(plan)  # And dies before it could note where.
    store.commit(appends(3, 5))
    assert positions(store) == [1, 2, 3, 4, 5]
    assert session_of(store).unsettled_count == 5
    crash(store)
    again = open_store(base, place)
    assert positions(again) == [1, 2, 3, 4, 5]
    again.commit([Settle("c", pos) for pos in range(1, 5)])
    assert positions(again) == [5]
    again.close()
    last = open_store(base, place)
    assert positions(last) == [5]
    last.close()


def test_what_was_forwarded_is_known_after_a_crash_with_the_message_or_not_at_all() -> None:
    base, place = MemoryStore(), place_on(shared_kafka(), new_prefix())
    store = open_store(base, place)
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, 2)])
    assert store.owed_pos("c") == store.owed_pos("unknown") == 0
    store.commit([*appends(3, 4), Forward("c", 4, 7)])
    store.commit(appends(5, 5))
    assert store.owed_pos("c") == 7
    crash(store)
    again = open_store(base, place)
    assert again.owed_pos("c") == 7
    again._write(again._planned([*appends(6, 6), Forward("c", 6, 8)]))
    crash(again)  # Before it could tell the other store.
    third = open_store(base, place)
    assert third.owed_pos("c") == 8
    third.commit([Settle("c", pos) for pos in range(1, 7)])
    third.close()
    last = open_store(base, place)
    assert (positions(last), last.owed_pos("c")) == ([], 8)
    last.close()


def test_a_client_that_becomes_a_device_takes_its_queue_along_and_back() -> None:
    base, place = MemoryStore(), place_on(shared_kafka(), new_prefix())
    store = open_store(base, place)
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, 4, qos=2), Sent("c", 2)])
    store.commit([Settle("c", 1), Release("c", 2, packet_id_of(2, 2))])
    commit_at_last(store, [PutSession("c", 10, None, False)])
    assert queue_of(base) == queue_of(store)
    assert [pos for pos, *_ in queue_of(base)] == [2, 3, 4]  # type: ignore[misc]
    commit_at_last(store, [PutSession("c", 10, None, True)])
    assert queue_of(base) == []
    assert positions(store) == [2, 3, 4]
    assert session_of(store).next_pos == 5
    store.close()


def test_what_the_same_batch_had_for_a_queue_moves_with_it() -> None:
    base, place = MemoryStore(), place_on(shared_kafka(), new_prefix())
    store = open_store(base, place)
    store.commit(
        [
            PutSession("c", 10, None),
            *appends(1, 2),
            PutSession("c", 10, None, True),
            *appends(3, 4),
            Settle("c", 1, delivery(1)),
        ]
    )
    assert queue_of(base) == []
    assert positions(store) == [2, 3, 4]
    store.commit([*appends(5, 6), PutSession("c", 10, None), *appends(7, 7)])
    assert [pos for pos, *_ in queue_of(base)] == [2, 3, 4, 5, 6, 7]  # type: ignore[misc]
    both = [PutSession("c", 10, None, True), PutInbound("c", 9), PutSession("c", 20, None)]
    store.commit([*appends(8, 8), *both])
    assert [pos for pos, *_ in queue_of(base)] == list(range(2, 9))  # type: ignore[misc]
    found = session_of(base)
    assert (found.expiry_interval_s, found.inbound_ids, found.next_pos) == (20, {9}, 9)
    assert not found.is_application
    store.close()


def test_what_waits_in_the_other_store_is_moved_when_its_applications_come_to_kafka() -> None:
    """Even if a crash between the two stores has left messages in both."""
    base, place = MemoryStore(), place_on(shared_kafka(), new_prefix())
    base.commit([PutSession("c", 10, None, True), *appends(1, 4, qos=2), Sent("c", 2)])
    base.commit([Settle("c", 1), Release("c", 2, packet_id_of(2, 2))])
    before = queue_of(base)
    store = open_store(base, place)
    assert queue_of(base) == []
    assert queue_of(store) == before
    crash(store)
    left = MemoryStore()
    left.commit([PutSession("c", 10, None, True), *appends(1, 5, qos=2), Sent("c", 2)])
    left.commit([Settle("c", 1), Release("c", 2, packet_id_of(2, 2))])
    again = open_store(left, place)
    assert queue_of(left) == []
    assert positions(again) == [2, 3, 4, 5]
    assert (session_of(again).next_pos, session_of(again).sent_pos) == (6, 2)
    again.close()


def test_a_sleeping_client_is_told_how_many_messages_retention_has_taken() -> None:
    server = shared_kafka()
    base, place = MemoryStore(), place_on(server, new_prefix())
    store = open_store(base, place)
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, 10)])
    store.commit([Settle("c", 2)])
    (topic,) = store._link.topics(topic_of(place.prefix, "c"))
    delete_before(server, topic, 5)
    assert positions(store) == [6, 7, 8, 9, 10]
    assert store.take_lost() == {"c": 4}
    assert store.take_lost() == {}
    store.close()
    delete_before(server, topic, 7)
    again = open_store(base, place)
    assert again.take_lost() == {"c": 2}
    found = session_of(again)
    assert (found.unsettled_count, found.next_pos) == (3, 11)
    assert found.unsettled_bytes == 3 * delivery(8).size_bytes + 1
    again.close()


def test_a_topic_that_somebody_deletes_is_made_again_and_the_loss_counted() -> None:
    server = shared_kafka()
    base, place = MemoryStore(), place_on(server, new_prefix())
    place.wait_s = 5.0
    store = open_store(base, place)
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, 10)])
    commit_at_last(store, [Settle("c", 1)])
    (topic,) = at_last(lambda: store._link.topics(topic_of(place.prefix, "c")))
    delete_topic(server, topic)
    commit_at_last(store, appends(11, 12))
    assert positions_at_last(store) == [11, 12]
    assert store.take_lost() == {"c": 9}
    store.close()
    again = open_store(base, place)
    assert positions_at_last(again) == [11, 12]
    assert session_of(again).next_pos == 13
    again.close()


def test_topics_of_one_data_directory_are_no_other_ones(tmp_path: Path) -> None:
    place = place_on(shared_kafka(), new_prefix())
    first, second = tmp_path / "first", tmp_path / "second"
    store = KafkaStore(MemoryStore(), place, lambda: 0.0, first)
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, 2)])
    store.close()
    with pytest.raises(ConfigError, match="those of another data directory"):
        KafkaStore(MemoryStore(), place, lambda: 0.0, second)
    assert not second.exists()
    KafkaStore(MemoryStore(), place, lambda: 0.0, first).close()


def test_while_no_server_answers_upkeep_waits_and_what_was_acknowledged_is_kept_in_mind(
    tmp_path: Path,
) -> None:
    with kafka(tmp_path) as server:
        base, place = MemoryStore(), place_on(server, new_prefix())
        place.wait_s = 5.0
        store = open_store(base, place)
        settled = range(1, 2 * CHANGES_MAX)
        commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, len(settled) + 2)])
        server.nodes[0].pause()
        store.commit([Settle("c", pos, delivery(pos)) for pos in settled])
        store.maintain()
        server.nodes[0].resume()
        last = len(settled) + 3
        commit_at_last(store, appends(last, last))
        store.maintain()
        assert positions_at_last(store) == [last - 2, last - 1, last]
        store.close()


def test_too_few_nodes_and_no_server_are_named() -> None:
    place = place_on(shared_kafka(), new_prefix())
    place.replicas = 3
    with pytest.raises(ConfigError, match="1 nodes for 3 replicas"):
        open_store(MemoryStore(), place)
    place.servers = "127.0.0.1:1"
    with pytest.raises(ConfigError, match="no Kafka answers at"):
        open_store(MemoryStore(), place)


def commit_at_last(store: KafkaStore, ops: Sequence[StoreOp]) -> None:
    """As the journal does: the same batch again until it is taken."""
    while True:
        try:
            store.commit(ops)
            return
        except StallError:
            continue
        except StoreError as error:
            raise AssertionError("the store is done for") from error
