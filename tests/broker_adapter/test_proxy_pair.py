"""The proxy without sockets, scene by scene."""

import pytest

from broker_adapter.proxy.states import PairState
from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
)
from flowguard.config import FlowSettings
from flowguard.flow import Reason
from flowguard.types import MQTT_5, MQTT_311, Properties, Publish
from tests.broker_adapter.proxy_stage import MEMORY_BYTES, ProxyStage


def publishes(count: int, qos: int = 1) -> list[Publish]:
    return [Publish("a", b"%d" % n, qos, packet_id=n if qos else 0) for n in range(1, count + 1)]


def test_beyond_its_window_a_client_waits_and_its_pings_do_not() -> None:
    stage = ProxyStage(FlowSettings(window_max=2))
    client = stage.connect()
    client.send(*publishes(5), Pingreq())
    kinds = [type(packet) for packet in client.packets_at_upstream()[1:]]
    assert kinds == [Publish, Publish, Pingreq]
    client.answer(Puback(1))
    assert [p.packet_id for p in client.packets_at_upstream()[1:] if isinstance(p, Publish)] == [
        1,
        2,
        3,
    ]
    for packet_id in (2, 3, 4, 5):
        client.answer(Puback(packet_id))
    assert stage.core.in_process_count == 0


def test_a_flood_leaves_the_upstream_to_quiet_clients() -> None:
    """An upstream that does one packet after the other: a quiet client's is behind as many as the
    windows of the flood hold; through no windows it is behind all of the flood."""
    behind = {}
    for window_max in (2, 65_535):
        stage = ProxyStage(FlowSettings(window_max=window_max, unfinished_max=1 << 20), 1 << 20)
        flooding = [stage.connect() for _ in range(10)]
        for client in flooding:
            client.send(*publishes(100))
        quiet = stage.connect()
        quiet.send(*publishes(1))
        assert len(quiet.packets_at_upstream()) == 2
        behind[window_max] = sum(len(client.packets_at_upstream()) - 1 for client in flooding)
    assert behind == {2: 20, 65_535: 1_000}


def test_unacknowledged_packets_are_pressure_and_windows_shrink() -> None:
    stage = ProxyStage()
    client = stage.connect()
    client.send(*publishes(50))
    stage.advance(3)
    assert stage.core.guard.grant.pressure.cause == "store"
    assert stage.core.guard.grant.window < 10


def test_windows_stay_if_no_client_has_more_than_a_packet() -> None:
    stage = ProxyStage()
    for _ in range(20):
        stage.connect().send(*publishes(1))
    stage.advance(3)
    assert stage.core.guard.grant.pressure.cause == "store"
    assert stage.core.guard.grant.leverage == 0.0
    assert stage.core.guard.grant.window == 100


def test_a_socket_that_takes_nothing_is_pressure_for_qos_0_too() -> None:
    stage = ProxyStage()
    client = stage.connect()
    stage.takes = False
    client.send(*publishes(50, qos=0))
    stage.advance(3)
    assert stage.core.guard.grant.window < 10
    stage.drain_upstream()
    assert stage.core.in_process_count == 0


def test_refusals_of_the_upstream_are_pressure() -> None:
    stage = ProxyStage()
    client = stage.open()
    client.send(Connect("a", MQTT_5))
    client.answer(Connack(False, 0x89))
    stage.advance(0.5)
    assert stage.core.guard.grant.pressure.value >= 1.5
    assert client.packets_got() == [Connack(False, 0x89)]


@pytest.mark.parametrize(("version", "code"), [(MQTT_5, 137), (MQTT_311, 3)])
def test_who_has_no_place_is_told_before_the_upstream_sees_anything(
    version: int, code: int
) -> None:
    stage = ProxyStage(FlowSettings(connects_in_process_max=1, connect_buffer_max=0))
    first = stage.open(version)
    first.send(Connect("a", version))
    second = stage.open(version, "b")
    second.send(Connect("b", version))
    (connack,) = second.packets_got()
    assert isinstance(connack, Connack)
    assert second.got[3] == code
    assert not second.is_dialed
    assert second.pair.ended
    if version == MQTT_5:
        assert int(dict(connack.properties.user_properties)["retry-after-ms"]) >= 500
    assert stage.core.guard.gate.refused == {Reason.GATE_BUFFER_FULL: 1}


