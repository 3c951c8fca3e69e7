"""A burst for one durable session equals its packets one by one, and is handled as one.

The store gets its messages. A session that is offline, or has little capacity, gets them as always.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Disconnect, Puback
from flowguard.node.connect.authentication import Hooks
from flowguard.session.inbound.packets import RUN_MAX
from flowguard.session.session import Session
from flowguard.stores import MemoryStore
from flowguard.types import MQTT_5, MQTT_311, Publish, ReasonCode
from tests.flowguard.node.test_bursts import (
    MIXED,
    SETTINGS,
    Everybody,
    frames,
    mixed,
    numbered,
    state,
)
from tests.support.stage import Client, Stage, StoreOnDisk

STEPS = (
    "hold",
    "release",
    "s goes",
    "s comes",
    "s reads on",
    "p goes",
    "time passes",
    "s begins anew",
)
steps = st.lists(
    st.sampled_from(STEPS)
    | st.tuples(
        st.sampled_from(("a/b", "a/c")),
        st.sampled_from((b"", b"x" * 16, b"y" * 200, b"long" * 500)),
        st.integers(1, RUN_MAX),  # In one run: nothing is sent, or stored, in between.
    ),
    min_size=1,
    max_size=14,
)
STORES = {"memory": MemoryStore, "disk": StoreOnDisk}


class Play:
    """A publisher, and one durable session that wants all of it; told after each step."""

    def __init__(self, name: str, store: str, version: int, wanted: int, hooks: Hooks) -> None:
        self.version = version
        self.stage = Stage(SETTINGS[name], store=STORES[store](), hooks=hooks)
        self.client = self.stage.connect_durable("s", version=version)
        self.client.subscribe("a/#", qos=wanted)
        self.publisher = self.stage.connect("p", version=version)
        for topic in ("a/b", "a/c"):
            self.publisher.publish(topic)
        self.sent = 0
        self.told: list[object] = []
        self.received: list[tuple[str, bytes]] = []

    def step(self, step: str | tuple[str, bytes, int]) -> None:
        if isinstance(step, tuple):
            self._publish(*step)
        else:
            getattr(self, "_" + step.replace(" ", "_"))()
        if not self.client.is_closed:
            self.received += [(each.topic, each.payload) for each in self.client.publishes()]
        self.told += state(self.stage, [self.client, self.publisher])
        self.told.append(self.stage.store.fetch("s", 0, 1_000))

    def _hold(self) -> None:
        self.stage.hold_commits = True

    def _release(self) -> None:
        self.stage.release_commits()

    def _s_goes(self) -> None:
        self.client.close()

    def _s_comes(self) -> None:
        if not self.stage.hold_commits:
            self.client = self.stage.connect_durable("s", version=self.version)

    def _s_reads_on(self) -> None:
        self.client.reads = not self.client.reads
        if self.client.reads:
            self.client.read_again()

    def _p_goes(self) -> None:
        if not self.stage.hold_commits:
            self.publisher = self.stage.connect("p", version=self.version)

    def _time_passes(self) -> None:
        self.stage.advance(0.2)

    def _s_begins_anew(self) -> None:
        if not self.stage.hold_commits:
            self.client.close()
            self.stage.connect("s", version=self.version).close()
            self._s_comes()
            self.client.subscribe("a/b", qos=1)

    def _publish(self, topic: str, payload: bytes, count: int) -> None:
        if self.publisher.is_closed:
            return
        packets = numbered([(Publish(topic, payload, 1), count)], self.sent, self.version)
        self.sent += count
        self.publisher.send_bytes(b"".join([encode(each, self.version) for each in packets]))


def contents(told: list[object]) -> list[object]:
    """With what the store has by value: positions, identifiers, topics and payloads."""
    return [
        [(entry.pos, entry.packet_id, entry.delivery and entry.delivery.message) for entry in each]
        if isinstance(each, list) and each and hasattr(each[0], "pos")
        else each
        for each in told
    ]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", ["plain", "small window", "small inflight", "short queue"])
@given(version=st.sampled_from((MQTT_311, MQTT_5)), steps=steps, wanted=st.sampled_from((0, 1, 2)))
def test_it_comes_to_the_same_as_its_packets_one_by_one(
    name: str, store: str, version: int, wanted: int, steps: list[Any]
) -> None:
    found = []
    for hooks in (Hooks(), Hooks(authorizer=Everybody())):
        play = Play(name, store, version, wanted, hooks)
        for step in (*steps, "release", "s reads on", "s comes", "time passes"):
            play.step(step)
        found.append((contents(play.told), play.received))
    assert found[0] == found[1]


def staged(version: int, **connect: Any) -> tuple[Stage, Client, Client]:
    """A stage that holds its commits, a durable subscriber, and a publisher whose topics are
    known."""
    stage = Stage()
    client = stage.connect_durable("s", version=version, **connect)
    client.subscribe("a/#", qos=1)
    publisher = stage.connect("p", version=version)
    for topic, _ in MIXED:
        publisher.publish(topic)
    client.publishes()
    stage.hold_commits = True
    return stage, client, publisher


def session_of(client: Client) -> Session:
    session = client.connection.session
    assert session is not None
    return session


def test_it_is_sent_and_answered_in_one_piece_when_the_store_has_each_message(version: int) -> None:
    stage, client, publisher = staged(version)
    publisher.send_bytes(mixed(version, 1))
    assert stage.held is not None
    assert len(stage.held.continuations) == len(MIXED), "all are counted as in process"
    assert not publisher.inbox, "owned first"
    batch, stage.held = stage.held, None
    stage.make_durable(batch)
    entries = stage.store.fetch("s", 0, 100)
    messages = [entry.delivery.message for entry in entries if entry.delivery is not None]
    assert [(each.topic, each.payload) for each in messages] == MIXED
    stage.answer()
    assert len(client.connection.outbound.outbox.frames) == 1
    assert len(publisher.connection.outbound.outbox.frames) == 1
    stage.release_commits()
    assert [publisher.expect(Puback).packet_id for _ in MIXED] == [1, 2, 3, 4, 5]
    received = client.publishes()
    assert [(packet.topic, packet.payload) for packet in received] == MIXED
    assert not stage.store.fetch("s", 0, 100)
    for budget in (stage.node.state.inflight.budget, stage.node.state.queue_budget):
        assert (budget.used_bytes, budget.holders_count) == (0, 0)


def test_whose_client_has_gone_meanwhile_keeps_all_of_it_and_its_publisher_is_answered(
    version: int,
) -> None:
    stage, client, publisher = staged(version)
    publisher.send_bytes(frames(9, version))
    client.close()
    stage.release_commits()
    assert len([each for each in publisher.take() if isinstance(each, Puback)]) == 9
    stage.restart()
    again = stage.connect_durable("s", version=version)
    assert [each.payload for each in again.publishes()] == [bytes((number,)) for number in range(9)]


def test_a_session_that_has_ended_meanwhile_is_answered_for(version: int) -> None:
    stage, client, publisher = staged(version)
    publisher.send_bytes(frames(9, version))
    client.close()
    session = session_of(client)
    stage.node.registry.end(session, stage.now_s)
    stage.release_commits()
    assert len([each for each in publisher.take() if isinstance(each, Puback)]) == 9
    assert not stage.node.guard.window.in_process


def test_what_does_not_fit_into_the_receive_maximum_is_sent_one_by_one() -> None:
    stage, client, publisher = staged(MQTT_5, receive_maximum=4)
    publisher.send_bytes(frames(9, MQTT_5))
    stage.release_commits()
    received = client.publishes(acknowledge=False)
    assert len(received) == 4
    assert session_of(client).queue.count == 5
    for packet in received:
        client.send(Puback(packet.packet_id))
    assert len(client.publishes()) == 5


@pytest.mark.parametrize("most", [5, 8, 9, 10])
def test_more_than_the_receive_maximum_is_refused_at_the_same_packet(most: int) -> None:
    """[MQTT-3.3.4-7] those before it are published."""
    found = []
    for hooks in (Hooks(), Hooks(authorizer=Everybody())):
        stage = Stage({"session": {"receive_maximum": most}}, hooks=hooks)
        client = stage.connect_durable("s")
        client.subscribe("a/b", qos=1)
        publisher = stage.connect("p")
        publisher.publish("a/b")
        stage.hold_commits = True
        publisher.send_bytes(frames(4, MQTT_5))
        publisher.send_bytes(frames(5, MQTT_5))
        stage.release_commits()
        codes = [each.reason_code for each in publisher.take() if isinstance(each, Disconnect)]
        found.append((len(client.publishes()), codes))
    assert found[0] == found[1]
    assert found[0][1] == ([] if most >= 9 else [ReasonCode.RECEIVE_MAXIMUM_EXCEEDED])
