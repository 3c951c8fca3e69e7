"""Samples for laws: pressure by the queue alone, ticks of virtual time."""

from collections.abc import Iterator

from flowguard.flow.load.signals import PRESSURE_MAX, TICK_S, Pressure, Sample, Signal

QUEUE_OBJECTIVE_S = 0.025


def judge(sample: Sample) -> Pressure:
    value = min(PRESSURE_MAX, sample.sojourn_s / QUEUE_OBJECTIVE_S)
    return Pressure(value, Signal.QUEUE if value else None, {Signal.QUEUE: value})


def under(pressure: float, now_s: float = 0.0) -> Sample:
    return Sample(now_s, sojourn_s=pressure * QUEUE_OBJECTIVE_S)


def ticks(seconds: float, start_s: float = 0.0) -> Iterator[float]:
    """Yield the times of all ticks in `seconds`."""
    return (start_s + number * TICK_S for number in range(round(seconds / TICK_S)))
