"""Attacks through shared subscriptions: messages that leave a group and stay in memory."""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Puback
from flowguard.types import MQTT_5, Publish
from tests.attacks.attack import Attack, Finding, Size
from tests.attacks.attackers import Attackers
from tests.attacks.probes import SLACK, all_of, peak_memory
from tests.attacks.victim import MIB, Victim, victim
from tests.support.real import Wire

FILTER = "$share/group/leak"
PUBLISHERS = 60
READERS = 8
MESSAGES = 1_000
"""Number of messages of each publisher."""
IN_FLIGHT = 50
"""PUBLISHes of each publisher: the collector sees them alive, and then looks at others."""
PAYLOAD_BYTES = 5_000
LIMIT_BYTES = 105 * MIB
"""The messages are 300 MB together; without clients the process has 75 MiB."""
UNLIMITED = {
    "flow": {"memory_max_bytes": 40 * LIMIT_BYTES},
    "session": {
        "queue_messages_max": 2 * PUBLISHERS * MESSAGES,
        "queue_bytes_max": 10 * LIMIT_BYTES,
    },
}


async def leave_by_qos_0(size: Size) -> Finding:
    """A group with an offline durable member, and members that read at QoS 0."""
    # At the default objective the broker would not start.
    settings = {"flow": {"memory_max_bytes": LIMIT_BYTES, "memory_objective": 0.85}}
    async with victim(size.folder, settings, store="rocks") as broker, peak_memory(broker) as peak:
        await subscribe_away(broker)
        readers = [await broker.connect(f"reader{number}") for number in range(READERS)]
        for reader in readers:
            await reader.subscribe(FILTER, 0)
        async with trio.open_nursery() as nursery:
            for reader in readers:
                nursery.start_soon(read, reader)
            sent = await publish_all(broker, size)
            nursery.cancel_scope.cancel()
        for wire in broker.wires:
            wire.stream.socket.close()
        within = peak.below(LIMIT_BYTES)
        let_in_s = await trio.to_thread.run_sync(Attackers(broker).let_in_after_s)
    said = f"{sent:,} acknowledged, {within.said}, newcomer in after {let_in_s:.1f} s"
    return Finding(within.holds, said)


async def stay(size: Size) -> Finding:
    """The control: no member reads, and there is memory for all messages."""
    async with victim(size.folder, UNLIMITED) as broker, peak_memory(broker) as peak:
        await subscribe_away(broker)
        with peak.until_above(LIMIT_BYTES):
            await publish_all(broker, size)
    return peak.below(LIMIT_BYTES)


async def subscribe_away(broker: Victim) -> None:
    away = await broker.connect("away", durable=True)
    await away.subscribe(FILTER, 1)
    await away.close()


async def read(wire: Wire) -> None:
    while await wire.stream.receive_some(MIB):
        pass


async def publish_all(broker: Victim, size: Size) -> int:
    """How many messages were acknowledged."""
    chunk = b"".join(
        encode(Publish("leak", bytes(PAYLOAD_BYTES), 1, packet_id=number), MQTT_5)
        for number in range(1, IN_FLIGHT + 1)
    )
    chunks = size.of(MESSAGES // IN_FLIGHT, MESSAGES // IN_FLIGHT)
    wires = [await broker.connect(f"publisher{number}") for number in range(PUBLISHERS)]
    calls: list[Callable[[], Awaitable[bool]]] = [
        partial(publish, wire, chunk, chunks) for wire in wires
    ]
    return chunks * IN_FLIGHT * await all_of(calls)


async def publish(wire: Wire, chunk: bytes, count: int) -> bool:
    """Send `count` chunks, one at a time. Return True if all their messages are acknowledged."""
    for _ in range(count):
        await wire.stream.send_all(chunk)
        for _ in range(IN_FLIGHT):
            await wire.expect(Puback)
    return True


ATTACKS = [
    Attack(
        "shared-qos-0",
        f"messages leave a shared group by QoS 0: memory within {SLACK:g} times its limit",
        leave_by_qos_0,
        stay,
        is_tested=False,
    ),
]
