"""Report: what the kit found, with a verdict, a figure and a sentence for each experiment."""

from enum import StrEnum
from pathlib import Path
from typing import Self, final

from pydantic import BaseModel, ConfigDict, ValidationError

from flowguard.errors import ConfigError
from loadgen.storm.tally import Result

FORMAT = 1
"""Version of the JSON; another one is refused."""


class Survival(StrEnum):
    """The verdict on one experiment, best first."""

    SURVIVED = "survived"
    """Everybody was served, as far as anybody can be in a crowd."""
    STRUGGLED = "struggled"
    """Everybody was served in the end, but clients were reset, timed out, or waited for long."""
    FAILED = "failed"
    """Clients were not served, or what was acknowledged to them was lost."""
    UNCLEAR = "unclear"
    """The experiment says nothing about the broker; its sentence says why."""


class _Words(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


@final
class KitFigure(_Words):
    """The figure that an experiment ends in; None: it never came to be."""

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
class MemoryUse(_Words):
    """Resident memory of the broker's processes around one experiment, MiB."""

    before_mib: float
    peak_mib: float

    @property
    def growth_mib(self) -> float:
        """The most that was added."""
        return self.peak_mib - self.before_mib


@final
class Finding(_Words):
    """The end of one experiment."""

    experiment: str
    title: str
    verdict: Survival
    figure: KitFigure
    sentence: str
    memory: MemoryUse | None = None
    recovered_s: float | None = None
    """How long after the experiment one client was served again; None: it was not."""
    seconds: float = 0.0
    values: Result = {}
    """Everything that was counted, as `flowguard storm --json` writes it."""


@final
class KitReport(_Words):
    """All findings about one broker."""

    format: int = FORMAT
    name: str
    """What the report calls the broker."""
    target: str
    version: str
    """The version of MQTT that was spoken; empty: none was answered."""
    clients: int
    made_at: str
    made_by: str
    findings: tuple[Finding, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """A report from its JSON; raises ConfigError."""
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
        """The end of this experiment; None: it was not run."""
        return next((f for f in self.findings if f.experiment == experiment), None)