def test_an_upstream_that_is_gone_is_waited_for_then_136_and_its_return_is_paced() -> None:
    stage = ProxyStage(FlowSettings(connect_patience_s=4.0, connects_in_process_max=100))
    stage.is_up = False
    early = [stage.open() for _ in range(4)]
    for number, client in enumerate(early):
        client.send(Connect(f"early-{number}", MQTT_5))
    assert stage.dials >= 1
    assert not any(client.pair.ended for client in early)
    stage.advance(4.1)
    for client in early:
        (connack,) = client.packets_got()
        assert isinstance(connack, Connack)
        assert connack.reason_code == 136
        assert int(dict(connack.properties.user_properties)["retry-after-ms"]) >= 500
    assert stage.dials < 20, "one at a time tries"
    late = [stage.open() for _ in range(60)]
    for number, client in enumerate(late):
        client.send(Connect(f"late-{number}", MQTT_5))
    stage.advance(0.5)
    stage.is_up = True
    stage.advance(1.0)
    assert stage.core.is_up
    at_once = sum(client.is_dialed for client in late)
    assert 0 < at_once <= stage.core.guard.gate.limit < 60
    for _ in range(60):
        for client in late:
            if client.pair.state is PairState.CONNECTING:
                client.answer(Connack(False, 0))
        assert stage.core.guard.gate.in_process <= stage.core.guard.gate.limit
    assert all(client.pair.state is PairState.CONNECTED for client in late)


def test_authentication_passes_before_connack_and_all_else_waits_for_it() -> None:
    stage = ProxyStage()
    client = stage.open()
    connect = Connect("a", MQTT_5, properties=Properties(authentication_method="x"))
    client.send(connect, *publishes(1))
    client.send(Auth(0x18, Properties(authentication_method="x")))
    assert [type(p) for p in client.packets_at_upstream()] == [Connect, Auth]
    client.answer(Connack(False, 0))
    assert [type(p) for p in client.packets_at_upstream()] == [Connect, Auth, Publish]


def test_what_was_sent_before_the_end_arrives_before_the_end() -> None:
    stage = ProxyStage(FlowSettings(window_max=1))
    client = stage.connect()
    client.send(*publishes(3), Disconnect())
    client.hang_up()
    assert not client.pair.ended
    client.answer(Puback(1))
    assert not client.end_passed
    client.answer(Puback(2))
    assert client.end_passed
    assert type(client.packets_at_upstream()[-1]) is Disconnect
    client.answer(Puback(3))
    client.upstream_ends()
    assert client.packets_got() == [Connack(False, 0), Puback(1), Puback(2), Puback(3)]
    assert stage.core.in_process_count == 0


def test_a_large_message_passes_piece_by_piece() -> None:
    stage = ProxyStage()
    client = stage.connect()
    data = encode(Publish("a", b"x" * 10_000_000, 1, packet_id=1), MQTT_5)
    for at in range(0, len(data), 65_536):
        client.send_bytes(data[at : at + 65_536])
        assert stage.core.held_bytes < 70_000
    assert client.at_upstream.endswith(data)


@pytest.mark.parametrize("data", [b"\x20\x02\x00\x00", b"\x10\xff\xff\xff\x7f", b"GET / HTTP/1.1"])
def test_what_is_no_connect_is_closed(data: bytes) -> None:
    stage = ProxyStage()
    client = stage.open()
    client.send_bytes(data)
    assert client.pair.ended
    assert stage.dials == 0


def test_who_says_nothing_is_closed() -> None:
    stage = ProxyStage()
    client = stage.open()
    stage.advance(10.2)
    assert client.pair.ended


def test_half_connects_take_no_more_than_their_share_and_others_get_in_when_they_are_gone() -> None:
    stage = ProxyStage()
    half = b"\x10\x80\x80\x1f" + b"x" * 100_000
    silent = [stage.open() for _ in range(200)]
    for _ in range(4):
        for client in silent:
            if client.pair.wants_client:
                client.send_bytes(half if not client.sent else b"x" * 100_000)
    assert MEMORY_BYTES // 4 <= stage.core.held_bytes <= MEMORY_BYTES // 4 + 200 * 100_000
    assert not any(client.pair.wants_client for client in silent if client.sent)
    stage.advance(10.2)
    assert all(client.pair.ended for client in silent)
    assert stage.core.held_bytes == 0
    assert stage.connect().pair.wants_client


def test_clients_that_read_nothing_hold_no_more_than_their_share() -> None:
    stage = ProxyStage()
    slow = [stage.connect() for _ in range(100)]
    stage.in_slice = True  # The sockets take nothing.
    for _ in range(5):
        for client in slow:
            if client.pair.wants_upstream:
                client.answer(Publish("a", b"x" * 64_000))
                client.pair.weigh()
    assert stage.core.held_bytes <= MEMORY_BYTES // 4 + 100 * 64_100
    assert not any(
        client.pair.wants_upstream for client in slow if client.pair.to_client.size_bytes
    )
    stage.in_slice = False
    stage.advance(0.1)
    assert all(client.pair.wants_upstream for client in slow)
