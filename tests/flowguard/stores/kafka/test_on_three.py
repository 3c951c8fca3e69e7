"""The contract on three nodes, of which two must have what is committed; and what is promised
where nodes end, topics are deleted, retention passes a client and the broker is killed."""

import gc
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from flowguard.errors import StallError
from flowguard.records import PutSession, Settle
from flowguard.stores import MemoryStore
from tests.flowguard.stores.kafka.deletion import delete_topic
from tests.flowguard.stores.kafka.retention import delete_before
from tests.flowguard.stores.kafka.test_contract import *  # noqa: F403
from tests.support.kafka import Kafka, KafkaNode, kafka

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from flowguard.stores.kafka.connection.link import KafkaMessage, patiently
from flowguard.stores.kafka.store import KafkaStore
from flowguard.stores.kafka.topics import KafkaPlace, topic_of
from tests.flowguard.stores.kafka.benches import new_prefix, open_link, open_store, place_on
from tests.flowguard.stores.kafka.test_store import (
    appends,
    at_last,
    commit_at_last,
    crash,
    positions,
    positions_at_last,
)

pytestmark = [pytest.mark.slow, pytest.mark.long]

BATCH = 25


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka(tmp_path_factory.mktemp("kafka"), nodes=3) as server:
        yield server


@pytest.fixture
def place(server: Kafka) -> Iterator[KafkaPlace]:
    place = place_on(server, new_prefix())
    place.wait_s = 5.0
    yield place
    for node in server.nodes:
        if not node.is_running:
            node.start()
    server.wait_until_ready()


def with_messages(place: KafkaPlace, base: MemoryStore, count: int) -> KafkaStore:
    store = open_store(base, place)
    commit_at_last(store, [PutSession("c", 10, None, True), *appends(1, count)])
    return store


def topic_name(store: KafkaStore, place: KafkaPlace) -> str:
    (topic,) = at_last(lambda: store._link.topics(topic_of(place.prefix, "c")))
    return topic


def leader_of(server: Kafka, topic: str) -> KafkaNode:
    """The leader of a topic's partition, as soon as there is one."""

    async def ask(admin: Any) -> int:
        while True:
            (found,) = await patiently(lambda: admin.describe_topics([topic]))
            number = int(found["partitions"][0]["leader"])
            if number > 0:
                return number

    return server.nodes[server.call(ask) - 1]


def test_what_is_asked_of_any_node_is_answered_while_one_of_them_is_dead(
    server: Kafka, place: KafkaPlace
) -> None:
    """The driver asks a random node, and takes long to notice which of them is dead."""
    link = open_link(server)
    topic = new_prefix()
    server.create_topic(topic, 2)  # Until all of them know it.
    server.nodes[0].kill()
    for _ in range(30):
        assert link.topics(topic) == [topic]
        assert link.partitions_of(topic) == 2
    link.close()


def test_a_link_that_ends_leaves_no_connection_open(server: Kafka) -> None:
    """Not even one whose node takes nothing, and has not got all that was written to it."""
    link = open_link(server)
    topic = new_prefix()
    link.create_topic(topic, 1, len(server.nodes), {})
    message = KafkaMessage(None, random.Random(1).randbytes(900_000))
    link.append({(topic, 0): [message]})
    leader = leader_of(server, topic)
    leader.pause()
    append = partial(link._append, {(topic, 0): [message] * 20})
    try:
        link.begin(append)
        time.sleep(0.5)  # So that some is written, more than sockets hold.
        link.close()
    finally:
        leader.resume()
    server.wait_until_ready()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        del link, append
        gc.collect()
    assert [str(each.message) for each in caught] == []


@pytest.mark.parametrize("end", [KafkaNode.kill, KafkaNode.stop])
def test_a_leader_ends_while_batches_are_on_their_way_and_each_message_is_there_once(
    server: Kafka, place: KafkaPlace, end: Callable[[KafkaNode], None]
) -> None:
    store = with_messages(place, MemoryStore(), BATCH)
    leader = leader_of(server, topic_name(store, place))
    ends_now, has_ended = threading.Event(), threading.Event()
    committed = [BATCH]

    def publish() -> None:
        while not has_ended.is_set() or committed[0] < 40 * BATCH:
            commit_at_last(store, appends(committed[0] + 1, committed[0] + BATCH))
            committed[0] += BATCH
            if committed[0] == 10 * BATCH:
                ends_now.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    ends_now.wait()
    end(leader)
    has_ended.set()
    publisher.join()
    topic = topic_name(store, place)
    while leader_of(server, topic) is leader:  # A node that has not heard of the new one yet.
        continue
    assert positions_at_last(store) == list(range(1, committed[0] + 1))
    store.close()


def test_two_of_three_nodes_die_and_come_back_and_nothing_acknowledged_is_lost(
    server: Kafka, place: KafkaPlace
) -> None:
    store = with_messages(place, MemoryStore(), 100)
    server.nodes[0].kill()
    commit_at_last(store, appends(101, 200))
    server.nodes[1].kill()
    # Only one of three has it, which is not enough for an acknowledgement.
    with pytest.raises(StallError):
        store.commit(appends(201, 300))
    server.nodes[0].start()
    server.nodes[1].start()
    commit_at_last(store, appends(201, 300))
    assert positions_at_last(store) == list(range(1, 301))
    store.close()


def test_the_broker_and_the_leader_die_between_the_commit_and_the_acknowledgement(
    server: Kafka, place: KafkaPlace
) -> None:
    """Acknowledged messages exist, and so do those that Kafka had; their positions are used."""
    base = MemoryStore()
    store = with_messages(place, base, 10)
    leader = leader_of(server, topic_name(store, place))
    plan = store._planned(appends(11, 20))
    at_last(lambda: store._write(plan))
    crash(store)
    leader.kill()
    again = opened_at_last(base, place)
    commit_at_last(again, appends(21, 30))
    assert positions_at_last(again) == list(range(1, 31))
    again.close()


def opened_at_last(base: MemoryStore, place: KafkaPlace) -> KafkaStore:
    """Open a store. Without a leader of its topic a broker does not start, so this tries again."""
    while True:
        with suppress(StallError):
            return open_store(base, place)


def test_retention_passes_a_sleeping_client_whose_topic_has_another_leader_since(
    server: Kafka, place: KafkaPlace
) -> None:
    base = MemoryStore()
    store = with_messages(place, base, 10)
    commit_at_last(store, [Settle("c", 2)])
    topic = topic_name(store, place)
    delete_before(server, topic, 5)
    leader_of(server, topic).kill()
    while not (found := positions_or_none(store)):
        continue
    assert found == [6, 7, 8, 9, 10]
    assert store.take_lost() == {"c": 4}
    store.close()


def positions_or_none(store: KafkaStore) -> list[int]:
    try:
        return positions(store)
    except StallError:
        return []


def test_a_topic_that_somebody_deletes_is_made_again_on_all_nodes(
    server: Kafka, place: KafkaPlace
) -> None:
    store = with_messages(place, MemoryStore(), 10)
    topic = topic_name(store, place)
    delete_topic(server, topic)
    commit_at_last(store, appends(11, 12))
    assert positions_at_last(store) == [11, 12]
    assert store.take_lost() == {"c": 10}
    assert topic_name(store, place) == topic
    store.close()
