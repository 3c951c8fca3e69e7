"""Probe: what a run shows ten times a virtual second, and at its end; it changes nothing."""

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from flowguard.flow.load.histogram import LATENCY_BOUNDS_S, Histogram
from simulations.crowd.connection import Outcome
from simulations.invariants import Invariants
from simulations.results.run import Summary
from simulations.world import World

STEP_S: Final = 0.1
Rows = list["array[float]"]
Columns = dict[str, "array[float]"]


def column() -> "array[float]":
    return array("d")


def columns() -> Columns:
    return defaultdict(column)


@dataclass(slots=True)
class Series:
    """Values at `k * STEP_S`, k from 0, nodes by index and populations by name."""

    windows: Rows = field(default_factory=list)
    pressures: Rows = field(default_factory=list)
    lags_s: Rows = field(default_factory=list)
    """How long a loop is still busy with what it does: what an event that comes now waits."""
    memories_bytes: Rows = field(default_factory=list)
    connected: Columns = field(default_factory=columns)
    answered: Columns = field(default_factory=columns)
    """Clients that were connected at least once. Running totals, as the next three."""
    connacks: Columns = field(default_factory=columns)
    """Attempts that succeeded."""
    acknowledged: Columns = field(default_factory=columns)
    in_time: Columns = field(default_factory=columns)


@dataclass(frozen=True, slots=True)
class Observed:
    summary: Summary
    series: Series
    clients: dict[str, int]
    """By population, as the next two."""
    acknowledged_p99_s: dict[str, float | None]
    """From the instant a message was due."""
    delivered_p99_s: dict[str, float | None]
    lost_count: int
    """Messages that were acknowledged and never delivered."""
    buffered_max: int
    """CONNECTs in a gate's buffer."""
    buffered_bytes_max: int
    fairness: float | None
    """Jain's index of the cost served, each client's by its max-min fair share; 1 is fair."""
    violation: str
    """The first invariant that did not hold; empty: all did."""


class Probe:
    """Watches a world that has not begun, from now on."""

    def __init__(
        self, world: World, latencies_from_s: float = 0.0, *, invariants: bool = False
    ) -> None:
        self.series = Series()
        self._early: dict[int, list[int]] = {}
        """Counts of latencies that do not count, by the identity of their histogram."""
        self._world = world
        self._steps = 0
        self._buffered_max = 0
        self._buffered_bytes_max = 0
        series = self.series
        for rows in (series.windows, series.pressures, series.lags_s, series.memories_bytes):
            rows.extend(column() for _ in world.machines)
        if invariants:
            Invariants(world)
        world.engine.watch(0.0, self._look, None)
        world.engine.watch(latencies_from_s, self._forget, None)

    def _look(self, _: None) -> None:
        world, now_s = self._world, self._world.engine.now_s
        for machine in world.machines:
            self._look_at(machine.index, now_s)
        series = self.series
        for population in world.populations:
            publishers, name = population.publishers, population.name
            series.connected[name].append(population.connected_count)
            series.answered[name].append(population.first_connected_count)
            series.connacks[name].append(population.outcomes[Outcome.CONNECTED])
            series.acknowledged[name].append(publishers.acknowledged_count if publishers else 0)
            series.in_time[name].append(publishers.in_time_count if publishers else 0)
        self._steps += 1
        world.engine.watch(self._steps * STEP_S, self._look, None)

    def _forget(self, _: None) -> None:
        for population in self._world.populations:
            if population.publishers is not None:
                histogram = population.publishers.acknowledgements
                self._early[id(histogram)] = list(histogram.counts)
            if population.topic is not None:
                histogram = population.topic.deliveries
                self._early[id(histogram)] = list(histogram.counts)

    def _p99_s(self, histogram: Histogram) -> float | None:
        late = Histogram(LATENCY_BOUNDS_S)
        early = self._early.get(id(histogram), [0] * len(histogram.counts))
        late.counts = [b - a for a, b in zip(early, histogram.counts, strict=True)]
        return late.percentile(0.99)

    def _look_at(self, index: int, now_s: float) -> None:
        broker = self._world.machines[index].broker
        window = pressure = lag_s = memory_bytes = 0.0
        if broker is not None:
            grant, gate = broker.guard.grant, broker.guard.gate
            window, pressure = grant.window, grant.pressure.value
            lag_s = max(0.0, broker.loop.clock_s - now_s)
            memory_bytes = broker.memory_bytes
            self._buffered_max = max(self._buffered_max, gate.buffered)
            self._buffered_bytes_max = max(self._buffered_bytes_max, gate.buffered_bytes)
        self.series.windows[index].append(window)
        self.series.pressures[index].append(pressure)
        self.series.lags_s[index].append(lag_s)
        self.series.memories_bytes[index].append(memory_bytes)

    def observed(self, summary: Summary) -> Observed:
        world = self._world
        return Observed(
            summary,
            self.series,
            {p.name: p.clients for p in world.populations},
            {
                p.name: self._p99_s(p.publishers.acknowledgements)
                for p in world.populations
                if p.publishers is not None
            },
            {
                p.name: self._p99_s(p.topic.deliveries)
                for p in world.populations
                if p.topic is not None
            },
            sum(machine.counters.lost_count for machine in world.machines),
            self._buffered_max,
            self._buffered_bytes_max,
            fairness_of(world),
            "" if world.violation is None else str(world.violation),
        )


# --- fairness --------------------------------------------------------------------------------


def fairness_of(world: World) -> float | None:
    """Of all clients that publish; None: nobody does, or nothing was served.

    A client of an open loop wants its even share of what its population had due, one of a closed
    loop everything.
    """
    served: list[float] = []
    wanted: list[float] = []
    for population in world.populations:
        publishers = population.publishers
        if publishers is None or not publishers.acknowledged_count:
            continue
        units = publishers.cost_units
        served += units
        wanted_each = float("inf")
        if publishers.plan.rate_per_s is not None or publishers.plan.trace is not None:
            unit = sum(units) / publishers.acknowledged_count
            wanted_each = publishers.due_count * unit / len(units)
        wanted += [wanted_each] * len(units)
    if not sum(served):
        return None
    shares = fair_shares(sum(served), wanted)
    return jain([have / share for have, share in zip(served, shares, strict=True)])


def fair_shares(total: float, wanted: Sequence[float]) -> list[float]:
    """Max-min fair: nobody gets more than it wants, and the rest is shared evenly."""
    shares = [0.0] * len(wanted)
    left, others = total, len(wanted)
    for index in sorted(range(len(wanted)), key=wanted.__getitem__):
        shares[index] = min(wanted[index], left / others)
        left -= shares[index]
        others -= 1
    return shares


def jain(values: Sequence[float]) -> float:
    """1: all alike; 1/n: one has all."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
