"""Report: the results of the kit, with a verdict, a figure and a sentence for each experiment."""

from enum import StrEnum
from pathlib import Path
from typing import Self, final

from pydantic import BaseModel, ValidationError

from flowguard.errors import ConfigError
from loadgen.storm.tally import Result

FORMAT = 1
"""Version of the JSON; other versions are rejected."""


class Survival(StrEnum):
    """The verdict on one experiment, best first."""

    SURVIVED = "survived"
    """All clients were served, as far as that is possible in a crowd."""
    STRUGGLED = "struggled"
    """All clients were served in the end, but some were reset, timed out, or waited for long."""
    FAILED = "failed"
    """Clients were not served, or messages acknowledged to them were lost."""
    UNCLEAR = "unclear"
    """The experiment allows no verdict about the broker; its sentence explains why."""


@final
class KitFigure(BaseModel, frozen=True, extra="forbid"):
    """The figure of an experiment; its value is None if there is no result."""

    name: str
    value: float | None
    unit: str
    lower_is_better: bool = True

    def __str__(self) -> str:
        if self.value is None:
            return "never" if self.unit == "s" else "none"
        number = f"{self.value:,.0f}" if self.value >= 100 else f"{self.value:,.3g}"
        return f"{number} {self.unit}"


@final
class MemoryUse(BaseModel, frozen=True, extra="forbid"):
    """Resident memory of the broker's processes around one experiment, MiB."""

    before_mib: float
    peak_mib: float

    @property
    def growth_mib(self) -> float:
        """The highest growth, MiB."""
        return self.peak_mib - self.before_mib


@final
class Finding(BaseModel, frozen=True, extra="forbid"):
    """The result of one experiment."""

    experiment: str
    title: str
    verdict: Survival
    figure: KitFigure
    sentence: str
    memory: MemoryUse | None = None
    recovered_s: float | None = None
    """Time after the experiment until one client was served again, or None if none was."""
    seconds: float = 0.0
    values: Result = {}
    """All counts, as `flowguard storm --json` writes them."""


@final
class KitReport(BaseModel, frozen=True, extra="forbid"):
    """All findings about one broker."""

    format: int = FORMAT
    name: str
    """The broker's name in the report."""
    target: str
    version: str
    """The version of MQTT that the broker answered, or "" if it answered none."""
    clients: int
    made_at: str
    made_by: str
    findings: tuple[Finding, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return a report from its JSON. Raises ConfigError."""
        try:
            report = cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the whole file"
            raise ConfigError(
                f"{path}: {place}: {first['msg']}. Reports are written by "
                "flowguard storm --kit HOST:PORT --json FILE"
            ) from error
        if report.format != FORMAT:
            raise ConfigError(f"{path}: format {report.format}, known is {FORMAT}: make it again")
        return report

    def found(self, experiment: str) -> Finding | None:
        """Return the result of this experiment, or None if it was not run."""
        return next((f for f in self.findings if f.experiment == experiment), None)
