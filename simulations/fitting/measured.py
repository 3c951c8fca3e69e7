"""Measured: the figures that a recorded run and a simulated one have in common.

Both are measured at the broker: a PUBLISH from its decoding to its PUBACK, an attempt from the
socket in the backlog to CONNACK.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

from flowguard.flow.load.histogram import Histogram
from flowguard.flow.load.observer import BOUNDS_S, BUCKET_RATIO
from simulations.crowd.clients import NEVER_S
from simulations.fitting.recorded import RecordedRun
from simulations.scenario import Scenario
from simulations.world import World

CONNECTED: Final = "connected"
SHARE: Final = 0.99
"""Share of the clients whose connection counts as the end of a crowd."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    published: list[float]
    """PUBLISHes taken on, by second."""
    acknowledgements: list[Histogram]
    """Times from PUBLISH to PUBACK, by second."""
    connected_99_s: float
    """Time from the first attempt until 99 % of the clients have been connected, or infinity."""
    busy_s: float
    """Time for which the loop worked."""

    def goodput_per_s(self, seconds: Sequence[int]) -> float:
        return sum(self.published[second] for second in seconds) / max(1, len(seconds))

    def latency_s(self, share: float, seconds: Sequence[int]) -> float | None:
        """Return a percentile of the time from PUBLISH to PUBACK, within its bucket."""
        joined = Histogram(BOUNDS_S)
        for second in seconds:
            joined.add(self.acknowledgements[second])
        return within(joined, share)


def within(histogram: Histogram, share: float) -> float | None:
    """Return a percentile, interpolated within its bucket, or None without values."""
    cumulative = histogram.cumulative()
    if not cumulative[-1]:
        return None
    rank = share * cumulative[-1]
    bucket = next(index for index, count in enumerate(cumulative) if count >= rank)
    if bucket >= len(histogram.bounds):
        return inf
    before = cumulative[bucket - 1] if bucket else 0
    part = (rank - before) / max(1, histogram.counts[bucket])
    if not bucket:
        return histogram.bounds[0] * part
    return float(histogram.bounds[bucket] * BUCKET_RATIO ** (part - 1.0))


def publishing_seconds(published: Sequence[float]) -> list[int]:
    """Return the seconds from the first to the last one with messages, without these two."""
    found = [second for second, count in enumerate(published) if count]
    return list(range(found[0] + 1, found[-1])) if len(found) > 2 else found


def of_recording(run: RecordedRun) -> MeasuredRun:
    acknowledgements = [Histogram(BOUNDS_S) for _ in range(run.seconds)]
    buckets = {bound_s: index for index, bound_s in enumerate((*BOUNDS_S, inf))}
    for second, bound_s, count in run.histograms("acknowledgement"):
        acknowledgements[second].counts[buckets[bound_s]] += count
    first: dict[int, float] = {}
    for client, ended_s, outcome in run.rows("attempts", "client", "ended_s", "outcome"):
        first.setdefault(client, inf)
        if outcome == CONNECTED:
            first[client] = min(first[client], ended_s)
    # Attempts that ended before their CONNECT was read have no client, and numbers below 0.
    known_s = sorted(ended_s for client, ended_s in first.items() if client >= 0)
    started_s = min(run.column("attempts", "started_s"))
    return MeasuredRun(
        run.by_second("published_count"),
        acknowledgements,
        known_s[ceil(SHARE * len(known_s)) - 1] - started_s if known_s else inf,
        sum(run.by_second("busy_s")),
    )


def simulated(scenario: Scenario) -> MeasuredRun:
    """Simulate, and measure in the same way."""
    world = World(scenario, scenario.flow.policy)
    seconds = max(1, round(scenario.duration_s))
    published: list[float] = []
    acknowledgements: list[Histogram] = []
    busy_s = before = 0.0
    for second in range(seconds):
        acknowledgements.append(Histogram(BOUNDS_S))
        broker = world.machines[0].broker
        if broker is not None:
            broker.packets.acknowledgements = acknowledgements[-1]
        world.run(second + 1.0)
        if broker is not None:
            busy_s = broker.loop.busy_s
        total = world.machines[0].counters.published_count
        published.append(total - before)
        before = total
    first_s = sorted(
        inf if at_s == NEVER_S else at_s
        for population in world.populations
        for at_s in population.first_connected_s
    )
    started_s = min(min(population.starts_s) for population in world.populations)
    connected_s = first_s[ceil(SHARE * len(first_s)) - 1] - started_s
    return MeasuredRun(published, acknowledgements, connected_s, busy_s)
