"""Queues in topics of a real Kafka where something goes wrong: deletions, attempts that failed."""

import asyncio
import random
import threading
from functools import partial
from typing import Any

import pytest

from benchmarks.kafka.servers import MADE, UNDECIDED, until
from flowguard.errors import StallError, StoreError
from flowguard.records import Append, Delivery, PutSession, Release, Settle, packet_id_of
from flowguard.stores import MemoryStore
from flowguard.types import Publish
from tests.flowguard.stores.test_contract import queue_of, session_of
from tests.support.kafka import REQUEST_BYTES_MAX, Kafka, shared_kafka
from tests.support.patience import HANG_S

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaConnectionError

from flowguard.stores.kafka.connection.link import patiently, within
from flowguard.stores.kafka.connection.reader import COMMIT_MAX, Committed
from flowguard.stores.kafka.plan import CHANGES_MAX
from flowguard.stores.kafka.store import RENEWAL_S, KafkaStore
from flowguard.stores.kafka.topics import KafkaPlace, topic_of
from flowguard.stores.kafka.window import METADATA_MAX
from tests.flowguard.stores.kafka.benches import new_prefix, open_store, place_on
from tests.flowguard.stores.kafka.deletion import delete_topic
from tests.flowguard.stores.kafka.test_store import (
    appends,
    at_last,
    commit_at_last,
    crash,
    delivery,
    positions,
    positions_at_last,
)

pytestmark = pytest.mark.slow

MIB = 1024 * 1024


def server_and_place() -> tuple[Kafka, KafkaPlace]:
    server = shared_kafka()
    return server, place_on(server, new_prefix())


def delete_queue(server: Kafka, store: KafkaStore, place: KafkaPlace) -> None:
    (topic,) = at_last(lambda: store._link.topics(topic_of(place.prefix, "c")))
    delete_topic(server, topic)


def test_a_store_that_opens_waits_longer_for_a_server_than_one_that_commits() -> None:
    _, place = server_and_place()
    place.wait_s = 0.0
    store = open_store(MemoryStore(), place)
    with pytest.raises(StallError, match="no answer"):
        store.commit([PutSession("c", 10, None, True)])
    store._link.wait_s = HANG_S
    store.close()


def test_a_topic_that_somebody_deletes_holds_up_nobody_who_settles_or_reads() -> None:
    server, place = server_and_place()
    place.wait_s = 5.0
    store = open_store(MemoryStore(), place)
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, 4, qos=2)])
    delete_queue(server, store, place)
    commit_at_last(store, [Release("c", 1, packet_id_of(1, 2), delivery(1, 2))])
    assert positions_at_last(store) == []
    assert store.take_lost() == {"c": 4}
    commit_at_last(store, appends(5, 6, qos=2))
    delete_queue(server, store, place)
    while positions_or_stall(store):
        store.maintain()
    assert store.take_lost() == {"c": 2}
    store.close()


def positions_or_stall(store: KafkaStore) -> bool:
    """Return True if there are messages, or if it cannot be decided."""
    try:
        return bool(positions(store))
    except StallError:
        return True


def test_no_more_than_a_few_acknowledgements_are_told_again_where_nobody_has_time() -> None:
    _, place = server_and_place()
    base = MemoryStore()
    store = open_store(base, place)
    count, batch = 10 * CHANGES_MAX, 100
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, count)])
    for first in range(1, count, batch):
        store.commit([Settle("c", pos, delivery(pos)) for pos in range(first, first + batch)])
    crash(store)
    again = open_store(base, place)
    # One commit is on its way, and the next one waits for it.
    assert len(positions(again)) <= 2 * (2 * CHANGES_MAX + batch)
    again.close()


def test_what_was_acknowledged_counts_and_not_what_of_another_attempt_has_its_position() -> None:
    """A request of a process that was killed is done late, after the next one has looked."""
    _, place = server_and_place()
    base = MemoryStore()
    store = open_store(base, place)
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, 2)])
    late = [Append("c", pos, delivery(100 + pos)) for pos in (3, 4)]
    store._write(store._planned(late))
    store.commit(appends(3, 5))
    crash(store)
    again = open_store(base, place)
    assert queue_of(again) == [(pos, *rest) for pos, *rest in expected(1, 5)]
    assert session_of(again).unsettled_bytes == sum(delivery(pos).size_bytes for pos in range(1, 6))
    again.commit([Settle("c", pos) for pos in range(1, 5)])
    assert session_of(again).unsettled_bytes == delivery(5).size_bytes
    again.close()


