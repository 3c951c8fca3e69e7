"""Likeness: a simulated run beside the recorded one that it was made from, figure by figure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

from flowguard.errors import ConfigError
from simulations.fitting.measured import MeasuredRun, of_recording, publishing_seconds, simulated
from simulations.fitting.recorded import RecordedRun
from simulations.scenario import Scenario
from spark_analysis.intervals import Interval, interval

TOLERANCE: Final = 0.2
"""Largest deviation that counts as agreement, as a share of the recorded value."""
PARTS: Final = 6
"""Number of parts of the recorded run; their figures make its interval."""
CONNECTED: Final = "99 % connected, s"
Figure = Callable[[MeasuredRun, Sequence[int]], float | None]
"""A figure of some seconds, or None if nothing was measured."""
FIGURES: Final[Mapping[str, Figure]] = {
    "acknowledged, 1/s": MeasuredRun.goodput_per_s,
    "PUBACK p50, s": lambda measured, seconds: measured.latency_s(0.5, seconds),
    "PUBACK p99, s": lambda measured, seconds: measured.latency_s(0.99, seconds),
}


@dataclass(frozen=True, slots=True)
class Likeness:
    """One figure on both sides."""

    name: str
    recorded: float
    recorded_interval: Interval | None
    """Interval over parts of the run, or None for a figure of the whole run."""
    simulated: Interval
    """Over seeds."""

    @property
    def deviation(self) -> float:
        if self.recorded == self.simulated.mean:
            return 0.0
        return self.simulated.mean / self.recorded - 1.0 if isfinite(self.recorded) else inf

    @property
    def agrees(self) -> bool:
        return abs(self.deviation) <= TOLERANCE


def compare(run: RecordedRun, scenario: Scenario, seeds: Sequence[int]) -> list[Likeness]:
    """Simulate with each seed, and return what both sides have measured."""
    if scenario.duration_s < run.seconds:
        raise ConfigError(
            f"the scenario ends after {scenario.duration_s:g} s, and the recording after "
            f"{run.seconds} s"
        )
    recorded = of_recording(run)
    models = [simulated(scenario.model_copy(update={"seed": seed})) for seed in seeds]
    found = []
    if isfinite(recorded.connected_99_s):
        over_seeds = interval(model.connected_99_s for model in models)
        assert over_seeds is not None
        found.append(Likeness(CONNECTED, recorded.connected_99_s, None, over_seeds))
    seconds = publishing_seconds(recorded.published)
    for name, figure in FIGURES.items():
        whole = figure(recorded, seconds)
        if not whole:
            continue
        parts = [figure(recorded, part) for part in _parts(seconds)]
        over_parts = interval(value for value in parts if value is not None)
        over_seeds = interval(figure(model, seconds) or 0.0 for model in models)
        assert over_seeds is not None
        found.append(Likeness(name, whole, over_parts, over_seeds))
    return found


def _parts(seconds: Sequence[int]) -> list[Sequence[int]]:
    count = min(PARTS, len(seconds))
    bounds = [len(seconds) * number // count for number in range(count + 1)]
    return [seconds[bounds[i] : bounds[i + 1]] for i in range(count)]
