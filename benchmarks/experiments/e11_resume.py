"""E11: a thousand sessions with ten thousand queued messages each return within a second."""

from typing import Any, Final

from benchmarks.checks import Check, Grid, Report
from flowguard.config import PolicyName

from . import figures
from .cases import OURS, WITHOUT_TURNS, Case, Experiment, Runs
from .judging import at_most, held, misses, none_of
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


def live_p99_ms(run: Observed) -> float | None:
    p99_s = run.acknowledged_p99_s["live"]
    return None if p99_s is None else 1e3 * p99_s


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

    def of_alone(case: str, policy: str) -> figures.Figures:
        p99s_ms = runs.figures(case, live_p99_ms, policy).values
        return figures.Figures(tuple(p / alone if p and alone else None for p in p99s_ms))

    what = "p99 of the live ones, of without backlog"
    checks: list[Check] = [
        at_most(what, of_alone(RETURN, OURS), 2.0, "x", 2),
        misses(at_most(what, of_alone(AT_ONCE, CONTROL), 2.0, "x", 2), f"{CONTROL}, no turns"),
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
        (Grid(HEADER, tuple(rows(runs))),),
    )


HEADER = ("case", "policy", "p99 of the live ones ms", "replayed after s", "most memory MiB")


def rows(runs: Runs) -> list[tuple[str, ...]]:
    return [
        (
            case,
            policy,
            runs.figures(case, live_p99_ms, policy).text(),
            runs.figures(case, replayed_s, policy).text() if case != ALONE else "-",
            runs.figures(case, figures.memory_mib, policy).text(digits=0),
        )
        for case, policy in runs.observed
    ]


EXPERIMENT = Experiment("E11", cases, judge)
