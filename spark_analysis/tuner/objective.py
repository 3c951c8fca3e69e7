"""Objective: the goal for which limits are chosen, and constraints on them; a TOML file."""

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from spark_analysis.analysis import QUESTIONS
from spark_analysis.grains import ALL
from spark_analysis.questions.nodes import SURVIVAL
from spark_analysis.questions.question import Better, Metric, Question, Unit

ASKED: Final[tuple[Question, ...]] = (*QUESTIONS, SURVIVAL)
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
INCLUDED: Final = {path.stem: path for path in Path(__file__).with_name("objectives").iterdir()}
"""Files of the objectives that go by their name."""


class _Plan(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


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
            near = " or ".join(get_close_matches(name, METRICS, 2, 0.5))
            raise ValueError(
                f"there is no metric {name}" + (f"; did you mean {near}?" if near else "")
            )
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

    @property
    def times(self) -> float | None:
        """The bound as a multiple of the defaults', or None if it is the same for all runs."""
        least = self.at_least_of_defaults
        return self.at_most_of_defaults if least is None else least

    @property
    def is_least(self) -> bool:
        """Whether the bound is one from below."""
        return self.at_most is None and self.at_most_of_defaults is None

    def holds(self, value: float, default: float | None) -> bool:
        """Whether a run with this value keeps it, given that of the defaults.

        A metric that the defaults never have bounds nothing.
        """
        bound = self.bound
        if bound is None:
            if default is None:
                return True
            bound = (self.times or 0.0) * default
        return value >= bound if self.is_least else value <= bound


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
    weights: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Weights of scenarios, by name; 1 where none is given."""
    tolerance: float = Field(0.02, ge=0, lt=1)
    """Share by which a single scenario may be worse than with the defaults."""
    least_improvement: float = Field(0.0, ge=0)
    """An improvement that is not surely larger than this is not worth a change."""
    held_out: HeldOut = HeldOut()
    tradeoff: Measured | None = None
    """The other axis of the chart; absent: the first constraint."""

    @property
    def against(self) -> Measured:
        """The metric that the objective is drawn against."""
        first = self.constraints[0] if self.constraints else None
        return self.tradeoff or first or Measured(metric="memory.headroom_ratio")

    @property
    def measured(self) -> tuple[Measured, ...]:
        """All metrics that must be measured."""
        return (*self.objectives, *self.constraints, self.against)
