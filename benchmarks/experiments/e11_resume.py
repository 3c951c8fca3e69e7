"""E11: a thousand sessions with ten thousand queued messages each return within a second."""

from functools import partial
from typing import Any, Final

from benchmarks.checks import Check, Report
from flowguard.config import PolicyName

from . import figures
from .cases import OURS, WITHOUT_TURNS, Case, Experiment, Runs
from .judging import Column, at_most, held, misses, none_of, table
from .probe import Observed

CONTROL: Final[PolicyName] = "unlimited"
RETURNING, QUEUED, LIVE, LIVE_LOAD = 1_000, 10_000, 300, 0.3
NODES, DELIVERY_S, RETURN_S = 3, 0.000_03, 10.0
IDEAL_S: Final = RETURNING * QUEUED * DELIVERY_S / NODES / (1.0 - LIVE_LOAD)
"""All that the live ones leave of the loops goes into what has waited."""
RETURN, ALONE, AT_ONCE = "all return", "nothing has waited", "all return, no turns"
NODE_S: Final = {
    "accept_s": 0.000_075,
    "refuse_s": 0.000_03,
    "connect_s": 0.001_425,
    "close_s": 0.000_01,
    "publish_s": 0.000_1,
    "delivery_s": DELIVERY_S,
}


def cases(scale: float) -> list[Case]:
    changes: dict[str, Any] = {f"node.{key}": cost_s / scale for key, cost_s in NODE_S.items()}
    changes |= {
        "populations.returning.clients": round(RETURNING * scale),
        "populations.live.clients": max(3, round(LIVE * scale)),
    }
    return [
        Case(RETURN, "resume", changes, (OURS,), RETURN_S),
        Case(AT_ONCE, "resume", changes | WITHOUT_TURNS, (OURS, CONTROL), RETURN_S),
        Case(ALONE, "resume", changes | {"populations.returning.queued": 0}, (OURS,), RETURN_S),
    ]


live_p99_ms = partial(figures.acknowledged_p99_ms, "live")


def replayed_s(run: Observed) -> float | None:
    """Until all that had waited is sent and acknowledged."""
    last_s = run.summary.replayed_last_s
    returning = run.clients["returning"]
    if last_s is None or run.summary.replayed_count < QUEUED * returning:
        return None
    return last_s - RETURN_S


def of_ideal(run: Observed) -> float | None:
    took_s = replayed_s(run)
    return None if took_s is None else took_s / IDEAL_S


def judge(runs: Runs) -> Report:
    alone = runs.figures(ALONE, live_p99_ms).mean or 0.0
    ours = runs.figures(RETURN, live_p99_ms).by(alone)
    control = runs.figures(AT_ONCE, live_p99_ms, CONTROL).by(alone)
    what = "p99 of the live ones, of without backlog"
    checks: list[Check] = [
        at_most(what, ours, 2.0, "x", 2),
        misses(at_most(what, control, 2.0, "x", 2), f"{CONTROL}, no turns"),
        at_most("replay, of the ideal", runs.figures(RETURN, of_ideal), 1.3, "x", 2),
        none_of("messages lost", runs.figures(RETURN, figures.lost)),
        held(runs),
    ]
    return Report(
        "sim-e11",
        f"E11, simulated: {round(RETURNING * runs.scale):,} sessions of {QUEUED:,} messages return",
        f"Three nodes, two copies of everything; others publish meanwhile, {LIVE_LOAD:.0%} of what "
        f"the loops can do. Ideal: the rest of the loops sends what has waited, {IDEAL_S:.0f} s. "
        "No turns: a page is sent as soon as the store has read it, the next one as soon as it is "
        "acknowledged, as many as are asked for.",
        tuple(checks),
        (table(runs, "case", COLUMNS),),
    )


COLUMNS: Final = {
    "p99 of the live ones ms": Column(live_p99_ms),
    "replayed after s": Column(replayed_s, not_of=ALONE),
    "most memory MiB": Column(figures.memory_mib, digits=0),
}
EXPERIMENT = Experiment(
    "E11",
    cases,
    judge,
    "messages per session, pages of 70 messages and the time of a commit are not scaled.",
)
