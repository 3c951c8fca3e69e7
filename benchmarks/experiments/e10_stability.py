"""E10: does the law settle? Steps of capacity, noise, late gossip, few clients and many."""

from functools import partial
from math import exp
from typing import Any, Final

from benchmarks.checks import Check, Report
from flowguard.config import FlowSettings, PolicyName

from . import figures
from .cases import OURS, Case, Experiment, Runs
from .judging import Column, at_least, at_most, held, misses, table
from .probe import STEP_S, Observed

NODES, PUBLISH_S, STEP = 3, 0.002, 4.0
SLOWER_S, FASTER_S, DURATION_S = (20.0, 40.0), (60.0, 80.0), 100.0
SETTLED_S: Final = 5.0
"""After a step, until constant load is judged."""
CONTROL: Final = "static-100"
OTHERS: Final[tuple[PolicyName, ...]] = (
    "unlimited",
    "static-1",
    "static-10",
    CONTROL,
    "level-map",
    "emqx-flag",
    "flashmq-gate",
    "vegas",
    "gradient2",
)
BASE: Final = "60 clients, noise 30 %, gossip 200 ms late"
FLOOR: Final = 0.001
"""Clients take turns below a window of 1: more of them than fit into the objective publish. The
largest sweep needs 0.004, 12 packets of 3,000 clients."""
OPEN: Final = 0.9 * FlowSettings().window_max
"""A window that is as good as at its maximum; nodes off the path may take a little of it."""
SWEEP: Final[dict[str, dict[str, Any]]] = {
    BASE: {},
    "noise 0": {"noise": 0.0},
    "noise 50 %": {"noise": 0.5},
    "gossip at once": {"gossip_late_s": 0.0},
    "gossip 500 ms late": {"gossip_late_s": 0.5},
    "3 clients": {"publishers": 3},
    "600 clients": {"publishers": 600},
    # What waits here is memory there, and 4 are more than any of them may have in process.
    "9,000 clients": {"publishers": 9_000, "populations.publishers.publish.outstanding": 4},
}


def cases(scale: float) -> list[Case]:
    """Numbers of clients are what is swept: a smaller scale only leaves out the largest."""
    return [
        Case(
            name,
            "stability",
            {"flow.window_floor": FLOOR} | changes,
            (OURS, *OTHERS) if name == BASE else (OURS,),
        )
        for name, changes in SWEEP.items()
        if scale >= 0.1 or changes.get("publishers", 0) < 9_000
    ]


def parts() -> list[tuple[float, float]]:
    """When load and capacity are constant, and the law has had its time."""
    edges = [0.0, *SLOWER_S, *FASTER_S, DURATION_S]
    starts = [edges[0] + 2.0 * SETTLED_S, *(edge + SETTLED_S for edge in edges[1:-1])]
    return list(zip(starts, edges[1:], strict=True))


def in_band(run: Observed) -> float:
    """Ticks with a pressure between 0.5 and 2 at node 0 while load is constant, percent."""
    return 100.0 * figures.within_share(steady(run), 0.5, 2.0)


def judged(run: Observed) -> list[float]:
    """Pressures of node 0; less than 0.5 counts as 0.5 while the window is open.

    A node whose clients have all that they may have is not kept from anything by its law.
    """
    both = zip(run.series.pressures[0], run.series.windows[0], strict=True)
    return [max(0.5, pressure) if window >= OPEN else pressure for pressure, window in both]


def steady(run: Observed) -> list[float]:
    """Pressures of node 0 while load is constant."""
    pressures = judged(run)
    return [
        value
        for from_s, to_s in parts()
        for value in pressures[figures.index_of(from_s) : figures.index_of(to_s)]
    ]


def not_above(run: Observed) -> float:
    """The same, of those at most 2: the rest had a queue standing."""
    return 100.0 * figures.within_share(steady(run), 0.0, 2.0)


