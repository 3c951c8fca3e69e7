"""Parts of packets: what clients have sent and nobody can decode yet is bounded for all of them."""

import pytest

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Disconnect, Pingreq, Pingresp, Puback, Will
from flowguard.flow import Reason
from flowguard.session.connection import LOOKAHEAD_BYTES
from flowguard.types import MQTT_5, Publish, ReasonCode
from tests.support.stage import Client, Stage

KIB = 1024
LIMIT_BYTES = 1024 * KIB
CHUNK_BYTES = 16 * KIB


def tight_stage() -> Stage:
    return Stage({"node": {"input_bytes_max": LIMIT_BYTES}})


def send_chunks(client: Client, data: bytes) -> None:
    """As a socket brings them, until the server has enough."""
    for start in range(0, len(data), CHUNK_BYTES):
        if client.is_closed or not client.connection.wants_read:
            return
        client.send_bytes(data[start : start + CHUNK_BYTES])


def large(version: int, payload_bytes: int = 500 * KIB) -> bytes:
    return encode(Publish("t", bytes(payload_bytes), 1, packet_id=1), version)


def test_ordinary_packets_are_not_charged(version: int) -> None:
    stage = tight_stage()
    client = stage.connect("c", version=version)
    half = large(version, LOOKAHEAD_BYTES)[: LOOKAHEAD_BYTES - 1]
    for byte in half[:10]:
        client.send_bytes(bytes((byte,)))
    send_chunks(client, half[10:])
    assert client.connection._decoder.buffered_bytes == LOOKAHEAD_BYTES - 1
    assert stage.node.input_budget.used_bytes == 0


@pytest.mark.parametrize("chunk_bytes", [1_000, 5_000, 64 * KIB])
def test_a_large_packet_is_charged_while_it_comes_in_and_not_a_byte_longer(
    version: int, chunk_bytes: int
) -> None:
    stage = tight_stage()
    client = stage.connect("c", version=version)
    packet = large(version)
    for start in range(0, len(packet), chunk_bytes):
        client.send_bytes(packet[start : start + chunk_bytes])
        buffered_bytes = client.connection._decoder.buffered_bytes
        assert stage.node.input_budget.used_bytes == max(0, buffered_bytes - LOOKAHEAD_BYTES)
    assert buffered_bytes == 0
    client.expect(Puback)


def test_who_wants_more_than_the_node_has_left_is_ended_and_counted(version: int) -> None:
    stage = tight_stage()
    clients = [stage.connect(f"c{number}", version=version) for number in range(5)]
    for client in clients:
        send_chunks(client, large(version)[:-1])
    assert [client.is_closed for client in clients] == [False] * 2 + [True] * 3
    assert stage.node.counters.dropped == {Reason.NODE_INPUT_BYTES: 3}
    assert 0 < stage.node.input_budget.used_bytes <= LIMIT_BYTES
    for client in clients[2:]:
        if version == MQTT_5:
            assert client.expect(Disconnect).reason_code == ReasonCode.QUOTA_EXCEEDED
        assert client.connection._decoder.buffered_bytes == 0
    for client in clients[:2]:
        client.send_bytes(large(version)[-1:])
        client.expect(Puback)
    assert stage.node.input_budget.used_bytes == 0


def test_who_sends_small_packets_is_served_while_the_budget_is_spent(version: int) -> None:
    stage = tight_stage()
    for number in range(3):
        send_chunks(stage.connect(f"c{number}", version=version), large(version)[:-1])
    client = stage.connect("small", version=version)
    client.publish("t", bytes(LOOKAHEAD_BYTES // 2), qos=1)
    client.expect(Puback)
    client.send(Pingreq())
    client.expect(Pingresp)


@pytest.mark.parametrize("ends", ["eof", "keep-alive", "taken over"])
def test_the_end_of_a_connection_gives_its_input_back(version: int, ends: str) -> None:
    stage = tight_stage()
    client = stage.connect("c", version=version, keep_alive_s=10)
    send_chunks(client, large(version)[:-1])
    assert stage.node.input_budget.used_bytes
    if ends == "eof":
        client.close()
    elif ends == "keep-alive":
        stage.advance(20)
    else:
        stage.connect("c", version=version)
    assert client.is_closed
    assert stage.node.input_budget.used_bytes == 0


def test_before_connect_the_same_budget_holds() -> None:
    stage = tight_stage()
    connect = encode(Connect("c", will=Will("w", bytes(60 * KIB)), password=bytes(60 * KIB)), 5)
    strangers = [stage.open() for _ in range(30)]
    for stranger in strangers:
        send_chunks(stranger, connect[:-1])
    assert stage.node.input_budget.used_bytes <= LIMIT_BYTES
    refused = [stranger for stranger in strangers if stranger.is_closed]
    assert refused
    assert refused != strangers
    for stranger in refused:
        assert stranger.expect(Connack).reason_code == ReasonCode.QUOTA_EXCEEDED
    stage.advance(11)
    assert all(stranger.is_closed for stranger in strangers)
    assert stage.node.input_budget.used_bytes == 0


def paused_client(stage: Stage, version: int) -> Client:
    """A client whose window is spent, with more than LOOKAHEAD_BYTES of complete packets behind."""
    stage.node.window.resize(1)
    client = stage.connect("paused", version=version)
    stage.hold_commits = True
    packets = b"".join(
        encode(Publish("t", bytes(5 * KIB), 1, True, packet_id=number), version)
        for number in range(1, 31)
    )
    client.send_bytes(packets[: LOOKAHEAD_BYTES - 1])
    client.send_bytes(packets[LOOKAHEAD_BYTES - 1 :])
    assert not client.connection.wants_read
    return client


def test_what_a_paused_client_sent_ahead_is_charged_until_it_is_worked_off(version: int) -> None:
    stage = tight_stage()
    client = paused_client(stage, version)
    assert stage.node.input_budget.used_bytes > KIB
    stage.release_commits()
    assert len([packet for packet in client.take() if isinstance(packet, Puback)]) == 30
    assert stage.node.input_budget.used_bytes == 0


def test_who_is_paused_is_not_ended_for_what_it_sent_ahead(version: int) -> None:
    """Complete packets that wait for a window are not read on: that is enough."""
    stage = tight_stage()
    stage.node.input_budget.take(LIMIT_BYTES)
    client = paused_client(stage, version)
    assert not client.is_closed
    stage.release_commits()
    assert len([packet for packet in client.take() if isinstance(packet, Puback)]) == 30
    assert not stage.node.counters.dropped
    assert stage.node.input_budget.used_bytes == LIMIT_BYTES


def test_a_packet_that_waits_because_it_does_not_fit_is_charged_until_it_is_handled() -> None:
    stage = Stage({"node": {"input_bytes_max": 2 * LIMIT_BYTES}, "flow": {"window_max": 10}})
    stage.connect_durable("s").subscribe("t", qos=1)
    clients = [stage.connect(f"p{number}", version=4) for number in range(10)]
    stage.hold_commits = True
    for client in clients:
        client.send_bytes(encode(Publish("t", b"light", 1, packet_id=2), 4))
        send_chunks(client, large(4, 900 * KIB))
    waiting = [client for client in clients if not client.is_closed]
    assert len(waiting) == 2
    assert stage.node.input_budget.used_bytes > 1_600 * KIB
    stage.release_commits()
    assert stage.node.input_budget.used_bytes == 0
    for client in waiting:
        assert [packet.packet_id for packet in client.take() if isinstance(packet, Puback)] == [
            2,
            1,
        ]
