"""Keep-alive: one and a half periods of silence, and never because of the server itself."""

import pytest

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Disconnect, Pingreq, Pingresp, Puback, Will
from flowguard.types import MQTT_311, Publish, ReasonCode
from tests.support.stage import Client, Stage


@pytest.mark.spec("MQTT-3.1.2-22", "v3:MQTT-3.1.2-24")
def test_a_client_silent_for_one_and_a_half_periods_is_closed(version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version, keep_alive_s=20)
    stage.advance(29.9)
    assert not client.is_closed
    stage.advance(0.3)  # A slot of the wheel is a tenth of a second.
    assert client.is_closed


def test_a_client_of_5_is_told_why() -> None:
    stage = Stage()
    client = stage.connect("c", keep_alive_s=10)
    stage.advance(17)
    assert client.expect(Disconnect).reason_code == ReasonCode.KEEP_ALIVE_TIMEOUT


@pytest.mark.spec("MQTT-3.1.2-22", "v3:MQTT-3.1.2-24")
def test_silence_counts_as_a_failure_of_the_network_so_the_will_is_published(version: int) -> None:
    stage = Stage()
    witness = stage.connect("witness")
    witness.subscribe("w")
    stage.connect("c", version=version, keep_alive_s=10, will=Will("w", b"gone"))
    stage.advance(17)
    assert [message.payload for message in witness.publishes()] == [b"gone"]


@pytest.mark.parametrize("packet", [Pingreq(), Publish("t", b"x")])
def test_any_packet_is_a_sign_of_life(version: int, packet: Pingreq | Publish) -> None:
    stage = Stage()
    client = stage.connect("c", version=version, keep_alive_s=2)
    for _ in range(5):
        stage.advance(2)
        client.send(packet)
    assert not client.is_closed


def sends(client: Client, data: bytes, chunk_bytes: int, pause_s: float) -> None:
    """In pieces, as a slow line brings them, until the server has enough."""
    for start in range(0, len(data), chunk_bytes):
        if not client.is_closed:
            client.send_bytes(data[start : start + chunk_bytes])
            client.stage.advance(pause_s)


@pytest.mark.parametrize(
    ("chunk_bytes", "pause_s"), [(100, 0.2), (1_000, 2.6), (1_024, 2.6), (1_025, 2.8), (5_000, 2.8)]
)
def test_a_large_packet_on_a_slow_line_is_a_sign_of_life(
    chunk_bytes: int, pause_s: float, version: int
) -> None:
    """A KiB of it in one and a half periods is enough, however long that goes on."""
    stage = Stage()
    client = stage.connect("c", version=version, keep_alive_s=2)
    packet = encode(Publish("t", bytes(20_000), 1, packet_id=1), version)
    sends(client, packet, chunk_bytes, pause_s)
    assert client.expect(Puback).packet_id == 1
    assert not client.is_closed


@pytest.mark.spec("MQTT-3.1.2-22", "v3:MQTT-3.1.2-24")
@pytest.mark.parametrize("payload_bytes", [100, 100_000])
def test_single_bytes_of_a_packet_are_no_sign_of_life(payload_bytes: int, version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version, keep_alive_s=2)
    client.send(Pingreq())
    sends(client, encode(Publish("t", bytes(payload_bytes)), version)[:90], 1, pause_s=0.1)
    assert client.is_closed


@pytest.mark.spec("MQTT-3.1.2-22", "v3:MQTT-3.1.2-24")
def test_single_bytes_are_none_in_the_middle_of_a_large_packet_either(version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version, keep_alive_s=2)
    packet = encode(Publish("t", bytes(100_000)), version)
    client.send_bytes(packet[:50_000])
    stage.advance(2.5)
    assert not client.is_closed
    sends(client, packet[50_000:50_100], 1, pause_s=0.1)
    assert client.is_closed


def test_a_packet_that_is_complete_in_time_may_come_in_single_bytes(version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version, keep_alive_s=2)
    packet = encode(Publish("t", b"small", 1, packet_id=1), version)
    for _ in range(3):
        sends(client, packet, 1, pause_s=0.1)
        assert client.expect(Puback).packet_id == 1
    assert not client.is_closed


def test_without_keep_alive_silence_may_last(version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version, keep_alive_s=0)
    stage.advance(120)
    assert not client.is_closed


def test_what_the_server_sends_is_no_sign_of_life_of_the_client(version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version, keep_alive_s=2)
    client.subscribe("t")
    publisher = stage.connect("p")
    for _ in range(5):
        publisher.publish("t", b"x")
        stage.advance(1)
    assert client.is_closed


# --- server keep-alive -----------------------------------------------------------------------


@pytest.mark.parametrize("asked_s", [0, 61, 65_535])
def test_a_longer_keep_alive_is_replaced_by_that_of_the_server(asked_s: int) -> None:
    stage = Stage({"session": {"keep_alive_max_s": 10}})
    client = stage.connect("c", keep_alive_s=asked_s)
    assert client.connack.properties.server_keep_alive == 10
    stage.advance(17)
    assert client.is_closed


@pytest.mark.spec("MQTT-3.2.2-22")
def test_without_a_server_keep_alive_the_value_of_the_client_counts() -> None:
    stage = Stage({"session": {"keep_alive_max_s": 60}})
    client = stage.connect("c", keep_alive_s=4)
    assert client.connack.properties.server_keep_alive is None
    stage.advance(5.9)
    assert not client.is_closed
    stage.advance(2)
    assert client.is_closed


def test_311_cannot_be_told_so_its_own_value_counts() -> None:
    stage = Stage({"session": {"keep_alive_max_s": 10}})
    client = stage.connect("c", version=MQTT_311, keep_alive_s=60)
    stage.advance(20)
    assert not client.is_closed


# --- the server's own delays do not count as silence -----------------------------------------


def test_a_client_that_waits_for_a_slow_store_is_not_cut_off(version: int) -> None:
    stage = Stage({"flow": {"window_max": 1}})
    stage.connect_durable("s").subscribe("t", qos=1)
    client = stage.connect("c", version=version, keep_alive_s=2)
    stage.hold_commits = True
    for _ in range(10):
        client.publish("t", b"x", qos=1)  # the second waits: the window is full
        stage.advance(1)
    assert not client.is_closed


def test_a_paused_client_still_gets_its_pingresp(version: int) -> None:
    stage = Stage({"flow": {"window_max": 1}})
    stage.connect_durable("s").subscribe("t", qos=1)
    client = stage.connect("c", version=version)
    stage.hold_commits = True
    client.publish("t", b"1", qos=1)
    client.publish("t", b"2", qos=1)
    client.send(Pingreq())
    assert [type(packet) for packet in client.take()] == [Pingresp]


def test_a_client_whose_bytes_nobody_has_read_is_not_silent(version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version, keep_alive_s=2)
    stage.heard_s = stage.now_s
    stage.advance(60)
    assert not client.is_closed
    stage.heard_s = None
    client.send(Pingreq())
    stage.advance(2)
    assert not client.is_closed
    stage.advance(3)
    assert client.is_closed


def test_a_client_whose_packets_wait_for_their_turn_is_not_silent(version: int) -> None:
    """They are read, and the rounds have not come to it."""
    stage = Stage()
    client = stage.connect("c", version=version, keep_alive_s=2)
    client.connection.schedule()
    stage.node.state.runnable.clear()
    for _ in range(60):
        stage.now_s += 1
        stage.node.tick(stage.now_s)
    assert not client.is_closed
