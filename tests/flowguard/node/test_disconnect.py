import pytest

from flowguard.codec.packets import Disconnect, Will
from flowguard.types import MQTT_5, MQTT_311, Publish, ReasonCode
from tests.support.stage import Client, Stage

WILL = Will("will", b"gone", 1)


def witness(stage: Stage) -> Client:
    client = stage.connect("witness")
    client.subscribe("will", qos=1)
    return client


# --- from the client -------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.14.4-3", "v3:MQTT-3.14.4-3")
def test_disconnect_discards_the_will(version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version, will=WILL)
    client.send(Disconnect())
    assert client.is_closed
    assert witness(stage).publishes() == []
    stage.restart()
    assert not [record for record in stage.store.sessions() if record.will is not None]


def test_disconnect_0x04_keeps_the_will() -> None:
    stage = Stage()
    watcher = witness(stage)
    stage.connect("c", will=WILL).send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL))
    assert [message.payload for message in watcher.publishes()] == [b"gone"]


@pytest.mark.spec("MQTT-3.14.1-1", "v3:MQTT-3.14.1-1")
def test_reserved_bits_in_disconnect_are_malformed_and_the_will_goes_out(version: int) -> None:
    stage = Stage()
    watcher = witness(stage)
    client = stage.connect("c", version=version, will=WILL)
    client.send_bytes(b"\xe1\x00")
    assert client.is_closed
    if version == MQTT_5:
        assert client.expect(Disconnect).reason_code == ReasonCode.MALFORMED_PACKET
    assert client.take() == []
    assert len(watcher.publishes()) == 1


# --- what is left ----------------------------------------------------------------------------


@pytest.mark.spec("MQTT-4.1.0-1", "v3:MQTT-4.1.0-1", "v3:MQTT-4.1.0-2")
def test_a_session_lasts_as_long_as_its_connection(version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version)
    client.subscribe("a", qos=1)
    stage.advance(100)
    publisher = stage.connect("p", version=version)
    publisher.publish("a", b"x", qos=1)
    assert [message.payload for message in client.publishes()] == [b"x"]


@pytest.mark.spec("MQTT-4.1.0-2", "v3:MQTT-4.1.0-1")
def test_a_session_that_is_over_leaves_nothing_behind(version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version)
    client.subscribe("a", "$share/g/b", qos=2)
    publisher = stage.connect_durable("p", version=version)
    for topic in ("a", "b"):
        publisher.publish(topic, b"x", qos=2)
    assert len(client.publishes(acknowledge=False)) == 2
    client.close()
    assert "c" not in stage.node.registry.sessions
    assert len(stage.node.router.table) == 0
    assert [record.client_id for record in stage.store.sessions()] == ["p"]
    assert stage.node.state.queue_budget.used_bytes == 0


@pytest.mark.spec("MQTT-4.1.0-2")
def test_an_expired_session_is_gone_from_the_store_too() -> None:
    stage = Stage()
    client = stage.connect_durable("c", session_expiry_interval=10)
    client.subscribe("a", qos=1)
    client.close()
    stage.connect("p").publish("a", b"x", qos=1)
    stage.advance(11)
    assert list(stage.store.sessions()) == []
    assert stage.store.fetch("c", 0, 10) == []
    assert stage.node.state.queue_budget.used_bytes == 0
    assert not stage.connect_durable("c").connack.session_present


@pytest.mark.spec("v3:MQTT-4.1.0-1")
def test_a_kept_session_of_3_1_1_has_all_of_its_state_after_a_restart() -> None:
    stage = Stage()
    client = stage.connect_durable("c", version=MQTT_311)
    client.subscribe("a", qos=2)
    client.send(Publish("b", b"x", 2, packet_id=5))
    stage.connect("p").publish("a", b"sent", qos=2)
    client.close()
    stage.connect("p").publish("a", b"waiting", qos=1)
    stage.restart()
    (record,) = stage.store.sessions()
    assert (record.client_id, set(record.subscriptions), record.inbound_ids) == ("c", {"a"}, {5})
    again = stage.connect_durable("c", version=MQTT_311)
    assert again.connack.session_present
    assert [message.payload for message in again.publishes()] == [b"sent", b"waiting"]


def test_a_session_that_was_to_end_with_its_connection_has_ended_after_a_restart(
    version: int,
) -> None:
    """A client resumed the session with an expiry of 0 and died with the node. All of the session
    ends, in the store, too."""
    stage = Stage()
    watcher = stage.connect_durable("watcher")
    watcher.subscribe("will", qos=1)
    stage.connect_durable("c", version=version).subscribe("a", qos=1)
    stage.connect("c", version=MQTT_5, clean_start=False, will=WILL)
    stage.restart()
    stage.connect("p").publish("a", b"to nobody", qos=1)
    client = stage.connect_durable("c", version=version)
    assert not client.connack.session_present
    client.send(Publish("b", b"x", 2, packet_id=5))
    stage.connect("p").publish("will", b"before", qos=0)
    assert [message.topic for message in stage.connect_durable("watcher").publishes()] == ["will"]
    stage.restart()
    records = {record.client_id: record for record in stage.store.sessions()}
    assert not records["c"].subscriptions
    assert records["c"].inbound_ids == {5}
    stage.connect("p").publish("a", b"to nobody", qos=1)
    assert stage.connect_durable("c", version=version).publishes() == []
