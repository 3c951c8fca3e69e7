"""A queue that the store cannot read is held back and reported; all other clients are served."""

import pytest

from flowguard.codec.packets import Disconnect
from flowguard.errors import StoreError
from flowguard.ops.explain import explain
from flowguard.types import ReasonCode
from tests.support.on_disk import DamagedStore
from tests.support.readings import payloads
from tests.support.stage import Client, Stage

COUNT = 40


def stage_with_backlogs(
    *names: str, policy: str = "drop-new"
) -> tuple[Stage, DamagedStore, Client]:
    """Offline clients, with the same queued messages for each."""
    store = DamagedStore()
    stage = Stage({"session": {"queue_policy": policy, "queue_messages_max": COUNT}}, store=store)
    for name in names:
        client = stage.connect_durable(name)
        client.subscribe("t", qos=1)
        client.close()
    publisher = stage.connect("p")
    for number in range(COUNT):
        publisher.publish("t", b"%d" % number, qos=1)
    return stage, store, publisher


EVERYTHING = [b"%d" % number for number in range(COUNT)]


def test_who_waits_in_a_damaged_queue_is_told_and_loses_nothing() -> None:
    stage, store, _ = stage_with_backlogs("a", "b")
    store.damaged = "a"
    for attempt in (1, 2):
        client = stage.connect_durable("a")
        assert client.publishes() == []
        code = client.expect(Disconnect).reason_code
        assert code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        assert client.is_closed
        assert stage.node.counters.pages_unreadable == attempt
        found = explain(stage.node, "a", stage.now_s)
        assert found is not None
        assert found["damage"] == "a block of it has changed"
        assert found["queue_messages"]["used"] == COUNT
    assert payloads(stage.connect_durable("b")) == EVERYTHING
    store.damaged = None
    assert payloads(stage.connect_durable("a")) == EVERYTHING
    found = explain(stage.node, "a", stage.now_s)
    assert found is not None
    assert found["damage"] == ""
    assert stage.node.counters.dropped == {}


def test_a_damaged_shared_queue_stops_and_its_members_are_served_on() -> None:
    store = DamagedStore()
    stage = Stage(store=store)
    member = stage.connect_durable("m")
    member.subscribe("$share/g/t", "own", qos=1)
    member.close()
    publisher = stage.connect("p")
    for number in range(COUNT):
        publisher.publish("t", b"%d" % number, qos=1)
    stage.restart()
    (name,) = (each for each in store._sessions if each != "m")
    store.damaged = name
    member = stage.connect_durable("m")
    publisher = stage.connect("p")
    publisher.publish("own", b"x", qos=1)
    assert payloads(member) == [b"x"]
    assert not member.is_closed
    assert stage.node.counters.pages_unreadable == 1
    assert stage.node.counters.dropped == {}


def test_where_everything_must_be_in_memory_damage_is_an_error_at_the_start() -> None:
    stage, store, _ = stage_with_backlogs("a")
    store.damaged = "a"
    store.on_disk = False
    with pytest.raises(StoreError, match="has changed"):
        stage.restart()
