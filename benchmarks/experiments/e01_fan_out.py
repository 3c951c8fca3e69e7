"""E1: one publisher as fast as it can, and pairs that should not notice; after HiveMQ's test."""

from typing import Final

from benchmarks.checks import Check, Report

from . import figures
from .cases import OURS, WITHOUT_TURNS, Case, Experiment, Runs, no_turns
from .judging import Column, at_least, at_most, held, misses, none_of, table
from .probe import STEP_S, Observed

SUBSCRIBERS = 10_000
STATIC: Final = ("static-1", "static-10", "static-100")
CONTROL: Final = "unlimited"
BEGINS_S, WARM_UP_S, MEASURED_S = 20.0, 30.0, 120.0
VERSIONS: Final = {"3.1.1": False, "5.0": True}
DELIVERY_S, COST_DELIVERIES = 0.000_005, 100


def cases(scale: float) -> list[Case]:
    size = {
        "populations.subscribers.clients": round(SUBSCRIBERS * scale),
        "node.delivery_s": DELIVERY_S / scale,
        "flow.cost_deliveries": max(1, round(COST_DELIVERIES * scale)),
        "duration_s": BEGINS_S + WARM_UP_S + MEASURED_S,
    }
    made, from_s = [], BEGINS_S + WARM_UP_S
    for version, is_v5 in VERSIONS.items():
        changes = size | {"populations.publisher.publish.v5": is_v5}
        made.append(Case(version, "fan_out", changes, (OURS, *STATIC, CONTROL), from_s))
        without = changes | WITHOUT_TURNS
        made.append(Case(no_turns(version), "fan_out", without, (OURS, CONTROL), from_s))
    return made


def published_per_s(run: Observed) -> float | None:
    from_s = BEGINS_S + WARM_UP_S
    totals = run.series.acknowledged["publisher"]
    return figures.rate(totals, from_s, (len(totals) - 1) * STEP_S)


def lag_p99_ms(run: Observed) -> float:
    """Over all nodes, what an event that comes at any instant waits for the loop."""
    first = figures.index_of(BEGINS_S + WARM_UP_S)
    lags_s = [lag_s for row in run.series.lags_s for lag_s in row[first:]]
    return 1e3 * figures.percentile(lags_s, 0.99)


def background_p99_ms(run: Observed) -> float | None:
    p99_s = run.delivered_p99_s["pairs"]
    return None if p99_s is None else 1e3 * p99_s


def of_best(runs: Runs, version: str) -> figures.Figures:
    """Percent of the best fixed window's rate, seed by seed."""
    rates = {p: runs.figures(version, published_per_s, p).values for p in (OURS, *STATIC)}
    best = [max(filter(None, of_seed)) for of_seed in zip(*(rates[p] for p in STATIC), strict=True)]
    return figures.Figures(
        tuple(100.0 * (ours or 0.0) / other for ours, other in zip(rates[OURS], best, strict=True))
    )


def judge(runs: Runs) -> Report:
    checks: list[Check] = []
    for version in VERSIONS:
        what = f"{version}: background p99"
        background = runs.figures(version, background_p99_ms)
        control = runs.figures(no_turns(version), background_p99_ms, CONTROL)
        checks += [
            at_least(
                f"{version}: rate, of the best fixed window's", of_best(runs, version), 95.0, " %"
            ),
            at_most(
                f"{version}: lag of a loop, p99", runs.figures(version, lag_p99_ms), 50.0, " ms"
            ),
            at_most(what, background, 100.0, " ms"),
            none_of(f"{version}: messages lost", runs.figures(version, figures.lost)),
            misses(at_most(what, control, 100.0, " ms"), f"{CONTROL}, no turns"),
        ]
    return Report(
        "sim-e1",
        f"E1, simulated: 1 publisher → {round(SUBSCRIBERS * runs.scale):,} subscribers on 3 nodes",
        f"QoS 1, 16-byte payload, {MEASURED_S:g} s after {WARM_UP_S:g} s of warm-up; 100 pairs at "
        "1 message/s. Publisher of 100 unacknowledged messages, MQTT 3.1.1 and 5.0. The design's "
        "search for the best fixed window is among 1, 10 and 100; QoS 0 is not modelled. No turns: "
        "each message keeps a loop until all subscribers have it.",
        (*checks, held(runs)),
        (table(runs, "MQTT", COLUMNS),),
    )


COLUMNS: Final = {
    "published /s": Column(published_per_s),
    "background p99 ms": Column(background_p99_ms),
    "lag p99 ms": Column(lag_p99_ms),
    "memory MiB": Column(figures.memory_mib, digits=0),
    "lost": Column(figures.lost, digits=0),
}
EXPERIMENT = Experiment(
    "E1",
    cases,
    judge,
    "the 100 pairs, the cost of a PUBLISH and pieces of 250 deliveries are not scaled.",
)
