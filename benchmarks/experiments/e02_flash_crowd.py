"""E2: 200,000 persistent clients within a second, on three nodes; the crowd HiveMQ published."""

from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from benchmarks.checks import Check, Report
from flowguard.config import PolicyName

from . import figures
from .cases import OURS, Case, Experiment, Runs
from .judging import Column, at_most, held, misses, table
from .probe import Observed

CLIENTS, NODES, CONNECTS_PER_S = 200_000, 3, 667.0
IDEAL_S: Final = CLIENTS / (NODES * CONNECTS_PER_S)
"""All nodes serve CONNECTs and do nothing else."""
BUFFER_MAX, BACKLOG_MAX, BUFFER_BYTES_MAX = 10_000, 4_096, 16 * 2**20
REJECT: Final = "reject-at-limit"
RATE: Final = "rate-limit-v1"
UNLIMITED: Final = "unlimited"
COSTS: Final = (0.07, 0.22)


@dataclass(frozen=True)
class Retry:
    """How clients come back, and what the design asks for then."""

    name: str
    changes: dict[str, Any]
    bounds: dict[float, float]
    """t99 by the ideal, for each cost of a refusal; nothing asked for: none."""
    controls: tuple[PolicyName, ...]

    def case(self, cost: float) -> str:
        return f"{self.name} {cost:g}"


RETRIES: Final = (
    Retry("R1", {}, dict.fromkeys(COSTS, 1.5), (REJECT, RATE, UNLIMITED)),
    Retry("R2", {"retry": "fixed"}, {0.07: 2.0, 0.22: 4.5}, (REJECT,)),
    Retry("R3 50 %", {"retry": "hints", "populations.crowd.retry.obedient": 0.5}, {}, ()),
    Retry("R3 100 %", {"retry": "hints"}, {}, ()),
)


def size_of(scale: float) -> dict[str, Any]:
    """Crowd and nodes, so that the shape stays."""
    return {
        "clients": round(CLIENTS * scale),
        "connects_per_s": CONNECTS_PER_S * scale,
        "node.listen_backlog": max(1, round(BACKLOG_MAX * scale)),
        "flow.connect_buffer_max": round(BUFFER_MAX * scale),
    }


def cases(scale: float) -> list[Case]:
    size, made = size_of(scale), []
    for retry, cost in product(RETRIES, COSTS):
        changes = size | {"refuse_cost": cost} | retry.changes
        if retry.name == "R2":  # Whoever is not through by then has missed the bound for long.
            changes["duration_s"] = 1.2 * retry.bounds[cost] * IDEAL_S
        # The rate limiter's 500 CONNECTs per second are its own: there is no smaller one.
        controls = [policy for policy in retry.controls if policy != RATE or scale == 1.0]
        made.append(Case(retry.case(cost), "flash_crowd", changes, (OURS, *controls)))
    return made


def of_ideal(run: Observed) -> float | None:
    t99_s = figures.connected_99_s(run)
    return None if t99_s is None else t99_s / IDEAL_S


def judge(runs: Runs) -> Report:
    checks: list[Check] = []
    for retry, cost in product(RETRIES, COSTS):
        case = retry.case(cost)
        checks += judge_case(runs, retry, cost)
        wasted = runs.figures(case, figures.wasted_share)
        checks.append(at_most(f"{case}: wasted CONNECTs", wasted, 1.0, " %", 2))
    for cost in COSTS:
        stubborn = runs.figures(f"R1 {cost:g}", figures.attempts).mean or 0.0
        obedient = runs.figures(f"R3 100 % {cost:g}", figures.attempts)
        what = f"R3 {cost:g}: attempts of clients that all obey, against R1"
        checks.append(at_most(what, obedient, stubborn))
    return Report(
        "sim-e2",
        f"E2, simulated: {round(CLIENTS * runs.scale):,} clients within a second",
        f"{NODES} nodes of {CONNECTS_PER_S * runs.scale:,.0f} CONNECT/s each, so {IDEAL_S:.0f} s "
        "at best; clients wait 10 s. R1: back-off from 1 to 60 s with jitter; R2: again after 2 s, "
        "without jitter; R3: that share obeys `retry-after-ms`. The number after it: what "
        "a refusal costs, of a CONNECT. The bounds are meant for 200,000 clients: with fewer, on "
        "nodes as much slower, serving a CONNECT takes as much longer, and more clients lose "
        "patience meanwhile. Wasted are mostly clients whose SYN was lost before: who gets in "
        "with its fourth, after 7 s, gives up 3 s later, and no node can know that.",
        (*checks, *caps(runs), held(runs)),
        (table(runs, "case", COLUMNS),),
    )


def judge_case(runs: Runs, retry: Retry, cost: float) -> list[Check]:
    case = retry.case(cost)
    bound = retry.bounds.get(cost)
    if bound is None:
        return []
    what = f"{case}: t99, of the ideal"
    ours, control = runs.figures(case, of_ideal), runs.figures(case, of_ideal, REJECT)
    checks = [
        at_most(what, ours, bound, "x", 2),
        misses(at_most(what, control, bound, "x", 2), REJECT),
    ]
    if retry.name == "R1":
        tries = runs.figures(case, figures.attempts)
        checks.append(against(runs, case, REJECT, 0.7))
        checks.append(at_most(f"{case}: attempts per client", tries, 5.0))
    return checks


def against(runs: Runs, case: str, policy: str, bound: float) -> Check:
    """t99 of ours, of that policy's, seed by seed; a policy that never ends is beaten."""
    ours = runs.figures(case, of_ideal).values
    theirs = runs.figures(case, of_ideal, policy).values
    shares = tuple(
        None if mine is None else (mine / other if other is not None else 0.0)
        for mine, other in zip(ours, theirs, strict=True)
    )
    return at_most(f"{case}: t99, of {policy}'s", figures.Figures(shares), bound, "x", 2)


def caps(runs: Runs) -> list[Check]:
    """Buffers never held more than they may."""
    ours = runs.all_of(OURS)
    count = max(run.buffered_max for run in ours)
    size_bytes = max(run.buffered_bytes_max for run in ours)
    count_max = round(BUFFER_MAX * runs.scale)
    return [
        Check("CONNECTs in a buffer", f"{count:,}", f"≤ {count_max:,}", count <= count_max),
        Check(
            "bytes in a buffer",
            f"{size_bytes / 2**20:.1f} MiB",
            f"≤ {BUFFER_BYTES_MAX / 2**20:g} MiB",
            size_bytes <= BUFFER_BYTES_MAX,
        ),
    ]


def connected_share(run: Observed) -> float:
    return 100.0 * run.summary.connected_share


COLUMNS: Final = {
    "99 % after s": Column(figures.connected_99_s),
    "of ideal": Column(of_ideal, digits=2),
    "attempts/client": Column(figures.attempts),
    "wasted %": Column(figures.wasted_share, digits=2),
    "connected": Column(connected_share, " %"),
}
EXPERIMENT = Experiment(
    "E2",
    cases,
    judge,
    "the connect timeout, delays of retries, the first limit of 16 CONNECTs in process and "
    "the bytes of the connect queue are not scaled.",
)
