"""Pressure of a node by its own signals (docs/explain/overload.md, "Pressure").

Two signals are not plain quotients. A store that reports a delay or a stop has a pressure of at
least 1.5 or 4, at any latency. The pressure of memory is exponential and doubles every ten points,
because the last tenth of memory is worth more than the first.
"""

from collections.abc import Mapping
from typing import Final

from flowguard.config import FlowSettings
from flowguard.flow.load.signals import PRESSURE_MAX, Objectives, Pressure, Sample, Signal

MEMORY_FOURFOLD_SHARE: Final = 0.20
"""Distance above its objective at which memory has pressure 4, share of the limit."""
_EXPONENT_MAX: Final = 8.0
"""4 ** 8 is far above any other pressure; beyond lies only the end of floating point."""


def objectives_of(settings: FlowSettings) -> Objectives:
    return Objectives(
        queue_s=settings.queue_objective_s,
        loop_s=settings.loop_objective_s,
        store_s=settings.store_objective_s,
        replication_s=settings.replication_objective_s,
        memory_share=settings.memory_objective,
    )


def pressure_of(sample: Sample, objectives: Objectives) -> Pressure:
    """Return the node's pressure: 0 to `PRESSURE_MAX`. The parts are not capped, so the worst is
    known."""
    return _worst_of(_parts_of(sample, objectives, sample.memory_share))


def window_pressure_of(sample: Sample, objectives: Objectives) -> Pressure:
    """Return the pressure that windows can relieve: without the memory of waiting CONNECTs."""
    memory_share = max(0.0, sample.memory_share - sample.waiting_share)
    return _worst_of(_parts_of(sample, objectives, memory_share))


def slots_pressure_of(pressure: Pressure) -> float:
    """Return the pressure on the limit of CONNECTs in process: without memory.

    CONNECTs that wait hold memory until they are served, so a smaller limit keeps it longer.
    """
    parts = pressure.parts.items()
    return _worst_of({cause: part for cause, part in parts if cause is not Signal.MEMORY}).value


def _parts_of(sample: Sample, objectives: Objectives, memory_share: float) -> dict[Signal, float]:
    return {
        Signal.QUEUE: sample.sojourn_s / objectives.queue_s,
        Signal.LOOP: sample.drift_s / objectives.loop_s,
        Signal.STORE: max(sample.commit_s / objectives.store_s, sample.store_state.value),
        Signal.REPLICATION: sample.replication_age_s / objectives.replication_s,
        Signal.MEMORY: _memory_pressure(
            max(memory_share, sample.unfinished_share), objectives.memory_share
        ),
    }


def _worst_of(parts: Mapping[Signal, float]) -> Pressure:
    worst, cause = 0.0, None
    for signal, part in parts.items():
        if part > worst:
            worst, cause = part, signal
    return Pressure(min(PRESSURE_MAX, worst), cause, parts)


def _memory_pressure(share: float, objective: float) -> float:
    """Return 1 at the objective, 4 at 20 points above, and 0 if no use was reported."""
    if share <= 0.0:
        return 0.0
    return float(4.0 ** min(_EXPONENT_MAX, (share - objective) / MEMORY_FOURFOLD_SHARE))
