"""The measurements of an attack: whether the broker answers, its delay, and its memory."""

import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio

from flowguard.codec.packets import Connack
from flowguard.types import MQTT_5
from tests.attacks import pulse as pulses
from tests.attacks.attack import Finding, Size
from tests.attacks.pulse import ANSWER
from tests.attacks.victim import ANSWER_S, MIB, Victim
from tests.support.real import Wire, connect_packet

LOOK_S = 0.02
CALM_BEATS = 200
LATE_S = 0.25
"""For a client that asks all the time, and what ten times its worst answer of a calm broker is."""
IN_TIME = f"others wait {LATE_S} s at most, and ten times as long as before"
SLACK = 1.1
"""Factor on the memory limit, because an allocator keeps some free memory."""


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
        return Finding(False, f"ended, {await victim.ended()}")
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
        peak.has_ended = not victim.is_alive
        nursery.cancel_scope.cancel()


class Peak:
    def __init__(self, victim: Victim) -> None:
        self.victim = victim
        self.resident_bytes = 0
        self.has_ended = False
        """Before the block did."""
        self._enough: tuple[int, trio.CancelScope] | None = None

    async def watch(self) -> None:
        while self.victim.is_alive:
            self.resident_bytes = max(self.resident_bytes, self.victim.resident_bytes())
            if self._enough is not None and self.resident_bytes > SLACK * self._enough[0]:
                self._enough[1].cancel()
            await trio.sleep(LOOK_S)

    def until_above(self, limit_bytes: int) -> trio.CancelScope:
        """Ends what is in it when the process holds more than the limit and the slack."""
        self._enough = limit_bytes, trio.CancelScope()
        return self._enough[1]

    def below(self, limit_bytes: int) -> Finding:
        """Whether it stayed within the limit, and an allocator's slack."""
        shown = f"{self.resident_bytes / MIB:.0f} of {limit_bytes / MIB:.0f} MiB"
        if self.has_ended:
            return Finding(False, f"ended at {shown}")
        return Finding(self.resident_bytes <= SLACK * limit_bytes, shown)


class Pulse:
    """The results of a polite client in another process that sends PINGREQ all the time."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path) -> None:
        self._process = process
        self._file = file
        self._began_s = 0.0
        self.late_max_s = LATE_S

    def answers(self) -> list[tuple[float, float]]:
        """When it asked and when it was answered, seconds of `time.monotonic`."""
        data = self._file.read_bytes()
        found = struct.iter_unpack(ANSWER.format, data[: len(data) // ANSWER.size * ANSWER.size])
        return [
            (asked_s, answered_s) for asked_s, answered_s in found if answered_s >= self._began_s
        ]

    def between(self, first_s: float, last_s: float) -> int:
        """Return the number of answers between two instants."""
        return sum(first_s <= answered_s <= last_s for _, answered_s in self.answers())

    async def beats(self, count: int) -> None:
        """Wait for `count` more answers."""
        wanted = len(self.answers()) + count
        with trio.fail_after(ANSWER_S):
            while len(self.answers()) < wanted:
                if self._process.poll() is not None:
                    raise ConnectionError("the polite client has lost its connection")
                await trio.sleep(LOOK_S)

    async def calm(self) -> None:
        """From here on the attack counts; how late an answer may be follows from those before."""
        self._began_s = time.monotonic()
        await self.beats(CALM_BEATS)
        self.late_max_s = LATE_S + 10 * max(last_s - first_s for first_s, last_s in self.answers())
        self._began_s = time.monotonic()

    def in_time(self, size: Size) -> Finding:
        """Return whether no answer took too long; a small attack judges no time."""
        waits_s = sorted(last_s - first_s for first_s, last_s in self.answers())
        holds = waits_s[-1] <= self.late_max_s or not size.is_full
        p99_ms, worst_ms = 1_000 * waits_s[99 * len(waits_s) // 100], 1_000 * waits_s[-1]
        shown = f"polite p99 {p99_ms:.1f} ms, worst {worst_ms:.0f}"
        return Finding(holds, f"{shown} (at most {1_000 * self.late_max_s:.0f})")


@asynccontextmanager
async def pulse(victim: Victim) -> AsyncIterator[Pulse]:
    """A polite client beside the attack."""
    with polite_process(victim) as beating:
        await beating.calm()
        yield beating
        await beating.beats(1)


@contextmanager
def polite_process(victim: Victim) -> Iterator[Pulse]:
    file = victim.log.with_name("pulse")
    file.touch()
    command = [sys.executable, "-I", "-S", pulses.__file__, *map(str, victim.address), str(file)]
    with subprocess.Popen(command) as process:
        try:
            yield Pulse(process, file)
        finally:
            process.kill()


async def open_all(victim: Victim, count: int, first: bytes = b"") -> list[Wire]:
    """Open `count` connections that send `first`, and no more. A rejected one is left out."""
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
    """Return for how many calls the result is True, all made at once."""
    found: list[bool] = []

    async def ask(call: Callable[[], Awaitable[bool]]) -> None:
        found.append(await call())

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(ask, call)
    return sum(found)
