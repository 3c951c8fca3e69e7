"""A batch that does not fit on the disk waits; other work goes on, and nothing becomes slow."""

import pytest

from flowguard.codec.packets import Connack, Connect
from flowguard.types import MQTT_5, MQTT_311, NO_PROPERTIES, Properties, ReasonCode
from tests.support.stage import Client, Stage, StoreOnDisk

QUOTA_EXCEEDED = ReasonCode.QUOTA_EXCEEDED
DURABLE = Properties(session_expiry_interval=3_600)


def attempt(stage: Stage, client_id: str, *, durable: bool, clean_start: bool = True) -> Client:
    properties = DURABLE if durable else NO_PROPERTIES
    return stage.attempt(Connect(client_id, MQTT_5, clean_start, properties=properties))


def refused_stage(*client_ids: str) -> Stage:
    """The disk has no space for the durable CONNECTs of these clients."""
    stage = Stage()
    stage.hold_commits = True
    for client_id in client_ids:
        attempt(stage, client_id, durable=True)
    return stage


def test_time_that_passes_without_room_is_no_slow_commit() -> None:
    stage = refused_stage("first")
    stage.node.no_space(stage.now_s)
    stage.advance(60.0)
    assert stage.node.guard.grant.pressure.value == 0.0
    for number in range(100):
        clean = attempt(stage, f"clean-{number}", durable=False)
        assert clean.expect(Connack).reason_code == 0
    assert stage.node.journal.committing_s(stage.now_s) == 0.0
    stage.release_commits()
    stage.node.observe_store(stage.store.load())
    assert not stage.node.state.read_only
    assert stage.connect_durable("first").connack.session_present is False


def test_a_commit_that_is_only_slow_still_says_so() -> None:
    stage = refused_stage("first")
    stage.advance(60.0)
    assert stage.node.guard.grant.pressure.value > 1.0


@pytest.mark.parametrize("count", [1, 2, 20])
def test_every_claim_is_answered_at_once(count: int) -> None:
    """In commit, behind it, durable or not."""
    stage = Stage()
    stage.hold_commits = True
    durable = [attempt(stage, f"d{number}", durable=True) for number in range(count)]
    clean = [attempt(stage, f"c{number}", durable=False) for number in range(count)]
    stage.node.no_space(stage.now_s)
    stage.settle()
    for client in durable:
        assert client.expect(Connack).reason_code == QUOTA_EXCEEDED
        assert client.is_closed
    for client in clean:
        assert client.expect(Connack).reason_code == 0
    assert list(stage.node.registry.sessions) == [f"c{number}" for number in range(count)]
    assert stage.node.guard.gate.in_process == 0
    stage.release_commits()
    assert [client.take() for client in clean] == [[]] * count
    assert [record.client_id for record in stage.store.sessions()] == []


def test_a_session_that_would_have_been_resumed_goes_on() -> None:
    stage = Stage()
    client = stage.connect_durable("d")
    client.subscribe("t", qos=1)
    client.close()
    stage.hold_commits = True
    again = attempt(stage, "d", durable=True, clean_start=False)
    stage.node.no_space(stage.now_s)
    stage.settle()
    assert again.expect(Connack).reason_code == QUOTA_EXCEEDED
    for durable in (True, False):
        later = attempt(stage, "d", durable=durable, clean_start=False)
        assert later.expect(Connack).reason_code == QUOTA_EXCEEDED
    stage.release_commits()
    stage.node.observe_store(stage.store.load())
    assert stage.connect_durable("d").connack.session_present
    assert list(stage.node.registry.sessions["d"].subscriptions) == ["t"]


@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
@pytest.mark.parametrize("qos", [1, 2])
def test_client_of_a_kept_session_takes_its_queue_out_of_a_full_store(
    version: int, qos: int
) -> None:
    stage = Stage(store=StoreOnDisk())
    client = stage.connect_durable("d", version=version)
    client.subscribe("t", qos=qos)
    client.close()
    publisher = stage.connect("p")
    for number in range(600):
        publisher.publish("t", b"%d" % number, qos=qos)
    stage.node.state.read_only = True
    again = stage.connect_durable("d", version=version)
    assert again.connack.session_present
    assert [int(message.payload) for message in again.publishes()] == list(range(600))
    assert stage.store.fetch("d", 0, 1_000) == []
    again.close()
    assert stage.connect_durable("d", version=version).connack.session_present
    new = stage.attempt(Connect("new", MQTT_5, properties=DURABLE))
    assert new.expect(Connack).reason_code == QUOTA_EXCEEDED
