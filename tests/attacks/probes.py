"""What an attack looks at: whether the broker answers, how late it is, and how much it holds."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from flowguard.codec.packets import Connack
from flowguard.types import MQTT_5
from tests.attacks.attack import Finding
from tests.attacks.victim import ANSWER_S, MIB, Victim
from tests.support.real import Wire, connect_packet

LOOK_S = 0.02
SLACK = 1.1
"""Of the limit of memory: an allocator keeps some of what is free."""


async def answers(victim: Victim, client_id: str = "probe", within_s: float = ANSWER_S) -> bool:
    """Whether a newcomer gets its CONNACK, whatever that says, and its PINGRESP if it is in."""
    with trio.move_on_after(within_s):
        try:
            wire = await victim.open()
            await wire.send(connect_packet(client_id))
            connack = await wire.receive()
            if isinstance(connack, Connack) and not connack.reason_code:
                await wire.ping()
            await wire.close()
        except OSError:
            return False
        else:
            return isinstance(connack, Connack)
    return False


async def serves(victim: Victim) -> Finding:
    """The broker runs, and newcomers are answered."""
    if not victim.is_alive:
        return Finding(False, f"ended: {victim.logged.strip().splitlines()[-1:]}")
    if not await answers(victim):
        return Finding(False, "runs, and answers nobody")
    return Finding(True, "answers")


@asynccontextmanager
async def peak_memory(victim: Victim) -> AsyncIterator["Peak"]:
    """The most that the process held while the block ran."""
    peak = Peak(victim)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peak.watch)
        yield peak
        nursery.cancel_scope.cancel()


@dataclass
class Peak:
    victim: Victim
    resident_bytes: int = 0

    async def watch(self) -> None:
        while self.victim.is_alive:
            self.resident_bytes = max(self.resident_bytes, self.victim.resident_bytes())
            await trio.sleep(LOOK_S)

    def below(self, limit_bytes: int) -> Finding:
        """Whether it stayed within the limit, and an allocator's slack."""
        holds = self.victim.is_alive and self.resident_bytes <= SLACK * limit_bytes
        shown = f"{self.resident_bytes / MIB:.0f} of {limit_bytes / MIB:.0f} MiB"
        return Finding(holds, shown if self.victim.is_alive else f"ended at {shown}")


@dataclass
class Pulse:
    """A polite client that asks PINGREQ all the time: how long the worst answer took, seconds."""

    wire: Wire
    worst_s: float = 0.0
    count: int = 0
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def beat(self) -> None:
        while True:
            began_s = trio.current_time()
            await self.wire.ping()
            self.worst_s = max(self.worst_s, trio.current_time() - began_s)
            self.count += 1
            await trio.sleep(0.001)


@asynccontextmanager
async def pulse(victim: Victim) -> AsyncIterator[Pulse]:
    """A polite client beside the attack."""
    beating = Pulse(await victim.connect("polite"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(beating.beat)
        yield beating
        with trio.fail_after(ANSWER_S):
            seen = beating.count
            while beating.count == seen:  # noqa: ASYNC110
                await trio.sleep(LOOK_S)
        nursery.cancel_scope.cancel()


async def open_all(victim: Victim, count: int, first: bytes = b"") -> list[Wire]:
    """So many connections; each says `first`, and no more. One that is refused is left out."""
    wires: list[Wire] = []
    for _ in range(count):
        try:
            wire = await victim.open(MQTT_5)
            if first:
                await wire.stream.send_all(first)
        except OSError:
            continue
        wires.append(wire)
    return wires


async def all_of(calls: list[Callable[[], Awaitable[bool]]]) -> int:
    """Of how many it was true, all asked at once."""
    found: list[bool] = []

    async def ask(call: Callable[[], Awaitable[bool]]) -> None:
        found.append(await call())

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(ask, call)
    return sum(found)