def settling(intervals_s: tuple[tuple[float, float], ...], run: Observed) -> float | None:
    """The longest, of these steps and what follows them."""
    pressures = judged(run)
    found = [figures.settled_s(pressures, from_s, to_s) for from_s, to_s in intervals_s]
    known = [value for value in found if value is not None]
    return max(known) if len(known) == len(found) else None


after_slower = partial(settling, (SLOWER_S, (FASTER_S[1], DURATION_S)))
after_faster = partial(settling, ((SLOWER_S[1], FASTER_S[0]), FASTER_S))


def swing(run: Observed) -> float:
    """Largest swing of the window that goes on, percent; see `figures.swing`."""
    windows = run.series.windows[0]
    largest = max(
        figures.swing(windows[figures.index_of(from_s) : figures.index_of(to_s)])
        for from_s, to_s in parts()
    )
    return 100.0 * (exp(largest) - 1.0)


def capacity_share(run: Observed) -> float | None:
    """Messages per second, percent of what all nodes can do; from second 10 on."""
    from_s = 2.0 * SETTLED_S
    totals = [sum(now) for now in zip(*run.series.acknowledged.values(), strict=True)]
    got_per_s = figures.rate(totals, from_s, (len(totals) - 1) * STEP_S)
    slower_s, faster_s = SLOWER_S[1] - SLOWER_S[0], FASTER_S[1] - FASTER_S[0]
    all_s = DURATION_S - from_s
    node_0 = (all_s - slower_s - faster_s + slower_s / STEP + faster_s * STEP) / all_s
    could_per_s = (NODES - 1 + node_0) / PUBLISH_S
    return None if got_per_s is None else 100.0 * got_per_s / could_per_s


COLUMNS: Final = {
    "pressure 0.5 to 2": Column(in_band, " %"),
    "at most 2": Column(not_above, " %"),
    "settled, slower": Column(after_slower, " s"),
    "settled, faster": Column(after_faster, " s"),
    "swing of the window": Column(swing, " %", 0),
    "throughput, of capacity": Column(capacity_share, " %"),
}


def judge(runs: Runs) -> Report:
    checks: list[Check] = []
    for case in dict.fromkeys(case for case, _ in runs.observed):
        band, slower, faster, swings, throughput = (
            runs.figures(case, figure)
            for figure in (in_band, after_slower, after_faster, swing, capacity_share)
        )
        checks += [
            at_least(f"{case}: pressure 0.5 to 2", band, 95.0, " %"),
            at_most(f"{case}: settled, slower", slower, 2.0, " s"),
            at_most(f"{case}: settled, faster", faster, 2.0, " s"),
            at_most(f"{case}: swing of the window", swings, 20.0, " %", 0),
            at_least(f"{case}: throughput, of capacity", throughput, 97.0, " %"),
        ]
    what = f"{BASE}: pressure 0.5 to 2"
    checks.append(misses(at_least(what, runs.figures(BASE, in_band, CONTROL), 95.0, " %"), CONTROL))
    what = f"{BASE}: swing of the window"
    control = runs.figures(BASE, swing, "level-map")
    checks.append(misses(at_most(what, control, 20.0, " %", 0), "level-map"))
    return Report(
        "sim-e10",
        "E10, simulated: a node that is four times slower, then four times faster",
        f"Three nodes of 500 messages/s each, publishers that always have more to send, "
        f"window_floor {FLOOR:g}. Pressure "
        "and swings: at node 0, while its capacity is constant, from 5 s after each step. A swing "
        "counts if the window goes up and down four times in a row by that much. Settled: from a "
        "step until pressure is between 0.5 and 2 for a second, and in 95 % of the ticks to the "
        "next one. Less than 0.5 is right, too, while the window is at its maximum: one client on "
        "a fast node (3 clients) has 100 packets in process, and pressure stays at 0.3; until the "
        "window is there, eight times larger, 15 % a tick, it counts as not settled.",
        (*checks, held(runs)),
        (table(runs, "case", COLUMNS),),
    )


EXPERIMENT = Experiment(
    "E10",
    cases,
    judge,
    "the cases are not scaled. Below 0.1 the one with 9,000 clients is left out.",
)
