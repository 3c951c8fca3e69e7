"""What all experiments of a run share."""

from dataclasses import dataclass
from typing import Any

from benchmarks.machine import Cores

from .subject import Subject

FULL_SECONDS = 60.0


@dataclass(frozen=True)
class Conditions:
    """Machine and length of a run."""

    cores: Cores | None
    seconds: float = FULL_SECONDS
    """Length of the headline's overload; experiments scale with it."""
    compiled: bool = False

    @property
    def broker_core(self) -> int | None:
        return self.cores.broker if self.cores else None

    @property
    def generator_core(self) -> int | None:
        return self.cores.generator if self.cores else None

    def scaled(self, full_s: float, least_s: float = 2.0) -> float:
        """A time that takes `full_s` in a full run."""
        return max(least_s, full_s * self.seconds / FULL_SECONDS)

    def subject(self, policy: str, **options: Any) -> Subject:
        """flowguard under `policy`; `options` are the fields of Subject."""
        return Subject(policy=policy, compiled=self.compiled, **options)
