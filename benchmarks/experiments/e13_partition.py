"""E13: links, gossip or the common store are lost, for 5, 30 and 120 s."""

from itertools import product
from typing import Any, Final

from benchmarks.checks import Check, Grid, Report

from . import figures
from .cases import OURS, Case, Experiment, Runs
from .judging import at_least, at_most, held, misses, none_of
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


def name_of(what: str, cut_s: float) -> str:
    return f"{what} {cut_s:g} s"


def cases(scale: float) -> list[Case]:
    size = {
        "populations.publishers.clients": NODES * max(2, round(PUBLISHERS * scale)),
        "node.publish_s": PUBLISH_S / scale,
    }
    made = []
    for what, cut_s in product((LINKS, GOSSIP, STORE), LENGTHS_S):
        changes: dict[str, Any] = size | {"cut_s": cut_s}
        if what == GOSSIP:
            changes["replicas"] = 1
        if what == STORE:
            changes["faults"] = [
                {"kind": "store_stop", "node": node, "at_s": CUT_AT_S, "until_s": CUT_AT_S + cut_s}
                for node in range(NODES)
            ]
        made.append(Case(name_of(what, cut_s), "partition", changes))
    return made


def acknowledged_without_store(cut_s: float) -> figures.Figure:
    """While nothing can be stored; the last commits are answered a moment later."""

    def figure(run: Observed) -> float | None:
        totals = run.series.acknowledged["publishers"]
        first = figures.index_of(CUT_AT_S + MARGIN_S)
        return totals[figures.index_of(CUT_AT_S + cut_s) - 1] - totals[first]

    return figure


def window_max(cut_s: float) -> figures.Figure:
    """The largest at node 0 while its peers are lost, up to the end of the grace."""

    def figure(run: Observed) -> float | None:
        first = figures.index_of(CUT_AT_S + LOST_S + MARGIN_S)
        last = figures.index_of(CUT_AT_S + min(cut_s, LOST_S + GRACE_S) - MARGIN_S)
        return max(run.series.windows[0][first:last], default=None)

    return figure


def window_ever(cut_s: float) -> figures.Figure:
    """The largest anywhere, while something is lost."""

    def figure(run: Observed) -> float | None:
        first, last = figures.index_of(CUT_AT_S), figures.index_of(CUT_AT_S + cut_s)
        return max(max(row[first:last]) for row in run.series.windows)

    return figure


def after_share(cut_s: float) -> figures.Figure:
    """Goodput in the last 10 s, percent of before."""

    def figure(run: Observed) -> float | None:
        totals = run.series.in_time["publishers"]
        end_s = CUT_AT_S + cut_s + AFTER_S
        before = figures.rate(totals, CUT_AT_S / 2.0, CUT_AT_S)
        after = figures.rate(totals, end_s - 10.0, end_s - 0.1)
        return 100.0 * after / before if before and after is not None else None

    return figure


def judge(runs: Runs) -> Report:
    checks: list[Check] = []
    for what, cut_s in product((LINKS, GOSSIP, STORE), LENGTHS_S):
        case = name_of(what, cut_s)
        ever = runs.figures(case, window_ever(cut_s))
        checks.append(at_most(f"{case}: largest window meanwhile", ever, WINDOW_MAX, digits=0))
        if what != STORE and cut_s > LOST_S + 2.0 * MARGIN_S:
            largest = runs.figures(case, window_max(cut_s))
            words = f"{case}: largest window of node 0, peers lost"
            checks.append(at_most(words, largest, WINDOW_MAX / 2.0, digits=0))
        if what == STORE:
            count = runs.figures(case, acknowledged_without_store(cut_s))
            checks.append(none_of(f"{case}: acknowledged and not stored", count))
        checks += [
            at_least(f"{case}: goodput after", runs.figures(case, after_share(cut_s)), 95.0, " %"),
            none_of(f"{case}: messages lost", runs.figures(case, figures.lost)),
        ]
    longest = LENGTHS_S[-1]
    for what in (LINKS, GOSSIP, STORE):
        case = name_of(what, longest)
        control = runs.figures(case, window_ever(longest), CONTROL)
        words = f"{case}: largest window meanwhile"
        checks.append(misses(at_most(words, control, WINDOW_MAX, digits=0), CONTROL))
    return Report(
        "sim-e13",
        "E13, simulated: links, gossip or the common store are lost",
        f"Three nodes, {max(2, round(PUBLISHERS * runs.scale))} publishers each at 10 messages/s. "
        "Links: node 0 loses those to its peers, which store what it acknowledges as well. Gossip: "
        "the same where nothing is replicated. Store: that of all nodes stops, as a Redis would.",
        (*checks, held(runs)),
        (Grid(HEADER, tuple(rows(runs))),),
    )


HEADER = ("lost", "policy", "largest window", "goodput after/before", "most memory MiB", "in time")


def rows(runs: Runs) -> list[tuple[str, ...]]:
    made: list[tuple[str, ...]] = []
    for what, cut_s, policy in product((LINKS, GOSSIP, STORE), LENGTHS_S, (OURS, CONTROL)):
        case = name_of(what, cut_s)
        made.append(
            (
                case,
                policy,
                runs.figures(case, window_ever(cut_s), policy).text(digits=0),
                runs.figures(case, after_share(cut_s), policy).text(" %"),
                runs.figures(case, figures.memory_mib, policy).text(digits=0),
                runs.figures(case, figures.goodput_share, policy).text(" %"),
            )
        )
    return made


EXPERIMENT = Experiment("E13", cases, judge)