def expected(first: int, last: int) -> list[tuple[object, ...]]:
    other = MemoryStore()
    other.commit([PutSession("c", 10, None), *appends(first, last)])
    return queue_of(other)  # type: ignore[return-value]


def test_a_commit_for_many_applications_is_no_larger_than_what_a_server_takes() -> None:
    _, place = server_and_place()
    place.wait_s = 5.0
    store = open_store(MemoryStore(), place)
    names = [f"c{number}" for number in range(1 + REQUEST_BYTES_MAX // MIB)]
    commit_at_last(store, [PutSession(name, 10, None, True) for name in names])
    large = Delivery(Publish("t", noise(MIB), 1), 1, False, (), float("inf"))
    commit_at_last(store, [Append(name, 1, large) for name in names])
    for name in names:
        assert len(at_last(partial(store.fetch, name, 0, 9))) == 1
    store.close()


def noise(size_bytes: int) -> bytes:
    """Nothing that a producer could compress."""
    return random.Random(1).randbytes(size_bytes)


def test_the_windows_of_many_applications_are_committed_whatever_they_say() -> None:
    server, place = server_and_place()
    store = open_store(MemoryStore(), place)
    topics = [f"{place.prefix}.x.{number}" for number in range(COMMIT_MAX + 100)]
    create(server, topics)
    store._reader.commit(dict.fromkeys(topics, Committed(7, "x" * METADATA_MAX)))
    assert store._reader.committed().keys() == set(topics)
    store.close()


def create(server: Kafka, topics: list[str]) -> None:
    """Make topics; until the node knows them it takes no commit for them."""
    until(server, lambda admin: _are_made(admin, topics))
    until(server, lambda admin: _knows(admin, topics))


async def _are_made(admin: Any, topics: list[str]) -> bool:
    """Ask for all of them; a node that has no time for some may be asked again."""
    answer = await admin.create_topics([NewTopic(topic, 1, 1) for topic in topics])
    codes = {code for _, code, *_ in answer.topic_errors}
    assert codes <= MADE | UNDECIDED, codes
    return codes <= MADE


async def _knows(admin: Any, topics: list[str]) -> bool:
    return set(topics) <= set(await admin.list_topics())


def test_windows_are_committed_anew_before_servers_forget_them() -> None:
    _, place = server_and_place()
    base, now_s = MemoryStore(), [1e9]
    store = KafkaStore(base, place, lambda: now_s[0])
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, 3)])
    store.commit([Settle("c", pos, delivery(pos)) for pos in (1, 2)])
    maintain(store)
    (topic,) = store._link.topics(topic_of(place.prefix, "c"))
    store._reader.commit({topic: Committed(0, "")})  # As if it had never been committed.
    maintain(store)
    assert store._reader.committed()[topic].offset == 0
    now_s[0] += RENEWAL_S + 1
    maintain(store)
    crash(store)
    again = open_store(base, place)
    assert positions(again) == [3]
    again.close()


def maintain(store: KafkaStore) -> None:
    store.maintain()
    store._windows.finish()


def test_while_there_are_too_few_nodes_for_a_new_topic_its_commit_waits() -> None:
    _, place = server_and_place()
    store = open_store(MemoryStore(), place)
    place.replicas = 3
    with pytest.raises(StallError, match="too few nodes"):
        store.commit([PutSession("c", 10, None, True)])
    place.replicas = 1
    commit_at_last(store, [PutSession("c", 10, None, True)])
    store.close()


def test_who_waits_for_an_answer_when_the_connection_is_closed_gets_an_error_of_ours() -> None:
    _, place = server_and_place()
    store = open_store(MemoryStore(), place)
    link, begun = store._link, threading.Event()
    errors = []

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            link.call(wait, 1_000.0)
        except StoreError as error:
            errors.append(error)

    store._reader.close()
    thread = threading.Thread(target=call)
    thread.start()
    begun.wait()
    link.close()
    thread.join()
    assert [type(error) for error in errors] == [StallError]


def test_who_gives_up_asking_is_told_what_stood_in_the_way() -> None:
    async def ask() -> None:
        raise KafkaConnectionError("node 1 is gone")

    with pytest.raises(KafkaConnectionError, match="node 1 is gone"):
        asyncio.run(within(0.01, lambda: patiently(ask)))
