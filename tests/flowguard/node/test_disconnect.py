import pytest

from flowguard.codec.packets import Connect, Disconnect, Pingreq, Pingresp, Puback, Subscribe, Will
from flowguard.types import MQTT_5, MQTT_311, Properties, Publish, ReasonCode, SubscriptionOptions
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


def test_what_comes_after_disconnect_is_not_looked_at(version: int) -> None:
    stage = Stage()
    watcher = witness(stage)
    client = stage.connect("c", version=version)
    client.send(Publish("will", b"before"), Disconnect(), Publish("will", b"after"))
    client.send(Publish("will", b"much later"))
    assert [message.payload for message in watcher.publishes()] == [b"before"]


def test_disconnect_waits_for_what_came_before_it(version: int) -> None:
    """It is no acknowledgement: it may not overtake messages that wait for the window."""
    stage = Stage()
    stage.connect_durable("s", version=version).subscribe("a", qos=1)
    stage.node.window.resize(1)
    client = stage.connect("c", version=version)
    stage.hold_commits = True
    client.send(*(Publish("a", b"%d" % n, 1, packet_id=n) for n in (1, 2, 3)), Disconnect())
    assert not client.is_closed
    stage.release_commits()
    assert client.is_closed
    assert [packet.packet_id for packet in client.take()] == [1, 2, 3]  # type: ignore[union-attr]
    again = stage.connect_durable("s", version=version)
    assert [message.payload for message in again.publishes()] == [b"1", b"2", b"3"]


def test_the_end_of_input_waits_for_what_came_before_it(version: int) -> None:
    stage = Stage()
    stage.connect_durable("s", version=version).subscribe("a", qos=1)
    stage.node.window.resize(1)
    client = stage.connect("c", version=version)
    stage.hold_commits = True
    client.send(*(Publish("a", b"%d" % n, 1, packet_id=n) for n in (1, 2, 3)))
    client.close()
    assert not client.is_closed
    stage.release_commits()
    assert client.is_closed
    assert len(stage.connect_durable("s", version=version).publishes()) == 3


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


# --- from the server -------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.14.4-1", "MQTT-3.14.4-2", "MQTT-3.14.2-2")
def test_after_disconnect_the_server_sends_nothing_and_closes() -> None:
    stage = Stage()
    stage.connect_durable("s").subscribe("a", qos=1)
    client = stage.connect("c")
    client.subscribe("a", qos=1)
    stage.hold_commits = True
    client.send(
        Publish("a", b"x", 1, packet_id=1),
        Subscribe(2, (("b", SubscriptionOptions()),)),
        Connect("c"),
    )
    stage.release_commits()
    stage.connect("p").publish("a", b"y", qos=1)
    (goodbye,) = client.take()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.properties.session_expiry_interval is None
    assert client.is_closed
    client.send(Pingreq())
    assert client.take() == []


@pytest.mark.spec("MQTT-3.14.4-1")
def test_what_was_answered_before_is_still_sent() -> None:
    client = Stage().connect("c")
    client.send(Pingreq(), Publish("a", b"x", 1, packet_id=1), Connect("c"))
    assert [type(packet) for packet in client.take()] == [Pingresp, Puback, Disconnect]


@pytest.mark.spec("MQTT-3.14.0-1")
@pytest.mark.parametrize(
    "first",
    [
        b"\x10\x00",
        b"\x10\x0d\x00\x04MQTT\x05\x01\x00\x00\x00\x00\x00",
        b"\xc0\x00",
        b"\xff\xff\xff\xff\xff",
    ],
    ids=["no CONNECT body", "reserved connect flag", "PINGREQ", "noise"],
)
def test_before_connack_there_is_no_disconnect(first: bytes) -> None:
    client = Stage().open()
    client.send_bytes(first)
    assert client.is_closed
    assert Disconnect not in {type(packet) for packet in client.take()}


def test_3_1_1_is_closed_without_a_word() -> None:
    client = Stage().connect("c", version=MQTT_311)
    client.send(Connect("c", MQTT_311))
    assert client.take() == []
    assert client.is_closed


def disconnected_by_mistake(maximum_packet_size: int) -> Client:
    client = Stage().connect("c", maximum_packet_size=60)
    client.connection.outbound.limit_packets(Properties(maximum_packet_size=maximum_packet_size))
    client.raw.clear()
    client.send(Connect("c"))
    assert client.is_closed
    return client


@pytest.mark.spec("MQTT-3.14.2-1", "MQTT-3.14.2-3", "MQTT-3.14.2-4")
def test_its_reason_string_is_left_out_exactly_where_it_would_not_fit() -> None:
    full = disconnected_by_mistake(60)
    (packet,) = full.take()
    assert isinstance(packet, Disconnect)
    assert packet.reason_code == ReasonCode.PROTOCOL_ERROR
    assert packet.properties.reason_string
    size_bytes = len(full.raw)
    assert disconnected_by_mistake(size_bytes).take() == [packet]
    assert disconnected_by_mistake(size_bytes - 1).take() == [Disconnect(packet.reason_code)]
    assert disconnected_by_mistake(3).take() == [Disconnect(packet.reason_code)]
    assert disconnected_by_mistake(2).take() == []


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
    assert stage.node.queue_budget.used_bytes == 0


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
    assert stage.node.queue_budget.used_bytes == 0
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
    """Resumed with an expiry of 0 by who was killed with it: all of it goes, in the store, too."""
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
