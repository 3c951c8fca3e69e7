"""Defects of TBMQ's way to an application (`benchmarks.kafka.literal`), each found in it, and not
in ours."""

import time
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest

from flowguard.errors import StallError
from flowguard.records import Append, Delivery, PutSession, Release, Sent, packet_id_of
from flowguard.stores import MemoryStore
from flowguard.types import Publish
from tests.support.kafka import Kafka, KafkaNode, kafka, shared_kafka
from tests.support.patience import HANG_S

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from benchmarks.kafka.literal import RETRIES, LiteralApplication
from flowguard.stores.kafka.store import KafkaStore
from tests.flowguard.stores.kafka.benches import new_prefix, open_store, place_on
from tests.flowguard.stores.kafka.test_store import commit_at_last, crash

pytestmark = pytest.mark.slow

FETCH_S = 1.0
"""Twice as long as a server keeps a follower waiting for something new."""
HURRY_S = 5.0
READS_MAX = int(HANG_S)
"""Of a second each."""
Sending = list[tuple[int, bytes | None]]


class Application(Protocol):
    """A client that consumes everything, as its broker sees it."""

    @property
    def topic(self) -> str:
        """What is in it is acknowledged to publishers."""

    def publish(self, payload: bytes) -> None:
        """Returns when the publisher is answered."""

    def hurry(self) -> None:
        """From now on it gives up after seconds what Kafka does not answer."""

    def read(self) -> Sending:
        """What is sent to it now, and to be answered under which number; None: PUBREL."""

    def received(self, number: int) -> None:
        """PUBREC."""

    def leave(self) -> None:
        """It disconnects, and comes back."""

    def crash(self) -> None:
        """The broker is killed and starts again."""

    def close(self) -> None:
        """It ends."""


class Ours:
    def __init__(self, server: Kafka) -> None:
        self._base, self._place = MemoryStore(), place_on(server, new_prefix())
        self._store: KafkaStore = open_store(self._base, self._place)
        commit_at_last(self._store, [PutSession("c", 10, None, True)])
        self._pos = 0

    @property
    def topic(self) -> str:
        return self._store._queues["c"].topic

    def publish(self, payload: bytes) -> None:
        self._pos += 1
        delivery = Delivery(Publish("t", payload, 2), 2, False, (), float("inf"))
        self._store.commit([Append("c", self._pos, delivery)])

    def hurry(self) -> None:
        self._store._link.wait_s = HURRY_S

    def read(self) -> Sending:
        found = self._store.fetch("c", 0, 100)
        self._store.commit([Sent("c", self._pos)])
        return [
            (each.pos, None if each.delivery is None else each.delivery.message.payload)
            for each in found
        ]

    def received(self, number: int) -> None:
        self._store.commit([Release("c", number, packet_id_of(number, 2))])

    def close(self) -> None:
        self._store.close()

    def leave(self) -> None:
        self.close()
        self._store = open_store(self._base, self._place)

    def crash(self) -> None:
        crash(self._store)
        self._store = open_store(self._base, self._place)


class Literal:
    def __init__(self, server: Kafka) -> None:
        prefix = new_prefix()
        self._server, self.topic, self._own = server, f"{prefix}.all", f"{prefix}.app"
        server.create_topic(self.topic)
        server.create_topic(self._own)
        self._unrouted = 0
        self._contexts: dict[str, dict[int, bool]] = {}
        self._start()

    def _start(self) -> None:
        self._application = LiteralApplication(
            self._server.servers, self.topic, self._own, self._contexts
        )

    def publish(self, payload: bytes) -> None:
        self._application.publish([payload])
        self._unrouted += 1

    def hurry(self) -> None:
        """It has nothing to wait for: the leader is there."""

    def read(self) -> Sending:
        self._application.route(self._unrouted)
        self._unrouted = 0
        for _ in range(READS_MAX):  # Its group may have no coordinator yet.
            if found := self._application.read():
                return found
        raise AssertionError(f"nothing came in {READS_MAX} reads")

    def received(self, number: int) -> None:
        self._application.received(number)

    def close(self) -> None:
        self._application.crash()

    def leave(self) -> None:
        self._application.disconnect()
        self._start()

    def crash(self) -> None:
        self._application.crash()
        self._start()


def remembers_what_was_received(application: Application, *, killed: bool) -> bool:
    """After PUBREC the client owns the message: PUBREL comes, and never the message again."""
    with closing(application):
        application.publish(b"one")
        ((number, _),) = application.read()
        application.received(number)
        if killed:
            application.crash()
        else:
            application.leave()
        return application.read() == [(number, None)]


def keeps_what_is_not_acknowledged(application: Application, tries: int) -> bool:
    """However often it was sent."""
    with closing(application):
        application.publish(b"one")
        for _ in range(tries):
            assert payloads(application) == [b"one"]
        application.publish(b"two")
        before = payloads(application)
        application.crash()
        return b"one" in before and b"one" in payloads(application)


def payloads(application: Application) -> list[bytes | None]:
    return [payload for _, payload in application.read()]


def acknowledges_what_one_node_has(application: Application, server: Kafka) -> bool:
    """Its followers stand still: who is told now loses the message with the leader."""
    with closing(application):
        application.publish(b"one")
        assert payloads(application) == [b"one"]
        others = followers(server, application.topic)
        for node in others:
            node.pause()
        time.sleep(FETCH_S)  # Else it is in a follower's socket already.
        application.hurry()
        try:
            application.publish(b"two")
        except StallError:
            return False
        finally:
            for node in others:
                node.resume()
        return True


def followers(server: Kafka, topic: str) -> list[KafkaNode]:
    (found,) = server.call(lambda admin: admin.describe_topics([topic]))
    leader = str(found["partitions"][0]["leader"])
    return [node for node in server.nodes if node.properties["node.id"] != leader]


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_received_is_remembered(killed: bool) -> None:
    assert remembers_what_was_received(Ours(shared_kafka()), killed=killed)


def test_state_that_is_written_when_a_client_leaves_is_found_out() -> None:
    assert remembers_what_was_received(Literal(shared_kafka()), killed=False), "as it is meant"
    assert not remembers_what_was_received(Literal(shared_kafka()), killed=True)


def test_nothing_is_passed_over_after_several_tries() -> None:
    assert keeps_what_is_not_acknowledged(Ours(shared_kafka()), 4 * (RETRIES + 1))


def test_a_pack_that_is_passed_over_after_three_retries_is_found_out() -> None:
    assert keeps_what_is_not_acknowledged(Literal(shared_kafka()), RETRIES), "as it is meant"
    assert not keeps_what_is_not_acknowledged(Literal(shared_kafka()), RETRIES + 1)


@pytest.mark.long
def test_what_only_the_leader_has_is_acknowledged_to_nobody(tmp_path: Path) -> None:
    with kafka(tmp_path, nodes=3) as server:
        assert not acknowledges_what_one_node_has(Ours(server), server)
        assert acknowledges_what_one_node_has(Literal(server), server), "who trusts it is found out"
