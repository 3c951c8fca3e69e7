"""Attacks on memory: everything that a peer can make a broker keep, several times its limit in all.

Three things are judged: the resident memory of the process stays within 1.1 times
`flow.memory_max_bytes`; a polite client is served all the time and gets every message back; and
once the attackers have gone, a newcomer is let in. The control is the same attack on a broker with
a much larger limit: it ends as soon as that one holds more than the first one may.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from flowguard.codec.packets import Will
from flowguard.types import MQTT_311
from tests.attacks.attack import Attack, Finding, Size
from tests.attacks.attackers import (
    BATCH,
    Attackers,
    publish,
    read_exactly,
    said,
    send_some,
    subscribe,
)
from tests.attacks.probes import SLACK, peak_memory
from tests.attacks.victim import MIB, victim
from tests.support.real import connect_packet

LIMIT_BYTES = 150 * MIB
LIMIT_BYTES_LEAST = 100 * MIB
UNREAD_BYTES = 2 * MIB
"""For each client that reads nothing, or acknowledges nothing."""
AWAY = 20
"""Sessions that messages are kept for."""
UNLIMITED = 40
"""This multiple of the limit counts as no limit."""
Fill = Callable[[Attackers, int, int], None]


# --- what peers send -----------------------------------------------------------------------------


def half_publishes(attackers: Attackers, count: int, size_bytes: int) -> None:
    """Clients send `size_bytes` of a packet of 1 MB, and then no more."""
    half = publish("half", bytes(1_000_000))[:size_bytes]
    attackers.send_by_turns(attackers.clients(count, "half"), half)


def big_publishes(attackers: Attackers, count: int, size_bytes: int) -> None:
    """Large packets, one behind the other, for subscribers that never read."""
    attackers.subscribers(["big"] * 20, 1)
    big = publish("big", bytes(size_bytes), 1) + publish("big", bytes(size_bytes), 2)
    attackers.send_by_turns(attackers.clients(count, "sender"), big)


def half_connects(attackers: Attackers, count: int, size_bytes: int) -> None:
    """CONNECTs of which the last byte never comes."""
    half = connect_with_will("c", size_bytes)[:-1]
    strangers = []
    for number in range(count):
        if number % BATCH == 0:
            attackers.polite.exchange()
        with suppress(OSError):
            strangers.append(attackers.open())
    attackers.send_by_turns(strangers, half)


def whole_connects(attackers: Attackers, count: int, size_bytes: int) -> None:
    """CONNECTs with large wills, and packets behind them, that all want their answer at once."""
    for number in range(count):
        if number % BATCH == 0:
            attackers.polite.exchange()
        data = connect_with_will(f"c{number}", size_bytes) + publish("t", bytes(size_bytes))
        with suppress(OSError):
            send_some(attackers.open(), data)


def connect_with_will(client_id: str, size_bytes: int) -> bytes:
    return said(connect_packet(client_id, MQTT_311, will=Will("will", bytes(size_bytes))))


def floods(attackers: Attackers, count: int, size_bytes: int) -> None:
    """Clients that wait for no answer fill the queues of offline sessions."""
    topics = keep_sessions(attackers, AWAY)
    chunk = b"".join(publish(topic, bytes(size_bytes), 1) for topic in topics * 10)
    attackers.send_by_turns(attackers.clients(count, "flood"), chunk)


def keep_sessions(attackers: Attackers, count: int) -> list[str]:
    """Return the topics of sessions whose clients are offline."""
    topics = []
    for number, sock in enumerate(attackers.clients(count, "away", clean=False)):
        topics.append(f"away/{number}")
        sock.sendall(subscribe(topics[-1], 1))
        read_exactly(sock, 5)
        attackers.close(sock)
    return topics


def unacknowledged(attackers: Attackers, count: int, size_bytes: int) -> None:
    """Subscribers that read everything and acknowledge nothing, each of messages of its own."""
    topics = [f"silent/{number}" for number in range(count)]
    subscribers = attackers.subscribers(topics, 1)
    for sock in subscribers:
        sock.setblocking(False)
    publisher = attackers.clients(1, "publisher")[0]
    for _ in range(UNREAD_BYTES // size_bytes):
        attackers.polite.exchange()
        for topic in topics:
            publisher.sendall(publish(topic, bytes(size_bytes), 1))
            read_exactly(publisher, 4)
        for sock in subscribers:
            with suppress(OSError):
                sock.recv(MIB)


def dead_readers(attackers: Attackers, count: int, size_bytes: int) -> None:
    """Subscribers that never read, each of messages of its own; a publisher that goes on."""
    topics = [f"dead/{number}" for number in range(count)]
    half = count // 2
    attackers.subscribers(topics[:half], 0)
    attackers.subscribers(topics[half:], 1)
    publisher = attackers.clients(1, "publisher")[0]
    for number, topic in enumerate(topics * (UNREAD_BYTES // size_bytes)):
        publisher.sendall(publish(topic, bytes(size_bytes), 1))
        read_exactly(publisher, 4)
        if number % 100 == 0:
            attackers.polite.exchange()


def retained(attackers: Attackers, count: int, size_bytes: int) -> None:
    """One client that has everything retained."""
    publisher = attackers.clients(1, "keeper")[0]
    for number in range(count):
        publisher.sendall(publish(f"kept/{number}", bytes(size_bytes), 1, retain=True))
        read_exactly(publisher, 4)
        if number % 500 == 0:
            attackers.polite.exchange()


def offline(attackers: Attackers, count: int, size_bytes: int) -> None:
    """Sessions that are kept, each with its subscription, and messages for all of them."""
    topics = keep_sessions(attackers, count)
    publisher = attackers.clients(1, "publisher")[0]
    for number, topic in enumerate(topics * 20):
        publisher.sendall(publish(topic, bytes(size_bytes), 1))
        read_exactly(publisher, 4)
        if number % 500 == 0:
            attackers.polite.exchange()


# --- how it is judged ----------------------------------------------------------------------------


def limit_bytes_of(size: Size) -> int:
    return LIMIT_BYTES if size.is_full else LIMIT_BYTES_LEAST


@dataclass(frozen=True)
class Filling:
    """Number and size of the packets; `least` is the number for the limit `LIMIT_BYTES_LEAST`."""

    fill: Fill
    count: int
    least: int
    size_bytes: int

    async def run(self, size: Size) -> Finding:
        limit_bytes = limit_bytes_of(size)
        flow: dict[str, float] = {"memory_max_bytes": limit_bytes}
        if not size.is_full:  # At the default the broker would not start.
            flow["memory_objective"] = 0.85
        settings = {"flow": flow}
        async with victim(size.folder, settings) as broker, peak_memory(broker) as peak:
            found = await trio.to_thread.run_sync(self._attack, Attackers(broker), size)
        within = peak.below(limit_bytes)
        return Finding(within.holds and found.holds, f"{within.said}, {found.said}")

    def _attack(self, attackers: Attackers, size: Size) -> Finding:
        try:
            self.fill(attackers, size.of(self.count, self.least), self.size_bytes)
            found = attackers.polite.end()
            attackers.leave()
            let_in_s = attackers.let_in_after_s()
            return Finding(found.holds, f"{found.said}, newcomer in after {let_in_s:.1f} s")
        finally:
            for sock in attackers.sockets:
                sock.close()

    async def control(self, size: Size) -> Finding:
        settings = {"flow": {"memory_max_bytes": UNLIMITED * LIMIT_BYTES}}
        async with victim(size.folder, settings) as broker, peak_memory(broker) as peak:
            with peak.until_above(limit_bytes_of(size)):
                attackers = Attackers(broker)
                await trio.to_thread.run_sync(self._attack, attackers, size, abandon_on_cancel=True)
        return peak.below(limit_bytes_of(size))


def filling(
    name: str, fill: Fill, count: int, size_bytes: int, *, least: int | None = None
) -> Attack:
    """`least` is the number in the small form for the tests, or None if there is no such form."""
    what = Filling(fill, count, least or count, size_bytes)
    bound = f"memory within {SLACK:g} times its limit, and everybody else is served"
    return Attack(name, bound, what.run, what.control, is_tested=least is not None)


ATTACKS = [
    filling("half-packets", half_publishes, 5_000, 60_000),
    filling("half-large-packets", half_publishes, 1_000, 900_000, least=150),
    filling("large-packets", big_publishes, 400, 900_000),
    filling("half-connects", half_connects, 6_000, 60_000, least=2_000),
    filling("whole-connects", whole_connects, 6_000, 60_000),
    filling("floods", floods, 1_000, 1_000),
    filling("unacknowledged", unacknowledged, 150, 10_000, least=60),
    filling("dead-readers", dead_readers, 200, 20_000, least=60),
    filling("retained", retained, 100_000, 2_000),
    filling("kept-sessions", offline, 4_000, 2_000),
]
