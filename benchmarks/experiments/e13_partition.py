"""E13: links, gossip or the common store are lost, for 5, 30 and 120 s."""

from functools import partial
from itertools import product
from typing import Any, Final

from benchmarks.checks import Check, Report

from . import figures
from .cases import Case, Experiment, Runs
from .judging import Column, at_least, at_most, held, misses, none_of, table
from .probe import Observed

CONTROL: Final = "unlimited"
NODES, CUT_AT_S, AFTER_S = 3, 20.0, 30.0
PUBLISHERS, PUBLISH_S = 100, 0.000_1
WINDOW_MAX = 100.0
LOST_S, GRACE_S = 5.0, 30.0
"""A node that is not heard is lost after the one, and halves windows for the other."""
MARGIN_S: Final = 1.0
LINKS, GOSSIP, STORE = "links", "gossip", "store"
LENGTHS_S: Final = (5.0, 30.0, 120.0)
CASES: Final = {
    f"{what} {cut_s:g} s": (what, cut_s)
    for what, cut_s in product((LINKS, GOSSIP, STORE), LENGTHS_S)
}
"""What is lost, and for how long."""


def cases(scale: float) -> list[Case]:
    size = {
        "populations.publishers.clients": NODES * max(2, round(PUBLISHERS * scale)),
        "node.publish_s": PUBLISH_S / scale,
    }
    made = []
    for case, (what, cut_s) in CASES.items():
        changes: dict[str, Any] = size | {"cut_s": cut_s}
        if what == GOSSIP:
            changes["replicas"] = 1
        if what == STORE:
            changes["faults"] = [
                {"kind": "store_stop", "node": node, "at_s": CUT_AT_S, "until_s": CUT_AT_S + cut_s}
                for node in range(NODES)
            ]
        made.append(Case(case, "partition", changes))
    return made


def acknowledged_without_store(case: str, run: Observed) -> float | None:
    """While nothing can be stored; the last commits are answered a moment later."""
    totals = run.series.acknowledged["publishers"]
    first = figures.index_of(CUT_AT_S + MARGIN_S)
    return totals[figures.index_of(CUT_AT_S + CASES[case][1]) - 1] - totals[first]


def window_max(case: str, run: Observed) -> float | None:
    """The largest at node 0 while its peers are lost, up to the end of the grace."""
    first = figures.index_of(CUT_AT_S + LOST_S + MARGIN_S)
    last = figures.index_of(CUT_AT_S + min(CASES[case][1], LOST_S + GRACE_S) - MARGIN_S)
    return max(run.series.windows[0][first:last], default=None)


def window_ever(case: str, run: Observed) -> float | None:
    """The largest anywhere, while something is lost."""
    first, last = figures.index_of(CUT_AT_S), figures.index_of(CUT_AT_S + CASES[case][1])
    return max(max(row[first:last]) for row in run.series.windows)


def after_share(case: str, run: Observed) -> float | None:
    """Goodput in the last 10 s, percent of before."""
    totals = run.series.in_time["publishers"]
    end_s = CUT_AT_S + CASES[case][1] + AFTER_S
    before = figures.rate(totals, CUT_AT_S / 2.0, CUT_AT_S)
    after = figures.rate(totals, end_s - 10.0, end_s - 0.1)
    return 100.0 * after / before if before and after is not None else None


def judge(runs: Runs) -> Report:
    checks: list[Check] = []
    for case, (what, cut_s) in CASES.items():
        ever, largest, unstored, after = (
            runs.figures(case, partial(figure, case))
            for figure in (window_ever, window_max, acknowledged_without_store, after_share)
        )
        checks.append(at_most(f"{case}: largest window meanwhile", ever, WINDOW_MAX, digits=0))
        if what != STORE and cut_s > LOST_S + 2.0 * MARGIN_S:
            words = f"{case}: largest window of node 0, peers lost"
            checks.append(at_most(words, largest, WINDOW_MAX / 2.0, digits=0))
        if what == STORE:
            checks.append(none_of(f"{case}: acknowledged and not stored", unstored))
        checks += [
            at_least(f"{case}: goodput after", after, 95.0, " %"),
            none_of(f"{case}: messages lost", runs.figures(case, figures.lost)),
        ]
    for case, (_, cut_s) in CASES.items():
        if cut_s == LENGTHS_S[-1]:
            control = runs.figures(case, partial(window_ever, case), CONTROL)
            words = f"{case}: largest window meanwhile"
            checks.append(misses(at_most(words, control, WINDOW_MAX, digits=0), CONTROL))
    return Report(
        "sim-e13",
        "E13, simulated: links, gossip or the common store are lost",
        f"Three nodes, {max(2, round(PUBLISHERS * runs.scale))} publishers each at 10 messages/s. "
        "Links: node 0 loses those to its peers, which store what it acknowledges as well. Gossip: "
        "the same where nothing is replicated. Store: that of all nodes stops, as a Redis would.",
        (*checks, held(runs)),
        (table(runs, "lost", COLUMNS),),
    )


COLUMNS: Final = {
    "largest window": Column(None, digits=0, of_case=window_ever),
    "goodput after/before": Column(None, " %", of_case=after_share),
    "most memory MiB": Column(figures.memory_mib, digits=0),
    "in time": Column(figures.goodput_share, " %"),
}
EXPERIMENT = Experiment(
    "E13",
    cases,
    judge,
    "the time of a commit, of gossip and of the faults is not scaled.",
)
