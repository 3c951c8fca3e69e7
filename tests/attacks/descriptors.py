"""Attacks on descriptors: too many connections, and a limit that falls at run time."""

import resource
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from flowguard.codec.packets import Puback
from flowguard.types import Publish
from tests.attacks.attack import Attack, Finding, Size
from tests.attacks.controls import killed
from tests.attacks.probes import all_of, answers, open_all, serves
from tests.attacks.victim import ANSWER_S, Victim, victim
from tests.support.real import Wire

TIMEOUT_S = 2.0
DESCRIPTORS = 1_000
NONE_LEFT_S = 3.0
"""Longer than a look at the disk, the tick of every timer and a rest of a listener."""


async def descriptors(size: Size) -> Finding:
    """Open more silent connections than the process may have descriptors."""
    settings = {"flow": {"connect_timeout_s": TIMEOUT_S}}
    async with victim(size.folder, settings, descriptors=DESCRIPTORS, store="rocks") as broker:
        inside = await insider(broker)
        wires = await open_all(broker, DESCRIPTORS + 100)
        await trio.sleep(2 * TIMEOUT_S)  # A look at the disk, a table, a log: all need one.
        if not broker.is_alive:
            return await serves(broker)
        if not await is_served(inside):
            return Finding(False, "who was in is served no more")
        for wire in wires:
            await wire.close()
        return await serves(broker)


async def fallen_limit(size: Size) -> Finding:
    """The limit falls to the open descriptors: the broker loses none of them, but can open no
    more."""
    return await fall(size, lambda broker: len(list(Path(f"/proc/{broker.pid}/fd").iterdir())))


async def limit_of_three(size: Size) -> Finding:
    return await fall(size, lambda _: 3)


async def fall(size: Size, limit_of: Callable[[Victim], int]) -> Finding:
    """Lower the limit, knock with clients and HTTP, check connected clients, and restore the
    limit."""
    async with victim(size.folder, store="rocks") as broker:
        inside = await insider(broker)
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit_of(broker), hard))
        knocking = await open_all(broker, 50)
        with suppress(OSError):
            await trio.to_thread.run_sync(broker.get, "/status", 0.5)
        if not await is_served(inside):
            return Finding(False, "who was in is served no more")
        await trio.sleep(NONE_LEFT_S)
        if not broker.is_alive:
            return await serves(broker)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))
        for wire in knocking:
            await wire.close()
        found = await all_of([partial(answers, broker, f"new{n}") for n in range(20)])
        status, _ = await trio.to_thread.run_sync(broker.get, "/status")
        served = await is_served(inside)
    said = f"{found} of 20 answered afterwards, /status {status}, who was in is served: {served}"
    return Finding(found == 20 and status == 200 and served, said)


async def insider(broker: Victim) -> Wire:
    """A durable client that is subscribed to `t`."""
    inside = await broker.connect("inside", durable=True)
    await inside.subscribe("t", 1)
    return inside


async def is_served(inside: Wire) -> bool:
    """It publishes to itself."""
    got: set[type] = set()
    with trio.move_on_after(ANSWER_S):
        await inside.send(Publish("t", b"x", 1, packet_id=1))
        while got != {Publish, Puback}:
            packet = await inside.receive()
            if packet is None:
                return False
            got.add(type(packet))
            if isinstance(packet, Publish):
                await inside.send(Puback(packet.packet_id))
    return got == {Publish, Puback}


ATTACKS = [
    Attack(
        "descriptors",
        "more connections than descriptors end nothing, and who is in is served",
        descriptors,
        killed,
    ),
    Attack(
        "descriptors-fall",
        "a limit that falls to what is open ends nothing; when it is back, all are answered",
        fallen_limit,
        killed,
    ),
    Attack(
        "descriptors-three",
        "a limit that falls to three ends nothing; when it is back, all are answered",
        limit_of_three,
        killed,
        is_tested=False,
    ),
]
