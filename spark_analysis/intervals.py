"""Intervals: a mean, and the range of the true one with 95 % confidence (Student's t)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

STUDENT: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t for a two-sided 95 % interval, by degrees of freedom from 1."""
NORMAL: Final = 1.96
BEYOND: Final = 2.4
"""With more degrees of freedom it is NORMAL + BEYOND / freedom: 0.002 from the true value at 31,
less further on."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its interval; of a single value it is infinite, because its width is unknown."""

    mean: float
    half: float
    count: int

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    @property
    def standard_error(self) -> float:
        return self.half / student(self.count - 1) if self.count > 1 else math.inf


def interval(values: Iterable[float]) -> Interval | None:
    """Return the interval of the mean of `values`, the same in any order, or None without
    values."""
    numbers = list(values)
    count = len(numbers)
    if not count:
        return None
    mean = math.fsum(numbers) / count
    if count == 1:
        return Interval(mean, math.inf, 1)
    variance = math.fsum((number - mean) ** 2 for number in numbers) / (count - 1)
    return Interval(mean, student(count - 1) * math.sqrt(variance / count), count)


def student(freedom: int) -> float:
    assert freedom >= 1
    return STUDENT[freedom - 1] if freedom <= len(STUDENT) else NORMAL + BEYOND / freedom
