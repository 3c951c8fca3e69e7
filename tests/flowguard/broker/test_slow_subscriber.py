"""A subscriber that does not read costs a bounded amount of memory, and disturbs no other
client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowguard.broker.server import Running
from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.types import Publish
from tests.support.real import Wire, broker, connect

KIB = 1024
MIB = 1024 * KIB
PAYLOAD = bytes(50_000)
FLOOD = 400
"""Messages of 50 KB: 20 MB, more than all sockets and limits of these tests together."""


@asynccontextmanager
async def scene(
    settings: dict[str, dict[str, Any]], qos: int
) -> AsyncIterator[tuple[Running, Wire, Wire, Wire]]:
    """A broker, a publisher, a quick subscriber and one that reads nothing."""
    async with broker(settings, calm=True) as running:
        wires = [await connect(running, name) for name in ("publisher", "quick", "slow")]
        publisher, quick, slow = wires
        await quick.subscribe("t", qos)
        await slow.subscribe("t", qos)
        yield running, publisher, quick, slow
        for wire in wires:
            await wire.close()


async def flood(publisher: Wire, quick: Wire, count: int, qos: int) -> None:
    """Each message must be with the quick subscriber before the next one is sent."""
    for number in range(1, count + 1):
        payload = b"%d " % number + PAYLOAD
        await publisher.send(Publish("t", payload, qos, packet_id=number if qos else 0))
        received = await quick.expect(Publish)
        assert received.payload == payload
        if qos:
            await quick.send(Puback(received.packet_id))
            await publisher.expect(Puback)


async def test_qos_0_is_dropped_at_the_limit_of_the_outbox_and_counted() -> None:
    settings = {"session": {"outbox_bytes_max": 200 * KIB}}
    async with scene(settings, 0) as (running, publisher, quick, _):
        outbound = running.node.registry.sessions["slow"].outbound
        most = 0
        for _ in range(FLOOD):
            await flood(publisher, quick, 1, 0)
            most = max(most, outbound.outbox.size_bytes)
        assert 100 * KIB < most <= 200 * KIB
        dropped = running.node.counters.dropped
        assert set(dropped) == {Reason.OUTBOX_BYTES}
        assert 0 < dropped[Reason.OUTBOX_BYTES] < FLOOD


async def test_all_blocked_sockets_together_stay_within_the_nodes_budget() -> None:
    settings = {"session": {"outbox_bytes_max": 700 * KIB}, "node": {"outbox_bytes_max": MIB}}
    async with scene(settings, 0) as (running, publisher, quick, _):
        others = [await connect(running, f"deaf-{number}") for number in range(3)]
        for wire in others:
            await wire.subscribe("t", 0)
        for _ in range(FLOOD):
            await flood(publisher, quick, 1, 0)
            assert running.node.state.outbox_budget.used_bytes <= MIB
        assert running.node.counters.dropped[Reason.NODE_OUTBOX_BYTES]
        for wire in others:
            await wire.close()


async def test_who_does_not_read_when_the_nodes_budget_is_spent_has_to_go() -> None:
    settings = {"session": {"outbox_bytes_max": MIB}, "node": {"outbox_bytes_max": MIB}}
    message = Publish("t", bytes(MIB - 1_000))
    async with scene(settings, 0) as (running, publisher, quick, _):
        deaf = [await connect(running, f"deaf-{number}") for number in range(12)]
        for number, wire in enumerate(deaf):
            await wire.subscribe("t", 0)
            # Kernels differ in what they take. So each keeps another part of the next messages.
            await wire.subscribe(f"own/{number}", 0)
            await publisher.send(Publish(f"own/{number}", bytes(number * MIB // len(deaf))))
        for _ in range(12):
            await publisher.send(message)
            await quick.expect(Publish)
            assert running.node.state.outbox_budget.used_bytes <= MIB
        assert running.node.counters.clients_connected < 3 + len(deaf)
        assert running.node.counters.dropped[Reason.NODE_OUTBOX_BYTES]
        await quick.ping()
        for wire in deaf:
            await wire.close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"session": {"queue_messages_max": 20}}, Reason.QUEUE_MESSAGES),
        ({"session": {"queue_bytes_max": MIB}}, Reason.QUEUE_BYTES),
    ],
    ids=["messages", "bytes"],
)
async def test_qos_1_waits_up_to_the_queues_limit_and_is_then_dropped_and_counted(
    settings: dict[str, dict[str, Any]], reason: Reason
) -> None:
    async with scene(settings, 1) as (running, publisher, quick, slow):
        await flood(publisher, quick, FLOOD, 1)
        session = running.node.registry.sessions["slow"]
        limits = running.node.settings.session
        assert session.queue.count <= limits.queue_messages_max
        assert session.queue.size_bytes <= limits.queue_bytes_max
        assert session.outbound.outbox.size_bytes <= 2 * (64 * KIB + len(PAYLOAD))
        dropped = running.node.counters.dropped
        assert set(dropped) == {reason}
        # Messages that were not dropped arrive, in order and without a gap, as soon as it reads.
        kept = FLOOD - dropped[reason]
        for number in range(1, kept + 1):
            received = await slow.expect(Publish)
            assert received.payload.startswith(b"%d " % number)
            await slow.send(Puback(received.packet_id))
        await slow.ping()
        assert running.node.state.queue_budget.used_bytes == 0
        assert running.node.state.outbox_budget.used_bytes == 0


async def test_many_slow_queues_together_stay_within_the_nodes_budget() -> None:
    settings = {
        "session": {"queue_bytes_max": MIB, "inflight_max": 1},
        "node": {"queue_bytes_max": 2 * MIB},
    }
    async with scene(settings, 1) as (running, publisher, quick, _):
        others = [await connect(running, f"deaf-{number}") for number in range(3)]
        for wire in others:
            await wire.subscribe("t", 1)
        await flood(publisher, quick, 60, 1)
        assert running.node.state.queue_budget.used_bytes <= 2 * MIB
        assert running.node.counters.dropped[Reason.NODE_QUEUE_BYTES]
        for wire in others:
            await wire.close()


async def test_what_a_slow_subscriber_held_is_free_when_it_leaves() -> None:
    async with scene({}, 1) as (running, publisher, quick, slow):
        await flood(publisher, quick, 100, 1)
        await slow.close()
        await quick.ping()
        while "slow" in running.node.registry.sessions:
            await publisher.ping()
        assert running.node.state.queue_budget.used_bytes == 0
        assert running.node.state.outbox_budget.used_bytes == 0
