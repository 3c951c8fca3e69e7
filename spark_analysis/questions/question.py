"""Question: what is asked of runs, and what its answer's columns mean."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import DataFrame


class Unit(StrEnum):
    """Of a metric; how its values are written."""

    COUNT = ""
    SECONDS = "s"
    PER_SECOND = "/s"
    PER_MINUTE = "/min"
    SHARE = "%"
    RATIO = "x"
    BYTES = "B"
    INDEX = "index"


class Better(StrEnum):
    """Which values are good ones."""

    LESS = "less"
    MORE = "more"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of an answer that has a value per run."""

    column: str
    words: str
    unit: Unit
    better: Better
    never: str = ""
    """What a missing value means; empty: nobody knows, so the run is not counted."""
    needs: str = ""
    """Where a missing value has a meaning: the column without which it has none."""

    def __post_init__(self) -> None:
        assert bool(self.never) == bool(self.needs), self.column


@dataclass(frozen=True, slots=True)
class Inputs:
    """What questions are asked of; not all of it is needed by one."""

    runs: DataFrame
    samples: DataFrame
    latencies: DataFrame
    clients: DataFrame
    nodes: DataFrame
    """Of `grains.by_node`."""
    instants: DataFrame
    """Of `grains.by_instant`."""
    seconds: DataFrame
    """Of `grains.by_second`."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question; `answer` has one row per run (and population, where it has that column)."""

    name: str
    title: str
    how: str
    """How it is measured, in a sentence or two."""
    metrics: tuple[Metric, ...]
    """The first is what policies are compared by."""
    answer: Callable[[Inputs], DataFrame]
