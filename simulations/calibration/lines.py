"""Lines: a cost is the slope of a line through measurements of several sizes.

Work that is done once however large the measurement is (a tick, the first of everything) moves
the line, not its slope. Other users of the machine make a measurement larger and never smaller
(caches are cold, the clock is slow), so of several measurements of one size the least counts,
and the line goes through those. If the measured thing itself varies, such as a disk, it is their
median.
"""

from collections.abc import Sequence
from statistics import LinearRegression, linear_regression
from typing import NamedTuple

Point = tuple[float, float]
"""A size, and its measurement."""


def fit(points: Sequence[Point]) -> LinearRegression:
    """The line of least squares; at least two sizes must differ."""
    sizes, taken = zip(*points, strict=True)
    return linear_regression(sizes, taken)


Runs = Sequence[Sequence[Point]]
"""The same sizes measured several times."""


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
