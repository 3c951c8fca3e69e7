"""Grid: a sweep as a file describes it: scenarios, policies, seeds, and the limits that vary."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)

from flowguard.config import FlowSettings, PolicyName
from simulations.scenario import SEED_MAX
from simulations.scenario_files.complaints import nearest, refusal
from simulations.scenario_files.loading import read_toml

FLOW: Final = "flow."
"""Prefix of every limit's key, as `flowguard simulate --set` has it."""
LIMITS: Final = tuple(
    name for name in FlowSettings.model_fields if name not in ("policy", "shadow_policy")
)
RUNS_MAX: Final = 100_000
"""Runs of a sweep."""
DIGITS: Final = 4
"""Digits of a value drawn from a range: enough to tell points apart, few enough to read."""

_NEITHER: Final = "neither a list of values nor a table with from and to"

Values = Annotated[tuple[Any, ...], Field(min_length=1)]
Seed = Annotated[int, Strict(), Field(ge=0, le=SEED_MAX)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Dimension(_Part):
    """The values of one limit: a list, or a range to draw from."""

    values: Values | None = None
    low: Annotated[float, Strict()] | None = Field(None, alias="from")
    high: Annotated[float, Strict()] | None = Field(None, alias="to")
    log: Annotated[bool, Strict()] = False
    """Whether shares of the range are shares of its logarithm."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.values is not None:
            return self
        if self.low is None or self.high is None:
            raise ValueError(_NEITHER)
        if self.low >= self.high:
            raise ValueError(f"from {self.low:g} is not less than to {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"from {self.low:g} has no logarithm")
        return self

    def at(self, share: float, *, whole: bool) -> Any:
        """The value at `share` of the list or the range, 0 to 1; a `whole` one is an int."""
        if self.values is not None:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        assert self.low is not None
        assert self.high is not None
        value = self.low + share * (self.high - self.low)
        if self.log:
            value = self.low * (self.high / self.low) ** share
        if whole:
            return round(value)
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


class Hypercube(_Part):
    """A Latin hypercube instead of all combinations."""

    points: Annotated[int, Strict()] = Field(ge=1)
    """Sets of limits that are drawn, besides the defaults."""
    seed: Annotated[int, Strict()] = Field(1, ge=0)
    """The seed of the drawing, not of the runs."""


def _flat(table: Any) -> Any:
    """Tables within tables as dotted keys."""
    if not isinstance(table, Mapping):
        return table
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": found for inner, found in _flat(value).items()}
        else:
            flat[key] = value
    return flat


def _without_limits(changes: dict[str, Any]) -> dict[str, Any]:
    for key in changes:
        if key.startswith(FLOW):
            raise ValueError(f"{key} is a limit, which belongs in [limits]")
        if key == "seed":
            raise ValueError("the seeds are the key `seeds` of the whole file")
    return changes


class ScenarioChoice(_Part):
    """A scenario, with changes to its file."""

    name: str
    """A name of the library, or a .toml or .py file, relative to the grid's file."""
    set: Annotated[dict[str, Any], BeforeValidator(_flat), AfterValidator(_without_limits)] = {}
    """Changes by dotted key, as of `flowguard simulate --set`."""
    grid: Annotated[
        dict[str, Values],
        BeforeValidator(_flat),
        AfterValidator(_without_limits),
    ] = {}
    """Values by dotted key: the scenario is run with every combination."""


def _choices(given: Any) -> Any:
    if not isinstance(given, list):
        return given
    return [{"name": one} if isinstance(one, str) else one for one in given]


def _seeds(given: Any) -> Any:
    if isinstance(given, bool) or not isinstance(given, int):
        return given
    if given < 1:
        raise ValueError(f"{given} is less than 1")
    if given > RUNS_MAX:
        raise ValueError(f"these are {given:,} runs, more than {RUNS_MAX:,}; give fewer")
    return range(1, given + 1)


def _dimensions(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    limits: dict[str, Any] = {}
    for key, value in given.items():
        is_table = f"{key}." == FLOW and isinstance(value, Mapping)
        limits |= (
            {f"{FLOW}{name}": one for name, one in value.items()} if is_table else {key: value}
        )
    for key, value in limits.items():
        if not key.startswith(FLOW) or key.removeprefix(FLOW) not in LIMITS:
            near = nearest(key, [f"{FLOW}{name}" for name in LIMITS])
            raise ValueError(f"{key} is no limit{near or '; flowguard settings has them all'}")
        if not isinstance(value, list | Mapping):
            raise ValueError(f"{key}: {value!r} is {_NEITHER}")
    return {key: {"values": one} if isinstance(one, list) else one for key, one in limits.items()}


class Grid(_Part):
    scenarios: Annotated[tuple[ScenarioChoice, ...], BeforeValidator(_choices)] = Field(
        min_length=1
    )
    policies: tuple[PolicyName, ...] = Field(("flowguard",), min_length=1)
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(_seeds)] = Field((1, 2, 3), min_length=1)
    costs: str | None = None
    """A file of `flowguard calibrate`, relative to the grid's file."""
    limits: Annotated[dict[str, Dimension], BeforeValidator(_dimensions)] = {}
    """Limits by dotted key; those that are not named keep their defaults."""
    sample: Hypercube | None = None

    @model_validator(mode="after")
    def _range_needs_sample(self) -> Self:
        ranges = [key for key, dimension in self.limits.items() if dimension.values is None]
        if ranges and self.sample is None:
            raise ValueError(f"limits.{ranges[0]}: a range needs [sample], which draws from it")
        if self.sample is not None and not self.limits:
            raise ValueError("sample: there are no [limits] to draw from")
        return self


def is_whole(key: str) -> bool:
    """Whether a limit counts something."""
    annotation = FlowSettings.model_fields[key.removeprefix(FLOW)].annotation
    return annotation is int or int in get_args(annotation)


def load_grid(path: Path) -> Grid:
    """The grid in a file; raises ConfigError naming the file, the key and what is wrong."""
    try:
        return Grid.model_validate(read_toml(path))
    except ValidationError as error:
        raise refusal(path, error, Grid, unknown="see docs/operate/sweep.md") from error
