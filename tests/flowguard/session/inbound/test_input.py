"""Parts of packets: received bytes that cannot be decoded yet are bounded for all clients
together."""

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists

from flowguard.bounds import INPUT_FREE_BYTES
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Disconnect, Pingreq, Pingresp, Puback
from flowguard.flow import Reason
from flowguard.types import MQTT_5, Publish, ReasonCode
from tests.flowguard.session.sessions import Client, Sessions
from tests.support.sendings import CHUNK_BYTES, large, send_chunks

KIB = 1024
LIMIT_BYTES = 1024 * KIB


def tight_sessions() -> Sessions:
    return Sessions({"node": {"input_bytes_max": LIMIT_BYTES}})


def kept_bytes(client: Client) -> int:
    return client.connection.input.decoder.compact()


def test_the_first_bytes_belong_to_the_connection(version: int) -> None:
    sessions = tight_sessions()
    client = sessions.connect("c", version=version)
    half = large(version)[:INPUT_FREE_BYTES]
    for byte in half[:10]:
        client.send_bytes(bytes((byte,)))
    client.send_bytes(half[10:])
    assert kept_bytes(client) == INPUT_FREE_BYTES
    assert sessions.node.input_holders.budget.used_bytes == 0


@pytest.mark.parametrize("chunk_bytes", [1_000, 5_000, 64 * KIB])
def test_a_packet_is_charged_while_it_comes_in_and_not_a_byte_longer(
    version: int, chunk_bytes: int
) -> None:
    sessions = tight_sessions()
    client = sessions.connect("c", version=version)
    packet = large(version)
    for start in range(0, len(packet), chunk_bytes):
        client.send_bytes(packet[start : start + chunk_bytes])
        uncharged_bytes = kept_bytes(client) - sessions.node.input_holders.budget.used_bytes
        assert 0 <= uncharged_bytes <= INPUT_FREE_BYTES
    assert kept_bytes(client) == 0
    assert sessions.node.input_holders.budget.used_bytes == 0
    client.expect(Puback)


@given(
    sizes=lists(integers(0, 70_000), min_size=1, max_size=12),
    cuts=lists(integers(1, 70_000), min_size=1, max_size=20),
)
def test_what_stays_of_any_chunks_is_charged(sizes: list[int], cuts: list[int]) -> None:
    """All but the first KiB, whatever was sent and however it was cut; and nothing once it ends."""
    sessions = tight_sessions()
    client = sessions.connect("c", version=4)
    data = b"".join(large(4, size) for size in sizes)
    for cut in cuts:
        client.send_bytes(data[:cut])
        data = data[cut:]
        kept = kept_bytes(client)
        used = sessions.node.input_holders.budget.used_bytes
        assert max(0, kept - INPUT_FREE_BYTES) <= used <= kept
    client.close()
    assert sessions.node.input_holders.budget.used_bytes == 0


def test_a_chunk_of_which_little_is_left_is_not_kept_for_it(version: int) -> None:
    """A slice of a few bytes would keep all 64 KiB alive."""
    sessions = tight_sessions()
    client = sessions.connect("c", version=version)
    client.send_bytes(large(version, 60 * KIB) + large(version)[:2_000])
    assert kept_bytes(client) == 2_000
    assert sessions.node.input_holders.budget.used_bytes == 2_000 - INPUT_FREE_BYTES


def test_where_all_is_spent_who_has_stood_still_for_longest_gives_way(version: int) -> None:
    sessions = tight_sessions()
    clients = [sessions.connect(f"c{number}", version=version) for number in range(5)]
    for client in clients:
        send_chunks(client, large(version)[:-1])
        sessions.advance(0.1)
    assert [client.is_closed for client in clients] == [True] * 3 + [False] * 2
    assert sessions.node.counters.dropped == {Reason.NODE_INPUT_BYTES: 3}
    assert 0 < sessions.node.input_holders.budget.used_bytes <= LIMIT_BYTES
    for client in clients[:3]:
        if version == MQTT_5:
            assert client.expect(Disconnect).reason_code == ReasonCode.QUOTA_EXCEEDED
        assert client.connection.input.decoder.buffered_bytes == 0
    for client in clients[3:]:
        client.send_bytes(large(version)[-1:])
        client.expect(Puback)
    assert sessions.node.input_holders.budget.used_bytes == 0


def test_who_goes_on_sending_is_not_ended_for_those_who_stand_still(version: int) -> None:
    """A thousand half packets beside one that comes slowly, and is whole in the end."""
    sessions = tight_sessions()
    slow = sessions.connect("slow", version=version)
    packet = large(version, 200 * KIB)
    for start in range(0, len(packet), 8 * KIB):
        half = sessions.connect(f"half-{start}", version=version)
        send_chunks(half, large(version)[: 100 * KIB])
        slow.send_bytes(packet[start : start + 8 * KIB])
        sessions.advance(0.1)
    slow.expect(Puback)
    assert sessions.node.counters.dropped[Reason.NODE_INPUT_BYTES] > 10


def test_a_half_packet_may_stand_still_while_there_is_room(version: int) -> None:
    sessions = tight_sessions()
    client = sessions.connect("c", version=version)
    send_chunks(client, large(version)[: 400 * KIB])
    sessions.advance(60)
    assert not client.is_closed


def test_who_sends_small_packets_is_served_while_the_budget_is_spent(version: int) -> None:
    sessions = tight_sessions()
    for number in range(3):
        send_chunks(sessions.connect(f"c{number}", version=version), large(version)[:-1])
    client = sessions.connect("small", version=version)
    send_chunks(client, large(version, 32 * KIB))
    client.expect(Puback)
    client.send(Pingreq())
    client.expect(Pingresp)


def test_clients_that_wait_leave_half_of_the_memory_to_packets_that_come_in() -> None:
    """However many are paused with a socket full of packets, a large one is received."""
    sessions = tight_sessions()
    sessions.node.window.resize(1)
    receiver = sessions.connect("receiver", version=4)
    paused = [sessions.connect(f"c{number}", version=4) for number in range(100)]
    sessions.hold_commits = True
    packets = b"".join(
        encode(Publish("t", bytes(1_000), 1, True, packet_id=number), 4) for number in range(1, 60)
    )
    for client in paused:
        send_chunks(client, packets)
    assert sessions.node.input_holders.budget.used_bytes <= LIMIT_BYTES // 2 + CHUNK_BYTES
    send_chunks(receiver, encode(Publish("t", bytes(400 * KIB)), 4))
    assert receiver.connection.input.decoder.buffered_bytes == 0
    assert not any(client.is_closed for client in [receiver, *paused])
    assert not sessions.node.counters.dropped
