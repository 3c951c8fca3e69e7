"""Parts of packets: received bytes that cannot be decoded yet are bounded for all clients
together."""

import pytest

from flowguard.bounds import INPUT_FREE_BYTES
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Puback, Will
from flowguard.node.node import HALF_PACKET_S
from flowguard.session.inbound.input import LOOKAHEAD_BYTES
from flowguard.types import Publish, ReasonCode
from tests.support.sendings import large, send_chunks
from tests.support.stage import Client, Stage

KIB = 1024
LIMIT_BYTES = 1024 * KIB


def tight_stage() -> Stage:
    return Stage({"node": {"input_bytes_max": LIMIT_BYTES}})


def test_half_packets_that_stand_still_are_ended_before_anybody_needs_the_room(
    version: int,
) -> None:
    stage = tight_stage()
    client = stage.connect("c", version=version)
    send_chunks(client, large(version, 800 * KIB)[: 600 * KIB])
    stage.advance(HALF_PACKET_S - 0.2)
    assert not client.is_closed
    stage.advance(0.5)
    assert client.is_closed
    assert stage.node.state.input_holders.budget.used_bytes == 0


@pytest.mark.parametrize("ends", ["eof", "keep-alive", "taken over"])
def test_the_end_of_a_connection_gives_its_input_back(version: int, ends: str) -> None:
    stage = tight_stage()
    client = stage.connect("c", version=version, keep_alive_s=10)
    send_chunks(client, large(version)[:-1])
    assert stage.node.state.input_holders.budget.used_bytes
    if ends == "eof":
        client.close()
    elif ends == "keep-alive":
        stage.advance(20)
    else:
        stage.connect("c", version=version)
    assert client.is_closed
    assert stage.node.state.input_holders.budget.used_bytes == 0


def test_before_connect_the_same_budget_holds() -> None:
    stage = tight_stage()
    connect = encode(Connect("c", will=Will("w", bytes(60 * KIB)), password=bytes(60 * KIB)), 5)
    strangers = [stage.open() for _ in range(30)]
    for stranger in strangers:
        send_chunks(stranger, connect[:-1])
    assert stage.node.state.input_holders.budget.used_bytes <= LIMIT_BYTES
    refused = [stranger for stranger in strangers if stranger.is_closed]
    assert refused
    assert refused != strangers
    for stranger in refused:
        assert stranger.expect(Connack).reason_code == ReasonCode.QUOTA_EXCEEDED
    stage.advance(11)
    assert all(stranger.is_closed for stranger in strangers)
    assert stage.node.state.input_holders.budget.used_bytes == 0


def paused_client(stage: Stage, version: int) -> Client:
    """A client whose window is spent, with more than LOOKAHEAD_BYTES of complete packets behind."""
    stage.node.guard.window.resize(1)
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
    assert stage.node.state.input_holders.budget.used_bytes > KIB
    stage.release_commits()
    assert len([packet for packet in client.take() if isinstance(packet, Puback)]) == 30
    assert stage.node.state.input_holders.budget.used_bytes == 0


def test_who_is_paused_is_not_ended_for_what_it_sent_ahead(version: int) -> None:
    """Complete packets that wait for a window are not read on: that is enough."""
    stage = tight_stage()
    stage.node.state.input_holders.budget.take(LIMIT_BYTES)
    client = paused_client(stage, version)
    assert not client.is_closed
    stage.release_commits()
    assert len([packet for packet in client.take() if isinstance(packet, Puback)]) == 30
    assert not stage.node.counters.dropped
    assert stage.node.state.input_holders.budget.used_bytes == LIMIT_BYTES


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
    assert stage.node.state.input_holders.budget.used_bytes > 1_600 * KIB
    stage.release_commits()
    assert stage.node.state.input_holders.budget.used_bytes == 0
    for client in waiting:
        assert [packet.packet_id for packet in client.take() if isinstance(packet, Puback)] == [
            2,
            1,
        ]


def test_a_connect_that_waits_is_charged_for_all_that_it_brings() -> None:
    stage = Stage(
        {"node": {"input_bytes_max": LIMIT_BYTES}, "flow": {"connects_in_process_max": 1}}
    )
    stage.hold_commits = True
    connects = [Connect(f"c{number}", will=Will("w", bytes(60 * KIB))) for number in range(30)]
    clients = [stage.attempt(connect) for connect in connects]
    used_bytes = stage.node.state.input_holders.budget.used_bytes
    assert LIMIT_BYTES - 64 * KIB < used_bytes <= LIMIT_BYTES
    refused = [client for client in clients if client.is_closed]
    assert 0 < (30 - len(refused)) * (60 * KIB - INPUT_FREE_BYTES) < used_bytes
    for client in refused:
        assert client.expect(Connack).reason_code == ReasonCode.QUOTA_EXCEEDED
    small = stage.attempt(Connect("small"))
    stage.release_commits()
    for client in [*clients, small]:
        assert client in refused or client.expect(Connack).reason_code == ReasonCode.SUCCESS
    assert stage.node.state.input_holders.budget.used_bytes == 0


def test_what_comes_behind_a_connect_that_waits_is_charged() -> None:
    stage = tight_stage()
    stage.hold_commits = True
    client = stage.open(4)
    client.send_bytes(encode(Connect("c", 4), 4) + encode(Publish("t", bytes(50 * KIB)), 4))
    assert stage.node.state.input_holders.budget.used_bytes > 49 * KIB
    stage.release_commits()
    assert stage.node.state.input_holders.budget.used_bytes == 0
