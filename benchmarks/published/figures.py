"""Figures 3 and 4 of the article: what is simulated for each, and how it is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.checks import Check, Grid, Report
from benchmarks.overload.plot import Panel, Series, svg
from flowguard.config import PolicyName

from .curves import Curves, Point, Step

OLD: Final[PolicyName] = "rate-limit-v1"
OURS: Final[PolicyName] = "flowguard"
NOTHING: Final[PolicyName] = "unlimited"
POLICIES: Final[tuple[PolicyName, ...]] = (OLD, OURS, NOTHING)
CROWD, NODES = 200_000, 3
BEGINS_S = 20.0
"""When the publisher of figure 3 is connected."""
FORWARD_S = 0.000_5


@dataclass(frozen=True)
class Figure:
    """One picture, and its page."""

    key: str
    title: str
    scenario: str
    changes: Callable[[float], dict[str, float | bool]]
    """By scale."""
    told: Callable[["Figure", Sequence[Curves], float], Report]

    def steps(self, scale: float) -> list[Step]:
        changes = self.changes(scale)
        return [Step(self.scenario, changes, policy) for policy in POLICIES]


def _told_publisher(figure: Figure, runs: Sequence[Curves], scale: float) -> Report:
    by_policy = {run.policy: run for run in runs}
    rates = {policy: run.rate("published", BEGINS_S + 5) for policy, run in by_policy.items()}
    grid = Grid(
        ("policy", "PUBLISH /s", "CPU in use"),
        tuple((run.policy, f"{rates[run.policy]:.1f}", f"{100 * _cpu(run):.0f} %") for run in runs),
    )
    more = rates[OURS] / rates[OLD]
    panels = (
        Panel("PUBLISH per second", _lines(runs, lambda run: run.rates("published"))),
        Panel(
            "CPU in use, percent of all loops",
            _lines(runs, lambda run: [(t, 100 * v / run.nodes) for t, v in run.rates("busy_s")]),
        ),
    )
    checks = (Check("more PUBLISH than the old limiter", f"{more:.1f} times", "> 1", more > 1),)
    return _report(figure, "One run of each. " + _PUBLISHER, checks, grid, panels, runs)


def _told_crowd(figure: Figure, runs: Sequence[Curves], scale: float) -> Report:
    by_policy = {run.policy: run for run in runs}
    old, ours = by_policy[OLD], by_policy[OURS]
    rows = tuple(
        (
            run.policy,
            _seconds(run.t50_s),
            _seconds(run.t99_s),
            f"{run.attempts_per_client:.2f}",
            f"{run.declined:,}",
        )
        for run in runs
    )
    grid = Grid(("policy", "50 % in", "99 % in", "attempts per client", "declined"), rows)
    faster = (old.t99_s or 0.0) / ours.t99_s if ours.t99_s else 0.0
    fewer = ours.declined < old.declined
    checks = (
        Check("faster to 99 % than the old limiter", f"{faster:.1f} times", "> 1", faster > 1),
        Check("fewer declined", f"{ours.declined:,}", f"< {old.declined:,}", fewer),
    )
    panels = (
        Panel("sessions, replicas included", _lines(runs, lambda run: run.totals("sessions"))),
        Panel("connection attempts so far", _lines(runs, lambda run: run.totals("attempts"))),
    )
    scaled = f"One run of each; {ours.clients:,} clients, nodes: {ours.nodes}."
    if scale != 1:
        scaled += (
            f" Published: {CROWD:,} on {NODES}. A node and its limits are as they were, so with "
            f"{ours.clients / ours.nodes * NODES / CROWD:g} of the clients for each it takes less "
            "time."
        )
    return _report(figure, scaled, checks, grid, panels, runs)


def _report(
    figure: Figure,
    scaled: str,
    checks: tuple[Check, ...],
    grid: Grid,
    panels: Sequence[Panel],
    runs: Sequence[Curves],
) -> Report:
    violated = tuple(f"{run.policy}: {run.violation}" for run in runs if run.violation)
    picture = svg(panels, figure.title)
    return Report(figure.key, figure.title, scaled, checks, (grid,), violated, picture)


def _crowd(scale: float) -> dict[str, float | bool]:
    """A third of the crowd, or less, is for one node: what limits it stays as it is."""
    return {"clients": round(CROWD * scale), "nodes": NODES if scale * NODES > 1 else 1}


def _lines(
    runs: Sequence[Curves], points: Callable[[Curves], Sequence[Point]]
) -> tuple[Series, ...]:
    return tuple(Series(run.policy, _thinned(points(run))) for run in runs)


def _thinned(points: Sequence[Point], most: int = 120) -> tuple[Point, ...]:
    """Few enough for a small picture, the last one among them."""
    step = -(-len(points) // most) or 1
    return (*points[:-1:step], *points[-1:])


def _cpu(run: Curves) -> float:
    return run.rate("busy_s", BEGINS_S + 5) / run.nodes


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


_PUBLISHER = (
    "A publisher with 100 unacknowledged messages at most to 10,000 subscribers on three nodes, "
    f"full size; giving a message to another node takes {FORWARD_S * 1e3:g} ms. Rates from 5 s "
    "after its start on."
)
FIGURES: Final = (
    Figure(
        "published-3",
        "Figure 3: one publisher to 10,000 subscribers",
        "fan_out",
        lambda scale: {"node.forward_s": FORWARD_S},
        _told_publisher,
    ),
    Figure(
        "published-4",
        "Figure 4: a crowd that the buffer holds",
        "flash_crowd",
        lambda scale: _crowd(scale) | {"connects_per_s": 2_000.0, "fits": True},
        _told_crowd,
    ),
    Figure(
        "published-4-not",
        "Figure 4: a crowd that no buffer holds",
        "flash_crowd",
        lambda scale: _crowd(scale) | {"connects_per_s": 667.0},
        _told_crowd,
    ),
)
