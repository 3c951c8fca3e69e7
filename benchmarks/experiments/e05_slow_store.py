"""E5: the store of one node is slow, or stops, or stalls again and again."""

from functools import partial
from typing import Any, Final

from benchmarks.checks import Check, Report

from . import figures
from .cases import OURS, Case, Experiment, Runs
from .judging import Column, at_least, at_most, held, misses, none_of, table
from .probe import Observed

WORST: Final = "level-map"
UNLIMITED: Final = "unlimited"
UNTOUCHED = 99.0
"""Of the throughput before, percent: the fault is somewhere else."""
AT_S = 20.0
SLOW, STOP, STALLS = "40 times slower for 60 s", "stops for 5 s", "300 ms stall every 10 s"
UNTIL_S: Final = {SLOW: 80.0, STOP: 25.0, STALLS: 80.3}
AFTER_S = 20.0


def faults(case: str) -> list[dict[str, Any]]:
    """Of node 0; a Redis that stalls is the store of all three."""
    if case == SLOW:
        return [fault("slow_store", AT_S, UNTIL_S[SLOW]) | {"factor": 40.0}]
    if case == STOP:
        return [fault("store_stop", AT_S, UNTIL_S[STOP])]
    stalls = [AT_S + 10.0 * number for number in range(7)]
    return [
        fault("store_stop", at_s, at_s + 0.3) | {"node": n} for at_s in stalls for n in range(3)
    ]


def fault(kind: str, at_s: float, until_s: float) -> dict[str, Any]:
    return {"kind": kind, "at_s": at_s, "until_s": until_s, "node": 0}


def cases(scale: float) -> list[Case]:
    """Three publishers are as small as it gets."""
    return [
        Case(
            case,
            "slow_store",
            {"faults": faults(case), "duration_s": UNTIL_S[case] + AFTER_S},
            ("flowguard", WORST, UNLIMITED),
        )
        for case in UNTIL_S
    ]


def window_cut_s(run: Observed) -> float | None:
    """From the fault until the window of node 0 is half of what it was."""
    return figures.cut_s(run.series.windows[0], AT_S)


def kept(case: str, run: Observed) -> float | None:
    """Throughput of those that work with other nodes, percent of before."""
    totals = run.series.acknowledged["elsewhere"]
    before = figures.rate(totals, AT_S / 2.0, AT_S)
    during = figures.rate(totals, AT_S, UNTIL_S[case])
    return 100.0 * during / before if before and during is not None else None


def recovery(case: str, run: Observed) -> float | None:
    """Until those that work with node 0 have 90 % of what they had, for a second and for good."""
    totals = run.series.acknowledged["here"]
    before = figures.rate(totals, AT_S / 2.0, AT_S) or 0.0
    return figures.recovery_s(totals, before, UNTIL_S[case], share=0.9, over_s=1.0)


def judge(runs: Runs) -> Report:
    checks: list[Check] = []
    for case in UNTIL_S:
        here, elsewhere = (runs.figures(case, partial(of, case)) for of in (recovery, kept))
        if case != STALLS:
            cut, control = (runs.figures(case, window_cut_s, p) for p in (OURS, UNLIMITED))
            what = f"{case}: window cut after"
            checks += [
                at_most(what, cut, 1.0, " s"),
                misses(at_most(what, control, 1.0, " s"), UNLIMITED),
                at_least(f"{case}: off-path throughput", elsewhere, 90.0, " %"),
            ]
        checks += [
            at_most(f"{case}: recovery", here, 5.0, " s"),
            none_of(f"{case}: messages lost", runs.figures(case, figures.lost)),
        ]
    what = f"{SLOW}: off-path throughput"
    ours, control = (runs.figures(SLOW, partial(kept, SLOW), p) for p in (OURS, WORST))
    checks += [
        at_least(what, ours, UNTOUCHED, " %"),
        misses(at_least(what, control, UNTOUCHED, " %"), WORST),
    ]
    return Report(
        "sim-e5",
        "E5, simulated: a slow store",
        "Three nodes, a commit of 2 ms; one publisher works with node 0, whose store breaks, two "
        "with the others, each with up to 50 messages outstanding. The stalls are Redis's, so all "
        "three nodes have them, and nobody is off the path. The design guessed that level-map "
        "falls below 90 % off the path; it loses less.",
        (*checks, held(runs)),
        (table(runs, "fault", COLUMNS),),
    )


COLUMNS: Final = {
    "window cut after s": Column(window_cut_s),
    "off-path throughput": Column(None, " %", of_case=kept),
    "recovery s": Column(None, of_case=recovery),
    "lost": Column(figures.lost, digits=0),
}
EXPERIMENT = Experiment(
    "E5",
    cases,
    judge,
    "nothing is scaled, because three publishers cannot be fewer.",
)
