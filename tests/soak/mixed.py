"""`python -m tests.soak.mixed`, or `make mixed`: memory of a broker stays flat under mixed load.

The broker is a process of its own with its store on disk. After the first minutes its resident
memory must not grow. When all clients have left, it must have as many descriptors and threads as
before, and accept every newcomer. Its objectives are such that no slow machine rejects clients.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import trio
import typer
from rich.console import Console

from tests.attacks.victim import MIB, Victim, victim
from tests.soak.load import Load, RejectedError
from tests.support.real import CALM
from tests.support.reaper import reap_at_the_end

SETTLE_MINUTES = 5.0
"""Time in which caches and buffers of the store fill; a run of less judges no growth."""
STORE = {"cache_bytes": MIB, "write_buffer_bytes": MIB, "wal_bytes_max": 4 * MIB}
"""Caches that are full by then; those of the default fill for an hour under this load."""
GROWTH_MAX = 0.05
PARTS = 5
"""The first and the last part of the samples are compared, by their medians."""
FIRST_LAP_S = 2.0
"""Load before the descriptors and threads are counted, which starts those that stay."""
SAMPLES = 360
QUIET_S = 12.0
"""Time without a change after which the count before the load stands; idle threads end in ten."""
LEFT_S = 120.0
"""The longest time until the last connection and idle thread must have ended."""
LOOK_S = 0.5
NEWCOMERS = 50
END_SHARE = 0.1
"""The share of the run, at its end, in which no client may be rejected."""


console = Console(highlight=False)


@dataclass(frozen=True)
class Sample:
    """Resources of the process at one moment."""

    at_s: float
    resident_bytes: int
    descriptors: int
    """Open descriptors without files of the store, which follow from its data."""
    threads: int

    @classmethod
    def of(cls, broker: Victim, data: Path) -> "Sample":
        process = Path("/proc", str(broker.pid))
        descriptors = [target_of(path) for path in (process / "fd").iterdir()]
        return cls(
            time.monotonic(),
            broker.resident_bytes(),
            sum(not target.startswith(str(data)) for target in descriptors),
            len(list((process / "task").iterdir())),
        )

    def __str__(self) -> str:
        return (
            f"{self.resident_bytes / MIB:7.1f} MiB, {self.descriptors} descriptors, "
            f"{self.threads} threads"
        )


def target_of(path: Path) -> str:
    """The file of a descriptor; "" if it was closed meanwhile."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def growth(resident: Sequence[int]) -> float:
    """The growth of the resident memory: the median of the last part against that of the first."""
    if not resident:
        return 0.0
    part = max(1, len(resident) // PARTS)
    return statistics.median(resident[-part:]) / statistics.median(resident[:part]) - 1


def failures(
    resident: Sequence[int], before: Sample, after: Sample, rejected: int, late_rejected: int
) -> list[str]:
    """The bounds that do not hold."""
    found = []
    if growth(resident) > GROWTH_MAX:
        found.append(f"resident memory grew by {growth(resident):.1%}, more than {GROWTH_MAX:.0%}")
    if after.descriptors > before.descriptors:
        found.append(f"{after.descriptors - before.descriptors} descriptors were left open")
    if after.threads > before.threads:
        found.append(f"{after.threads - before.threads} threads were left")
    if rejected:
        found.append(f"{rejected} of {NEWCOMERS} newcomers were rejected at the end")
    if late_rejected:
        found.append(f"{late_rejected} clients were rejected in the last part of the run")
    return found


async def soak(
    minutes: float, limit_bytes: int, rate: float, folder: Path, show: Callable[[str], None]
) -> list[str]:
    """Run it; returns the bounds that do not hold."""
    data = folder / "data"
    flow = {"memory_max_bytes": limit_bytes, **CALM}
    settings: dict[str, dict[str, Any]] = {"flow": flow, "store": STORE}
    async with victim(folder, settings, store="rocks") as broker:
        show(next((line for line in broker.logged.splitlines() if "started" in line), ""))
        await loaded(Load(broker.address, rate), FIRST_LAP_S)
        before = await left(broker, data, None)
        show(f"before       {before}")
        load, samples, began_s = Load(broker.address, rate), list[Sample](), time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            for _ in range(SAMPLES):
                await trio.sleep(60 * minutes / SAMPLES)
                samples.append(Sample.of(broker, data))
                if len(samples) % (SAMPLES // 30) == 0:
                    show(f"{samples[-1].at_s - began_s:7.0f} s    {samples[-1]}")
            nursery.cancel_scope.cancel()
        ended_s = time.monotonic()
        rejected = await newcomers(load)
        after = await left(broker, data, before)
    settled = [each for each in samples if each.at_s >= began_s + 60 * SETTLE_MINUTES]
    resident = [sample.resident_bytes for sample in settled]
    show(f"after        {after}")
    show(
        f"{load.published:,} messages published, {load.delivered:,} delivered, "
        f"{load.connected:,} connections, {load.lost} lost, {len(load.rejected_s)} rejected"
    )
    if resident:
        least, most = min(resident) / MIB, max(resident) / MIB
        first = f"after the first {SETTLE_MINUTES:.0f} minutes"
        show(f"resident {first}: {least:.1f} to {most:.1f} MiB, growth {growth(resident):+.1%}")
    late_s = ended_s - END_SHARE * (ended_s - began_s)
    late = sum(at_s >= late_s for at_s in load.rejected_s)
    return failures(resident, before, after, rejected, late)


async def loaded(load: Load, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await load.run()


async def newcomers(load: Load) -> int:
    """How many clients of `NEWCOMERS` are rejected."""
    rejected = 0
    async with AsyncExitStack() as connected:
        for number in range(NEWCOMERS):
            try:
                await connected.enter_async_context(load.client(f"newcomer{number}"))
            except RejectedError:
                rejected += 1
    return rejected


async def left(broker: Victim, data: Path, before: Sample | None) -> Sample:
    """A sample when all clients have left: as few as before, or when it changes no more."""
    ends_s = time.monotonic() + LEFT_S
    sample = Sample.of(broker, data)
    stable_s = time.monotonic()
    while time.monotonic() < ends_s:
        if before is None:
            if time.monotonic() - stable_s > QUIET_S:
                break
        elif sample.descriptors <= before.descriptors and sample.threads <= before.threads:
            break
        await trio.sleep(LOOK_S)
        found = Sample.of(broker, data)
        if (found.descriptors, found.threads) != (sample.descriptors, sample.threads):
            stable_s = time.monotonic()
        sample = found
    return sample


def show(line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)


def main(
    minutes: Annotated[float, typer.Option(min=0.05, help="Duration of the load.")] = 30.0,
    limit_mib: Annotated[int, typer.Option(min=150, help="Memory limit of the broker.")] = 1024,
    rate: Annotated[float, typer.Option(min=1, help="Messages published per second.")] = 300.0,
) -> None:
    """Exit code 1: a bound does not hold."""
    reap_at_the_end()
    with tempfile.TemporaryDirectory(prefix="flowguard-mixed-") as folder:
        found = trio.run(soak, minutes, limit_mib * MIB, rate, Path(folder), show)
    for line in found:
        show(f"does not hold: {line}")
    if found:
        raise typer.Exit(1)
    show("all bounds hold")


if __name__ == "__main__":
    typer.run(main)
