"""Check: the cases on the real broker and in the simulator, with the costs measured before.

A judged figure is a ratio within one run (`cases`). Each case runs several times on the real
broker, and the median of each figure counts. The simulated node is slower by the median factor by
which the real loop was slower for want of a core: so a busy machine is simulated as one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median

from simulations.calibration.cases import Case, Values, cases
from simulations.calibration.costs import Costs, with_costs
from simulations.calibration.process import StoreKind
from simulations.calibration.runs import CheckRun, real_run, simulated_run


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, real and simulated."""

    name: str
    real: Sequence[float]
    """The values of all real runs."""
    simulated: float
    tolerance: float | None = None
    """Largest deviation that still counts as agreement, or None if the figure is only shown."""

    @property
    def deviation(self) -> float:
        """The deviation of the simulated value from the real median, as a share of the latter."""
        real = median(self.real)
        if real == self.simulated:
            return 0.0
        return self.simulated / real - 1.0 if real and isfinite(real) else inf

    @property
    def agrees(self) -> bool:
        """True if the deviation is small enough, or the figure is only shown."""
        return self.tolerance is None or abs(self.deviation) <= self.tolerance


@dataclass(frozen=True, slots=True)
class Comparison:
    """One case on both sides."""

    name: str
    figures: list[Figure]
    slowness: float
    """Factor by which the real broker's loop was slower, because it waited for a core."""
    load_share: float
    """CPU time of the real runs' clients by the duration: near 1 the load was the bottleneck."""


@dataclass(frozen=True, slots=True)
class Check:
    store: StoreKind
    costs: Costs
    clients: int = 2_000
    """Clients of a crowd."""
    seed: int = 1
    runs: int = 3
    """Runs on the real broker."""
    measured_s: float = 2.0
    """Measured duration of publishing."""

    def cases(self) -> list[Case]:
        return list(cases(self.store, self.costs, self.clients, self.seed, self.measured_s))

    def run(self, on_step: Callable[[str], None]) -> list[Comparison]:
        """Compare all cases, one after the other; `on_step` is called with the name of each.

        Raises CalibrationError if the real broker fails.
        """
        comparisons = []
        for case in self.cases():
            on_step(case.name)
            real = [
                [real_run(self.store, scenario, case.least_s) for scenario in case.scenarios]
                for _ in range(self.runs)
            ]
            comparisons.append(compared(case, real, self.costs))
        return comparisons


def simulated(case: Case, costs: Costs, slowness: Sequence[float]) -> Values:
    """The figures of a case in the simulator; `slowness` is a factor for each scenario."""
    runs = [
        simulated_run(with_costs(scenario, costs), case.least_s, factor)
        for scenario, factor in zip(case.scenarios, slowness, strict=True)
    ]
    return case.values(runs)


def compared(case: Case, real: Sequence[Sequence[CheckRun]], costs: Costs) -> Comparison:
    """The figures of several real runs beside the simulated ones."""
    found = [case.values(runs) for runs in real]
    slowness = [median(run.slowness for run in runs) for runs in zip(*real, strict=True)]
    figures = [
        Figure(name, [each[name] for each in found], value, case.tolerances.get(name))
        for name, value in simulated(case, costs, slowness).items()
    ]
    runs = [run for each in real for run in each]
    load_share = median(run.load_share for run in runs)
    return Comparison(case.name, figures, max(slowness), load_share)
