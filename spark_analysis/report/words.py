"""Words: numbers and names in readable form."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from spark_analysis.loads import LIMIT, LOAD
from spark_analysis.questions.question import Unit

LIVE: Final = "live"
"""The name of the scenario of a broker's runs."""
NONE: Final = "\N{EN DASH}"
"""Shown if there is no value."""
_SPACE: Final = "\N{NO-BREAK SPACE}"
_SILENT: Final = {Unit.COUNT: "", Unit.RATIO: "", Unit.INDEX: ""}
_STEPS: Final = ((1e9, "G"), (1e6, "M"), (1e4, "k"))


def number(value: float, digits: int = 3) -> str:
    """The value with three significant digits, no exponent: 0.0123, 4.57, 12,300 as 12.3k."""
    if not math.isfinite(value):
        return "infinite"
    size = abs(value)
    for step, letter in _STEPS:
        if size >= step:
            return f"{number(value / (1000 if letter == 'k' else step), digits)}{letter}"
    if size == 0:
        return "0"
    decimals = max(digits - 1 - math.floor(math.log10(size)), 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def clock(unix_s: float, *, has_seconds: bool = True) -> str:
    """The time of day, UTC."""
    at = datetime.fromtimestamp(unix_s, UTC)
    return f"{at:%H:%M:%S}" if has_seconds else f"{at:%H:%M}"


def quantity(value: float, unit: Unit) -> str:
    """The value with its unit: 12.3 s, 85 ms, 99.2 %, 4.5 MiB; number and unit stay on one line."""
    scale, name = _scale(abs(value), unit)
    return f"{number(value / scale)}{_SPACE}{name}".rstrip()


def margin(mean: float, high: float | None, unit: Unit) -> str:
    """`12.34 ± 0.45 s`: the mean and half of its interval, to as many digits as that allows; only
    the mean if the interval is unknown."""
    if high is None or high <= mean or not math.isfinite(high):
        return quantity(mean, unit)
    size = max(abs(mean), abs(high))
    scale, name = _scale(size, unit)
    half = (high - mean) / scale
    meant = 1 - math.floor(math.log10(half))
    seen = 3 - math.floor(math.log10(size / scale))
    decimals = max(min(meant, seen), 0)
    if round(half, decimals) == 0:
        return quantity(mean, unit)
    text = f"{mean / scale:,.{decimals}f} ± {half:,.{decimals}f} {name}".rstrip()
    return text.replace(" ", _SPACE)


def _scale(size: float, unit: Unit) -> tuple[float, str]:
    """The divisor for a quantity of this size, and its unit after the division."""
    if unit is Unit.SHARE:
        return 0.01, "%"
    if unit is Unit.SECONDS:
        return (0.001, "ms") if 0 < size < 1 else (1.0, "s")
    if unit is Unit.BYTES:
        steps = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
        return next(((float(step), name) for step, name in steps if size >= step), (1.0, "B"))
    return 1.0, _SILENT.get(unit, str(unit))


def count(amount: int, one: str, many: str = "") -> str:
    """The amount with its noun: `1 run`, `3 runs`."""
    return f"{amount:,} {one if amount == 1 else many or one + 's'}"


@dataclass(frozen=True, slots=True, order=True)
class ParameterSet:
    """A scenario under a policy with parameters, and its name in the report."""

    scenario: str
    policy: str
    parameters: str

    @property
    def load(self) -> str:
        """The parameters that are no limits: the work of a policy, and the machine.

        A live run has only the load that came; its settings are all its own.
        """
        pairs = self.parameters.split(", ") if self.parameters else []
        if self.scenario == LIVE:
            return ", ".join(pair for pair in pairs if pair.startswith(LOAD))
        return ", ".join(pair for pair in pairs if not pair.startswith(LIMIT))


class Names:
    """The names of parameter sets: the policy, and the parameters that differ."""

    def __init__(self, sets: Iterable[ParameterSet]) -> None:
        by_scenario = defaultdict(list)
        for one in sets:
            by_scenario[one.scenario].append(one)
        self._details: dict[ParameterSet, str] = {}
        for of_scenario in by_scenario.values():
            details = distinct([one.parameters for one in of_scenario])
            self._details |= zip(of_scenario, details, strict=True)

    def detail(self, one: ParameterSet) -> str:
        """The parameters that not all sets of its scenario have; may be empty."""
        return self._details[one]

    def name(self, one: ParameterSet) -> str:
        detail = self._details[one]
        return f"{one.policy} ({detail})" if detail else one.policy


def distinct(parameters: Sequence[str]) -> list[str]:
    """The part of each `a.b=1, c=x` that not all of them have; may be empty."""
    pairs = [text.split(", ") if text else [] for text in parameters]
    common = set(pairs[0]).intersection(*pairs) if pairs else set()
    return [", ".join(pair for pair in own if pair not in common) for own in pairs]
