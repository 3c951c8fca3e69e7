"""A run as the published pictures draw it: running totals every half second."""

from dataclasses import dataclass
from typing import NamedTuple

from flowguard.config import PolicyName
from simulations.results.run import SAMPLE_S, Summary, run
from simulations.scenario_files.loading import load
from simulations.world import World

Point = tuple[float, float]


class Step(NamedTuple):
    """A scenario with changes, under a policy."""

    scenario: str
    changes: dict[str, float | bool]
    policy: PolicyName

    def __str__(self) -> str:
        return f"{self.scenario}: {self.policy}"


class Row(NamedTuple):
    """An instant; all but `sessions` are totals since the start."""

    t_s: float
    sessions: int
    """Clients connected, by the nodes that store the session of each."""
    attempts: int
    published: int
    """Messages acknowledged to the one publisher."""
    busy_s: float
    """Of all loops."""


@dataclass(frozen=True)
class Curves:
    """A run under one policy."""

    policy: PolicyName
    rows: tuple[Row, ...]
    nodes: int
    clients: int
    declined: int
    t50_s: float | None
    t99_s: float | None
    attempts_per_client: float
    violation: str | None

    def totals(self, name: str) -> tuple[Point, ...]:
        """A column as it is."""
        return tuple((row.t_s, float(getattr(row, name))) for row in self.rows)

    def rates(self, name: str, over: int = 4) -> tuple[Point, ...]:
        """A total per second, over so many rows."""
        pairs = zip(self.rows, self.rows[over:], strict=False)
        return tuple(
            (late.t_s, (getattr(late, name) - getattr(early, name)) / (late.t_s - early.t_s))
            for early, late in pairs
        )

    def rate(self, name: str, from_s: float) -> float:
        """A total per second from then to the end."""
        first = next(row for row in self.rows if row.t_s >= from_s)
        last = self.rows[-1]
        gained: float = getattr(last, name) - getattr(first, name)
        return gained / (last.t_s - first.t_s)


def observe(step: Step) -> Curves:
    """Run it here and now."""
    scenario = load(step.scenario, step.changes).scenario
    worlds: list[World] = []
    rows: list[Row] = []

    def watch(world: World) -> bool:
        rows.append(_row(world, SAMPLE_S * (len(rows) + 1)))
        return world.violation is None

    summary = run(scenario, step.policy, attach=worlds.append, watch=watch)
    return _curves(step.policy, rows, summary, scenario.nodes)


def _curves(policy: PolicyName, rows: list[Row], summary: Summary, nodes: int) -> Curves:
    return Curves(
        policy,
        tuple(rows),
        nodes,
        summary.clients,
        summary.declined_count,
        summary.connected_50_s,
        summary.connected_99_s,
        summary.attempts_per_client,
        summary.violation,
    )


def _row(world: World, t_s: float) -> Row:
    replicas = world.scenario.network.replicas
    populations = world.populations
    published = sum(
        p.publishers.acknowledged_count for p in populations if p.publishers and p.clients == 1
    )
    busy_s = 0.0
    for machine in world.machines:
        busy_s += machine.counters.busy_s
        if machine.broker is not None:
            loop = machine.broker.loop
            busy_s += loop.busy_s - max(0.0, loop.clock_s - t_s)
    return Row(
        t_s,
        replicas * sum(p.connected_count for p in populations),
        sum(p.attempts_count for p in populations),
        published,
        busy_s,
    )
