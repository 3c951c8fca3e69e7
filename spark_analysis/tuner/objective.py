"""Objective: the goal for which limits are chosen, and constraints on them; a TOML file."""

import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from spark_analysis.analysis import QUESTIONS
from spark_analysis.grains import ALL
from spark_analysis.questions import survival
from spark_analysis.questions.question import Better, Metric, Question, Unit

ASKED: Final[tuple[Question, ...]] = (*QUESTIONS, survival.QUESTION)
"""The questions that an objective may use: those of the report, and deaths."""
METRICS: Final[dict[str, Metric]] = {
    f"{question.name}.{metric.column}": metric for question in ASKED for metric in question.metrics
}
"""The metrics by name, `question.column`."""
RESOLUTIONS: Final = {
    Unit.COUNT: 1.0,
    Unit.SECONDS: 0.001,
    Unit.PER_SECOND: 0.01,
    Unit.PER_MINUTE: 0.1,
    Unit.SHARE: 0.001,
    Unit.RATIO: 0.01,
    Unit.BYTES: 1024.0,
    Unit.INDEX: 0.001,
}
"""The resolution by unit: a smaller value counts as this one, so that a ratio to nothing has a
meaning."""
_ROOM: Final = Path(__file__).parent / "objectives"


class ObjectiveFailed(Exception):
    """The file cannot be used; one line that names file and key."""


