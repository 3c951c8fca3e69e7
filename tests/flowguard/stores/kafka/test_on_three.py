"""Three nodes, of which two must have what is committed: nodes end or pause, topics are deleted,
retention passes a client and the broker is killed."""

import asyncio
import gc
import queue
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flowguard.errors import StallError
from flowguard.records import PutSession, Settle
from flowguard.stores import MemoryStore
from tests.flowguard.cli import test_serve_groups as groups
from tests.flowguard.stores.kafka.deletion import delete_topic
from tests.flowguard.stores.kafka.retention import delete_before
from tests.interop.broker import Broker
from tests.support.kafka import Kafka, KafkaNode, kafka
from tests.support.patience import HANG_S

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
MESSAGES = 100
"""Number of messages of each publisher, each time that a node ends."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka(tmp_path_factory.mktemp("kafka"), nodes=3) as server:
        yield server


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
            await asyncio.sleep(0.1)

    return server.nodes[server.call(ask) - 1]


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


def test_a_topic_that_somebody_deletes_is_made_again_on_all_nodes(
    server: Kafka,
) -> None:
    place = place_for(server)
    store = with_messages(place, MemoryStore(), 10)
    topic = topic_name(store, place)
    delete_topic(server, topic)
    commit_at_last(store, appends(11, 12))
    assert positions_at_last(store) == [11, 12]
    assert store.take_lost() == {"c": 10}
    assert topic_name(store, place) == topic
    store.close()


def test_each_of_three_nodes_ends_and_comes_back_and_nothing_acknowledged_is_lost(
    server: Kafka, tmp_path: Path
) -> None:
    """Nodes end that lead partitions, keep the roster, and coordinate the group."""
    first, second, third = server.nodes
    topic = new_prefix()
    server.create_topic(topic, 2)  # Until all of them know it.
    # With fewer nodes no store opens.
    waits = with_messages(place_for(server), MemoryStore(), 100)
    with groups.pair_of(tmp_path, server, new_prefix(), replicas=3) as brokers:
        group = Group(brokers)
        with group.publishing():
            killed = queues_outlive_their_leader(server, first, KafkaNode.kill)
        any_node_is_asked(server, topic)
        with group.publishing():
            one_node_of_three_is_not_enough(server, second, waits)
        server.wait_until_ready()
        with group.publishing():
            stopped = queues_outlive_their_leader(server, third, KafkaNode.stop)
        third.start()
        server.wait_until_ready()
        group.close()
    # What Kafka had exists, and its positions are used.
    for base, place in (killed, stopped):
        store = opened_at_last(base, place)
        commit_at_last(store, appends(2 * BATCH + 1, 3 * BATCH))
        assert positions_at_last(store) == list(range(1, 3 * BATCH + 1))
        store.close()


class Group:
    """Two members of a group on two brokers, and publishers on both."""

    def __init__(self, brokers: Sequence[Broker]) -> None:
        a, b = self._brokers = brokers
        self._got: queue.Queue[groups.Got] = queue.Queue()
        self._members = [
            groups.Member(a, "app-a", self._got),
            groups.Member(b, "app-b", self._got, qos=2),
        ]
        groups.probe(brokers, ["app-a", "app-b"], self._got)
        self._found: list[groups.Got] = []
        self._sent = 0

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Publish, wait until the first message has come, and at the end of the block for all."""
        first, self._sent = self._sent, self._sent + groups.PUBLISHERS * MESSAGES
        publishers = [
            threading.Thread(
                target=groups.publish,
                args=(self._brokers[each % 2], f"p{each}", f"t/{each}", payloads),
            )
            for each, payloads in enumerate(
                groups.numbers(at, at + MESSAGES) for at in range(first, self._sent, MESSAGES)
            )
        ]
        for thread in publishers:
            thread.start()
        self._found = groups.collected(self._got, first + 1, self._found)
        yield
        self._found = groups.collected(self._got, self._sent, self._found)
        for thread in publishers:
            thread.join(HANG_S)
        assert {each for *_, each in self._found} == set(groups.numbers(0, self._sent))

    def close(self) -> None:
        for member in self._members:
            member.close()


def place_for(server: Kafka) -> KafkaPlace:
    place = place_on(server, new_prefix())
    place.wait_s = 5.0
    return place


def queue_led_by(server: Kafka, node: KafkaNode) -> tuple[KafkaStore, MemoryStore, KafkaPlace]:
    """A store with messages in a queue that this node leads, its other store, and its place."""
    while True:
        base, place = MemoryStore(), place_for(server)
        store = with_messages(place, base, BATCH)
        if leader_of(server, topic_name(store, place)) is node:
            return store, base, place
        store.close()


def queues_outlive_their_leader(
    server: Kafka, leader: KafkaNode, end: Callable[[KafkaNode], None]
) -> tuple[MemoryStore, KafkaPlace]:
    """A leader ends while batches are on their way, after retention has passed a client that
    sleeps, and between a commit and its acknowledgement, together with the broker.

    Return the place of the last one's queue and its other store.
    """
    passed, _, of_passed = queue_led_by(server, leader)
    commit_at_last(passed, [Settle("c", 2)])
    delete_before(server, topic_name(passed, of_passed), 5)
    crashed, base, of_crashed = queue_led_by(server, leader)
    plan = crashed._planned(appends(BATCH + 1, 2 * BATCH))
    at_last(lambda: crashed._write(plan))
    crash(crashed)
    store, _, place = queue_led_by(server, leader)

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
        time.sleep(0.1)
    assert positions_at_last(store) == list(range(1, committed[0] + 1))
    store.close()

    while not (found := positions_or_none(passed)):
        time.sleep(0.1)
    assert found == list(range(6, BATCH + 1))
    assert passed.take_lost() == {"c": 4}
    passed.close()
    return base, of_crashed


def opened_at_last(base: MemoryStore, place: KafkaPlace) -> KafkaStore:
    """Open a store. Without a leader of its topic a broker does not start, so this tries again."""
    while True:
        with suppress(StallError):
            return open_store(base, place)


def positions_or_none(store: KafkaStore) -> list[int]:
    try:
        return positions(store)
    except StallError:
        return []


def any_node_is_asked(server: Kafka, topic: str) -> None:
    """The driver asks a random node, and takes long to notice which of them is dead."""
    assert not all(node.is_running for node in server.nodes)
    link = open_link(server)
    for _ in range(30):
        assert link.topics(topic) == [topic]
        assert link.partitions_of(topic) == 2
    link.close()


def one_node_of_three_is_not_enough(server: Kafka, node: KafkaNode, store: KafkaStore) -> None:
    """One node is dead already. The store waits, and all nodes start again."""
    node.kill()
    # Only one of three has it, which is not enough for an acknowledgement.
    with pytest.raises(StallError):
        store.commit(appends(101, 200))
    for each in server.nodes:
        if not each.is_running:
            each.start()
    commit_at_last(store, appends(101, 200))
    assert positions_at_last(store) == list(range(1, 201))
    store.close()
