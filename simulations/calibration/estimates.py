"""Estimates: costs computed from the measurements of the probes (the table in `probes`).

A cost is the slope of a line through measurements of several sizes. Work that is done once per
measurement (a tick, the first of each kind) moves the line, but not its slope. The cost of a burst,
apart from its messages, is the line's intercept. Other users of the machine make a measurement
larger and never smaller (caches are cold, the clock is slow). So the least of several measurements
of one size counts, and the line goes through those. If the measured thing itself varies, such as a
disk, their median counts.
"""

from collections.abc import Sequence
from statistics import LinearRegression, linear_regression
from typing import Final, NamedTuple

from simulations.calibration.process import StoreKind

Point = tuple[float, float]
"""A size, and its measurement."""


def fit(points: Sequence[Point]) -> LinearRegression:
    """The line of least squares; at least two sizes must differ."""
    sizes, taken = zip(*points, strict=True)
    return linear_regression(sizes, taken)


Runs = Sequence[Sequence[Point]]
"""Several measurements of the same sizes."""


def least(runs: Runs) -> list[Point]:
    """The cheapest measurement of each size, per unit of the size."""
    return [
        min(points, key=lambda point: point[1] / point[0]) for points in zip(*runs, strict=True)
    ]


def median(runs: Runs) -> list[Point]:
    """The median measurement of each size; of two, the lower one."""
    return [
        sorted(points, key=lambda point: point[1])[(len(points) - 1) // 2]
        for points in zip(*runs, strict=True)
    ]


class Estimate(NamedTuple):
    """A cost, and the values that each run alone would have given."""

    value: float
    low: float
    high: float


Figures = dict[str, float]
"""Costs by key, `table.key`."""
Series = dict[str, list[Point]]
"""Measurements by size; a measurement without a size has size 1."""

LATENCIES: Final = ("lone_ping", "lone_message", "wide")
"""Probes that measure durations, which include the disk's; all others measure CPU time, or
memory."""


def estimates(runs: Sequence[Series], store: StoreKind) -> dict[str, Estimate]:
    """All costs, from at least one run."""
    together = {
        key: (median if key in LATENCIES else least)([run[key] for run in runs]) for key in runs[0]
    }
    alone = [_costs(run, store) for run in runs]
    return {
        key: Estimate(value, min(each[key] for each in alone), max(each[key] for each in alone))
        for key, value in _costs(together, store).items()
    }


def _costs(raw: Series, store: StoreKind) -> Figures:
    """Return slopes, intercepts of bursts, and differences of these; a cost below the noise is
    0."""
    slope = {key: fit(points).slope for key, points in raw.items() if len(points) > 1}
    accept_s = max(0.0, slope["bare"]) + _one(raw["decoded"])
    stored, relayed = fit(raw["stored"]), fit(raw["relayed"])
    read_s, publish_s = max(0.0, stored.intercept), stored.slope
    ping_s = max(0.0, slope["pings"])
    # A lone message, and a lone PINGREQ, take as long in the simulator as on this machine.
    wake_s = max(0.0, _one(raw["lone_ping_cpu"]) - ping_s)
    way_s = max(0.0, _one(raw["lone_ping"]) - ping_s - wake_s)
    # The loop wakes up for the message, and again for its commit.
    work_s = 2.0 * wake_s + read_s + publish_s
    handoff_s = max(0.0, _one(raw["lone_message_cpu"]) - work_s)
    # The commit thread holds the interpreter, so the loop's CPU time already includes its own.
    op_s = max(0.0, slope["wide"])
    commit_s = max(0.0, _one(raw["lone_message"]) - way_s - work_s - handoff_s - op_s)
    resident = fit(raw["resident"])
    costs = {
        "node.accept_s": accept_s,
        "node.refuse_s": max(0.0, slope["refused"] - accept_s),
        "node.connect_s": slope["connected"] - accept_s,
        "node.close_s": max(0.0, slope["closed"]),
        "node.read_s": read_s,
        "node.publish_s": publish_s,
        "node.send_s": max(0.0, relayed.intercept - read_s),
        "node.delivery_s": max(0.0, relayed.slope - publish_s),
        "node.queue_s": max(0.0, slope["wide_cpu"]),
        "node.handoff_s": handoff_s,
        "node.subscribe_s": max(0.0, slope["subscribed"] - read_s),
        "node.wake_s": wake_s,
        "node.ping_s": ping_s,
        "node.process_bytes": resident.intercept,
        "node.connection_bytes": max(0.0, resident.slope),
        "store.commit_s": commit_s,
        "store.op_s": op_s,
        "network.latency_s": way_s / 2.0,
    }
    if store == "memory":
        # The loop itself commits, so a message's cost includes the commit, and no task waits for
        # it.
        costs |= {"node.handoff_s": 0.0, "store.commit_s": 0.0, "store.op_s": 0.0}
    return costs


def _one(points: list[Point]) -> float:
    """The measurement of the smallest size, per unit."""
    size, took = points[0]
    return took / size
