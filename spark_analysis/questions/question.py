"""Question: a question about runs, and the meaning of its answer's columns."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import DataFrame


class Unit(StrEnum):
    """The unit of a metric; determines how its values are written."""

    COUNT = ""
    SECONDS = "s"
    PER_SECOND = "/s"
    PER_MINUTE = "/min"
    SHARE = "%"
    RATIO = "x"
    BYTES = "B"
    INDEX = "index"


class Better(StrEnum):
    """The direction in which values are better."""

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
    """The meaning of a missing value; empty: it is unknown, so the run is not counted."""
    needs: str = ""
    """If a missing value has a meaning: the column without which it has none."""

    def __post_init__(self) -> None:
        assert bool(self.never) == bool(self.needs), self.column

    @property
    def is_worst_when_missing(self) -> bool:
        return self.never in ("never", "beyond all bounds")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of all questions; none of them needs everything."""

    runs: DataFrame
    samples: DataFrame
    slices: DataFrame
    """Rows of `grains.by_slice`."""
    latencies: DataFrame
    clients: DataFrame
    nodes: DataFrame
    """Rows of `grains.by_node`."""
    instants: DataFrame
    """Rows of `grains.by_instant`."""
    seconds: DataFrame
    """Rows of `grains.by_second`."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question. `answer` has one row per run, and per population if it has that column."""

    name: str
    title: str
    how: str
    """The way it is measured, in a sentence or two."""
    metrics: tuple[Metric, ...]
    """The metrics; policies are compared by the first."""
    answer: Callable[[Inputs], DataFrame]