class _Plan(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


def _did_you_mean(name: str, known: Iterable[str], most: int = 1) -> str:
    near = get_close_matches(name, list(known), n=most, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else ""


class Measured(_Plan):
    """A metric of a population, in some scenarios or in all that have it."""

    metric: str
    """`question.column` of docs/operate/analysis.md, or `survival.deaths_count`."""
    population: str = ALL
    """The population, or `all` for all clients together."""
    scenarios: tuple[str, ...] = ()
    """Scenarios in which it counts; empty: wherever runs have it."""

    @field_validator("metric")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in METRICS:
            raise ValueError(f"there is no metric {name}{_did_you_mean(name, METRICS, 2)}")
        return name

    @property
    def what(self) -> Metric:
        return METRICS[self.metric]

    @property
    def words(self) -> str:
        of = "" if self.population == ALL else f" ({self.population})"
        return f"{self.what.words}{of}"

    def is_asked_in(self, scenario: str) -> bool:
        """Whether it counts in that scenario, if runs have it."""
        return not self.scenarios or scenario in self.scenarios


class Term(Measured):
    """One thing that should be as good as it can be."""

    weight: float = Field(1.0, gt=0)
    """Weight of the term beside the other terms of a scenario."""
    resolution: float | None = Field(None, gt=0)
    """The resolution: a smaller value counts as this one; absent: that of its unit."""

    @field_validator("metric")
    @classmethod
    def _has_a_direction(cls, name: str) -> str:
        if METRICS[name].better is Better.NEITHER:
            raise ValueError(f"{name} is neither good nor bad: nothing to get better")
        return name

    @property
    def least(self) -> float:
        """The resolution: smaller values count as this one."""
        return self.resolution or RESOLUTIONS[self.what.unit]


class Constraint(Measured):
    """A constraint on every single run; one of the bounds is given."""

    at_least: float | None = None
    at_most: float | None = None
    at_least_of_defaults: float | None = Field(None, gt=0)
    """Lower bound, as a multiple of the defaults' value with the same load and seed."""
    at_most_of_defaults: float | None = Field(None, gt=0)
    """Upper bound, as a multiple of the defaults' value with the same load and seed."""

    @model_validator(mode="after")
    def _has_one_bound(self) -> Self:
        names = ("at_least", "at_most", "at_least_of_defaults", "at_most_of_defaults")
        if sum(getattr(self, name) is not None for name in names) != 1:
            raise ValueError(f"one of {', '.join(names)}")
        return self

    @property
    def bound(self) -> float | None:
        """The bound that is the same for all runs, or None if it is a multiple of the defaults'."""
        return self.at_most if self.at_least is None else self.at_least

    def holds(self, value: float, default: float | None) -> bool:
        """Whether a run with this value keeps it, given that of the defaults.

        A metric that the defaults never have bounds nothing.
        """
        if self.at_least is not None:
            return value >= self.at_least
        if self.at_most is not None:
            return value <= self.at_most
        if default is None:
            return True
        if self.at_least_of_defaults is not None:
            return value >= self.at_least_of_defaults * default
        assert self.at_most_of_defaults is not None
        return value <= self.at_most_of_defaults * default


class HeldOut(_Plan):
    """The runs that the choice does not see, and is judged by."""

    share: float = Field(0.5, gt=0, lt=1)
    """Share of the seeds that is held out."""
    scenarios: tuple[str, ...] = ()
    """Scenarios that the choice does not see at all."""
    seeds_min: int = Field(3, ge=2)
    """Seeds for the choice, and seeds held out: with fewer nothing is recommended."""


class Objective(_Plan):
    """The whole file."""

    title: str = Field(min_length=1)
    """The objective in a few words."""
    objectives: tuple[Term, ...] = Field(min_length=1)
    """Terms that should be better than with the defaults, in ratios."""
    constraints: tuple[Constraint, ...] = ()
    """Constraints on every run; that no invariant is violated need not be said."""
    weights: dict[str, float] = {}
    """Weights of scenarios, by name; 1 where none is given."""
    tolerance: float = Field(0.02, ge=0, lt=1)
    """Share by which a single scenario may be worse than with the defaults."""
    least_improvement: float = Field(0.0, ge=0)
    """An improvement that is not surely larger than this is not worth a change."""
    held_out: HeldOut = HeldOut()
    tradeoff: Measured | None = None
    """The other axis of the chart; absent: the first constraint."""

    @field_validator("weights")
    @classmethod
    def _positive(cls, weights: dict[str, float]) -> dict[str, float]:
        for scenario, weight in weights.items():
            if weight <= 0:
                raise ValueError(f"the weight of {scenario} is not more than 0")
        return weights

    @property
    def against(self) -> Measured:
        """The metric that the objective is drawn against."""
        if self.tradeoff is not None:
            return self.tradeoff
        return self.constraints[0] if self.constraints else Measured(metric="memory.headroom_ratio")

    @property
    def measured(self) -> tuple[Measured, ...]:
        """All metrics that must be measured."""
        return (*self.objectives, *self.constraints, self.against)


KEYS: Final = sorted(
    {key for model in (Objective, Term, Constraint, HeldOut) for key in model.model_fields}
)
"""The keys of all tables of the file."""


def names() -> list[str]:
    return sorted(path.stem for path in _ROOM.glob("*.toml"))


def load_objective(name: str) -> Objective:
    """The objective of a file, or one of `names()`. Raises ObjectiveFailed."""
    path = _ROOM / f"{name}.toml" if name in names() else Path(name)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(names())
        raise ObjectiveFailed(f"There is no objective {name}: neither a file nor {known}") from None
    except OSError as error:
        raise ObjectiveFailed(f"cannot read {name}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ObjectiveFailed(f"{name} is not valid TOML: {error}") from error
    try:
        return Objective.model_validate(values)
    except ValidationError as error:
        raise ObjectiveFailed(f"{name}: {_complaint(error)}") from error


def _complaint(error: ValidationError) -> str:
    """The error in a line. For a missing key an unknown one is reported instead: it may be
    misspelt."""
    errors = error.errors()
    unknown = [one for one in errors if one["type"] == "extra_forbidden"]
    first = unknown[0] if unknown and errors[0]["type"] == "missing" else errors[0]
    key = ".".join(map(str, first["loc"])) or "file"
    words = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        words = "unknown key" + (
            _did_you_mean(str(first["loc"][-1]), KEYS) or "; see docs/operate/tuning.md"
        )
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{key}: {words}{more}"
