"""What all parts of a run share."""

from dataclasses import dataclass

from .brokers import Broker
from .machine import Cores
from .peers import BROKERS, prepared
from .verdicts import BUILDS

FULL_SECONDS, QUICK_SECONDS = 60.0, 6.0
FULL_REPEAT, QUICK_REPEAT = 3, 1


@dataclass(frozen=True)
class Conditions:
    """The machine's cores, and the length of a run."""

    cores: Cores | None
    seconds: float = FULL_SECONDS
    """Length of the headline's overload; everything else scales with it."""

    @property
    def repeat(self) -> int:
        return FULL_REPEAT if self.seconds >= FULL_SECONDS else QUICK_REPEAT

    @property
    def broker_core(self) -> int | None:
        return self.cores.broker if self.cores else None

    @property
    def generator_core(self) -> int | None:
        return self.cores.generator if self.cores else None

    def scaled(self, full_s: float, least_s: float = 2.0) -> float:
        """A time that takes `full_s` in a full run."""
        return max(least_s, full_s * self.seconds / FULL_SECONDS)

    def count(self, full: int) -> int:
        """A number that is `full` in a full run, and never more."""
        return max(1, round(full * min(1.0, self.seconds / FULL_SECONDS)))

    def builds(self) -> list[Broker]:
        """The flowguards that can run here."""
        return [BROKERS[name] for name in prepared(BUILDS)[0]]
