"""Points: the sets of limits that are tried; each holds the differences from the defaults."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import Any

from spark_sweep.grid import Dimension, Hypercube, is_whole

Point = Mapping[str, Any]
"""Limits by dotted key; empty: the defaults."""


def points(dimensions: Mapping[str, Dimension], sample: Hypercube | None) -> Iterator[Point]:
    """The defaults first, then all combinations, or the points that are drawn."""
    yield {}
    if not dimensions:
        return
    if sample is None:
        yield from full_grid({key: one.values or () for key, one in dimensions.items()})
        return
    for shares in latin_hypercube(sample.points, len(dimensions), Random(sample.seed)):
        yield {
            key: dimension.at(share, whole=is_whole(key))
            for (key, dimension), share in zip(dimensions.items(), shares, strict=True)
        }


def full_grid(levels: Mapping[str, Iterable[Any]]) -> Iterator[Point]:
    """Every combination; the last key changes first."""
    for values in itertools.product(*levels.values()):
        yield dict(zip(levels, values, strict=True))


def latin_hypercube(count: int, dimensions: int, chance: Random) -> list[tuple[float, ...]]:
    """`count` points of the unit cube: in every dimension one in each `count`-th of it.

    McKay, Beckman, Conover: A comparison of three methods for selecting values of input variables
    in the analysis of output from a computer code; Technometrics 21(2), 1979.
    """
    columns = []
    for _ in range(dimensions):
        parts = list(range(count))
        chance.shuffle(parts)
        columns.append([(part + chance.random()) / count for part in parts])
    return list(zip(*columns, strict=True))
