"""What all parts of a run share."""

from dataclasses import dataclass

from benchmarks.brokers import Broker
from benchmarks.build import Unavailable
from benchmarks.machine import Cores
from benchmarks.peers import BROKERS
from benchmarks.results import BUILDS

FULL_REPEAT, QUICK_REPEAT = 3, 1
QUICK_SHARE = 0.1


@dataclass(frozen=True)
class Conditions:
    """The machine's cores, and whether it is only to be seen that everything works."""

    cores: Cores | None
    quick: bool = False

    @property
    def repeat(self) -> int:
        return QUICK_REPEAT if self.quick else FULL_REPEAT

    @property
    def broker_core(self) -> int | None:
        return self.cores.broker if self.cores else None

    @property
    def generator_core(self) -> int | None:
        return self.cores.generator if self.cores else None

    def scaled(self, count: int) -> int:
        """A tenth of it, if it is to be quick."""
        return max(1, round(count * QUICK_SHARE)) if self.quick else count

    def builds(self) -> list[Broker]:
        """The flowguards that can run here."""
        found = []
        for name in BUILDS:
            try:
                BROKERS[name].prepare()
            except Unavailable:
                continue
            found.append(BROKERS[name])
        return found
