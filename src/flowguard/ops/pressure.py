"""Pressure and the latest decisions of a node, with the values that signals observed."""

from collections.abc import Callable
from math import log
from typing import Final

from typing_extensions import TypedDict

from flowguard.broker.protected import Protected
from flowguard.config import FlowSettings
from flowguard.flow import Grant, Signal
from flowguard.flow.load.pressure import MEMORY_FOURFOLD_SHARE, objectives_of
from flowguard.flow.load.signals import Objectives

DECISIONS_SHOWN: Final = 16
"""Number of latest decisions shown. The one that caused a pause is among them, or more than a
second old."""
UNITS: Final = {signal: "s" for signal in Signal} | {Signal.MEMORY: "share"}
OBJECTIVES: Final[dict[Signal, Callable[[Objectives], float]]] = {
    Signal.QUEUE: lambda objectives: objectives.queue_s,
    Signal.LOOP: lambda objectives: objectives.loop_s,
    Signal.STORE: lambda objectives: objectives.store_s,
    Signal.REPLICATION: lambda objectives: objectives.replication_s,
    Signal.MEMORY: lambda objectives: objectives.memory_share,
}


class Decision(TypedDict):
    """One change of the window with its cause; without a cause, its fields are None."""

    at_s: float
    """Unix time of the decision."""
    window: float
    pressure: float
    why: str
    signal: str | None
    """A signal of the pressure."""
    value: float | None
    """The observed value, in `unit`."""
    threshold: float | None
    """The signal's objective, in `unit`."""
    unit: str | None


def decisions_of(node: Protected) -> list[Decision]:
    """Return the latest changes of the window, oldest first."""
    latest = list(node.guard.decisions)[-DECISIONS_SHOWN:]
    return [_decision(at_s, grant, node.settings.flow) for at_s, grant in latest]


def _decision(at_s: float, grant: Grant, flow: FlowSettings) -> Decision:
    cause, pressure = grant.pressure.cause, grant.pressure.value
    signal = threshold = value = unit = None
    if cause is not None:
        signal, threshold, unit = str(cause), objectives(flow)[cause], UNITS[cause]
        value = _observed(cause, grant.pressure.parts.get(cause, pressure), threshold)
    return Decision(
        at_s=at_s,
        window=grant.window,
        pressure=pressure,
        why=grant.why,
        signal=signal,
        value=value,
        threshold=threshold,
        unit=unit,
    )


def objectives(flow: FlowSettings) -> dict[str, float]:
    """Return the objective of each signal: seconds, or a share for memory."""
    of_node = objectives_of(flow)
    return {str(signal): objective(of_node) for signal, objective in OBJECTIVES.items()}


def parts(grant: Grant) -> dict[str, float]:
    """Return the pressure of each signal: its value divided by its objective."""
    return {str(signal): grant.pressure.parts.get(signal, 0.0) for signal in Signal}


def observed(grant: Grant, flow: FlowSettings) -> dict[str, float]:
    """Return the observed value of each signal, in the unit of its objective."""
    thresholds = objectives(flow)
    return {
        signal: _observed(signal, part, thresholds[signal]) for signal, part in parts(grant).items()
    }


def _observed(signal: str, part: float, threshold: float) -> float:
    """Return the observed value, computed back from its pressure."""
    if signal != Signal.MEMORY:
        return part * threshold
    return threshold + MEMORY_FOURFOLD_SHARE * log(part, 4) if part > 0 else 0.0
