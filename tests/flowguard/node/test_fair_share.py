"""The shared bytes of all clients are used up: large holders are rejected, readers lose nothing."""

from typing import Any

import pytest

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.types import Publish
from tests.flowguard.node.ledger import check_budgets, end_all_sessions
from tests.support.stage import Client, Stage

KIB = 1024
MIB = 1024 * KIB
SILENT = 20
SMALL_NODE: dict[str, Any] = {
    "session": {"queue_bytes_max": MIB},
    "node": {"queue_bytes_max": 10 * MIB, "inflight_bytes_max": 5 * MIB},
}
"""A hundredth of the defaults, for a hundredth of the clients."""


def silent_clients(stage: Stage, topic: str, *, read: bool) -> list[Client]:
    """Clients that subscribe and acknowledge nothing after that, or do not even read."""
    clients = [stage.connect(f"silent{number}") for number in range(SILENT)]
    for client in clients:
        client.subscribe(topic, qos=1)
        client.reads = read
    return clients


def publish(client: Client, topic: str, count: int, size_bytes: int) -> int:
    """Publish `count` messages in one chunk. Return how many were acknowledged as delivered."""
    messages = [
        Publish(topic, b"%d" % number + bytes(size_bytes), 1, packet_id=client.next_packet_id())
        for number in range(count)
    ]
    client.send_bytes(b"".join(encode(message, client.version) for message in messages))
    return sum(isinstance(packet, Puback) and packet.reason_code == 0 for packet in client.take())


def fill(stage: Stage, topic: str) -> None:
    """Publish until messages for silent clients are dropped for the bound of the whole node."""
    flooder = stage.connect("flooder")
    for _ in range(100):
        publish(flooder, topic, 50, 2 * KIB)
        if stage.node.counters.dropped.get(Reason.NODE_QUEUE_BYTES):
            return
    raise AssertionError("silent clients do not fill the node")


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize(("count", "size_bytes"), [(50, 10), (20, 3 * KIB), (10, 8 * KIB)])
def test_who_reads_at_once_gets_what_was_acknowledged_beside_those_who_are_silent(
    version: int, count: int, size_bytes: int, read: bool
) -> None:
    stage = Stage(SMALL_NODE)
    silent = silent_clients(stage, "silent", read=read)
    fill(stage, "silent")
    polite = [stage.connect(f"polite{number}", version=version) for number in range(4)]
    for client in polite:
        client.subscribe("polite", qos=1)
    publisher = stage.connect("publisher", version=version)
    acknowledged, got = 0, [0] * len(polite)
    for _ in range(10):
        acknowledged += publish(publisher, "polite", count, size_bytes)
        for number, client in enumerate(polite):
            got[number] += len(client.publishes())
    assert acknowledged == 10 * count
    assert got == [acknowledged] * len(polite)
    check_budgets(stage.node, [client.connection for client in silent])
    end_all_sessions(stage.node, stage.now_s)


def test_silent_clients_have_about_the_same_each() -> None:
    """The first client to fill the node has at most three quarters, and no client gets nothing."""
    stage = Stage(SMALL_NODE)
    silent_clients(stage, "silent", read=True)
    fill(stage, "silent")
    held = [session.queue.size_bytes for session in stage.node.registry.sessions.values()]
    assert max(held) < 2 * (10 * MIB // SILENT)


# --- outboxes ------------------------------------------------------------------------------------


def full_outboxes(stage: Stage) -> None:
    """Clients that read nothing have as many bytes waiting for their sockets as they may."""
    for number in range(SILENT):
        client = stage.connect(f"silent{number}")
        client.subscribe("silent")
        client.reads = False
    flooder = stage.connect("flooder")
    while not stage.node.counters.dropped.get(Reason.NODE_OUTBOX_BYTES):
        flooder.publish("silent", bytes(4 * KIB))


def test_a_client_with_a_full_socket_stays_and_loses_nothing(version: int) -> None:
    stage = Stage(
        {"session": {"outbox_bytes_max": MIB}, "node": {"outbox_bytes_max": 4 * MIB}},
    )
    full_outboxes(stage)
    before = dict(stage.node.counters.dropped)
    client = stage.connect("c", version=version)
    client.subscribe("here")
    client.reads = False
    publisher = stage.connect("publisher")
    for number in range(10):
        publisher.publish("here", b"%d" % number + bytes(KIB))
    outbound = client.connection.outbound
    assert outbound.outbox.blocked
    assert outbound.outbox.blocked_bytes >= outbound.outbox.size_bytes > 10 * KIB
    client.read_again()
    assert len(client.publishes()) == 10
    assert stage.node.counters.dropped == before
    check_budgets(stage.node, [])


def test_who_reads_a_part_keeps_the_rest_whatever_others_hold_now() -> None:
    """It had it, and has less now: a slow reader is not ended for reading."""
    stage = Stage({"session": {"outbox_bytes_max": MIB}, "node": {"outbox_bytes_max": 2 * MIB}})
    client = stage.connect("slow")
    client.subscribe("slow")
    client.reads = False
    publisher = stage.connect("publisher")
    for _ in range(10):
        publisher.publish("slow", bytes(90 * KIB))
    full_outboxes(stage)
    outbound = client.connection.outbound
    held_bytes = outbound.outbox.blocked_bytes
    assert held_bytes > 900 * KIB
    for _ in range(3):
        data = outbound.outbox.take()
        assert outbound.outbox.put_back(data[50 * KIB :])
    assert outbound.outbox.blocked_bytes == outbound.outbox.size_bytes <= held_bytes - 150 * KIB
    rest = outbound.outbox.take()
    assert not outbound.outbox.blocked_bytes
    for _ in range(50):
        publisher.publish("silent", bytes(4 * KIB))
    outbound.outbox.write(rest)
    assert not outbound.outbox.put_back(outbound.outbox.take()), "it has had nothing since"


# --- state ---------------------------------------------------------------------------------------


def test_a_newcomer_may_subscribe_though_others_keep_all_they_may(version: int) -> None:
    stage = Stage({"session": {"state_bytes_max": MIB}, "node": {"state_bytes_max": 4 * MIB}})
    greedy = [stage.connect(f"greedy{number}") for number in range(SILENT)]
    refused = 0
    for number in range(100):
        for client in greedy:
            code = client.subscribe(f"{number}/" + "x" * 6_000).reason_codes[0]
            refused += code >= 0x80
    assert refused
    assert stage.node.counters.dropped == {Reason.NODE_STATE_BYTES: refused}
    newcomer = stage.connect("newcomer", version=version)
    assert newcomer.subscribe("a/b/#", "c", "d/+").reason_codes == (0, 0, 0)
    check_budgets(stage.node, [])
