"""A commit names sessions that another broker owns now: they end on this one, and no publisher gets
an acknowledgement for a message to them."""

from collections.abc import Sequence

import pytest

from flowguard.codec.packets import Connack, Disconnect, Puback, Pubrec, Will
from flowguard.records import DropSession, PutSession, StoreOp
from flowguard.stores import Fenced, MemoryStore
from flowguard.types import MQTT_5, MQTT_311, Publish, ReasonCode
from tests.support.stage import Stage


class SharedStore(MemoryStore):
    """Another broker owns the sessions in `taken`; nothing is written for them."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: set[str] = set()
        self.refused: list[StoreOp] = []

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        theirs = [op for op in ops if getattr(op, "client_id", None) in self.taken]
        super().commit([op for op in ops if op not in theirs])
        self.refused += theirs
        return frozenset(op.client_id for op in theirs)  # type: ignore[union-attr]


@pytest.fixture
def store() -> SharedStore:
    return SharedStore()


@pytest.fixture
def stage(store: SharedStore) -> Stage:
    return Stage(store=store)


def test_its_connection_ends_with_0x8e_and_its_will_is_not_published(
    stage: Stage, store: SharedStore
) -> None:
    watcher = stage.connect("w")
    watcher.subscribe("gone", qos=0)
    lost = stage.connect("c", session_expiry_interval=100, will=Will("gone", b"", 0, False))
    lost.subscribe("t", qos=1)
    store.taken = {"c"}
    stage.connect("p").publish("t", b"x", qos=1)
    assert lost.expect(Disconnect).reason_code == ReasonCode.SESSION_TAKEN_OVER
    assert lost.is_closed
    assert watcher.publishes() == []
    assert "c" not in stage.node.registry.sessions
    assert not any(isinstance(op, DropSession) for op in store.refused)


def test_who_can_be_told_hears_that_the_message_went_nowhere(
    stage: Stage, store: SharedStore
) -> None:
    stage.connect_durable("c").subscribe("t", qos=1)
    store.taken = {"c"}
    publisher = stage.connect("p", version=MQTT_5)
    publisher.publish("t", b"x", qos=1)
    (answer,) = [packet for packet in publisher.inbox if isinstance(packet, Puback)]
    assert answer.reason_code == ReasonCode.QUOTA_EXCEEDED


@pytest.mark.parametrize("qos", [1, 2])
def test_who_cannot_be_told_has_no_answer_and_sends_it_again(
    stage: Stage, store: SharedStore, qos: int
) -> None:
    stage.connect_durable("c").subscribe("t", qos=2)
    store.taken = {"c"}
    publisher = stage.connect_durable("p", version=MQTT_311)
    publisher.send(Publish("t", b"x", qos, packet_id=7))
    assert not [packet for packet in publisher.inbox if isinstance(packet, Puback | Pubrec)]
    assert publisher.is_closed
    (record,) = [each for each in store.sessions() if each.client_id == "p"]
    assert record.inbound_ids == set()


def test_all_others_of_the_batch_are_served(stage: Stage, store: SharedStore) -> None:
    other = stage.connect("d", session_expiry_interval=100)
    other.subscribe("u", qos=1)
    stage.connect_durable("c").subscribe("t", qos=1)
    store.taken = {"c"}
    publisher = stage.connect("p")
    stage.hold_commits = True
    publisher.publish("t", b"x", qos=1)
    publisher.publish("u", b"y", qos=1)
    stage.release_commits()
    assert [each.payload for each in other.publishes()] == [b"y"]


def test_a_connect_to_a_session_of_another_broker_is_refused(
    stage: Stage, store: SharedStore
) -> None:
    store.taken = {"c"}
    told: list[str] = []
    stage.node.on_turned_away = lambda connection, reason, why: told.append(why)
    stage.hold_commits = True
    client = stage.connect("c", session_expiry_interval=100)
    stage.release_commits()
    assert client.expect(Connack).reason_code == ReasonCode.SERVER_UNAVAILABLE
    assert told == ["its session belongs to another broker"]
    assert [op.__class__ for op in store.refused if isinstance(op, PutSession)]
    assert "c" not in stage.node.registry.sessions
