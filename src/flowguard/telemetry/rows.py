"""Rows of tables `samples` and `decisions`, live or simulated."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, TypeVar, final

from flowguard.flow import Gate, Grant, Guard, Rung, Signal
from flowguard.flow.load.signals import Objectives, Pressure
from flowguard.telemetry.schema import DecisionRow

K = TypeVar("K")
RUNGS: Final = {rung: rung.name.lower() for rung in Rung}


def guard_columns(guard: Guard[Any], objectives: Objectives) -> dict[str, Any]:
    """Return the columns of table `samples` that a guard provides, by name."""
    gate, window, pressure = guard.gate, guard.window, guard.grant.pressure
    parts = {signal: pressure.parts.get(signal, 0.0) for signal in Signal}
    return {f"pressure_{signal}_ratio": part for signal, part in parts.items()} | {
        "pressure_ratio": pressure.value,
        "cause": _name(pressure),
        "window": guard.grant.window,
        "connect_limit": gate.limit,
        "rung": RUNGS[gate.rung],
        "connects_in_process_count": gate.in_process,
        "connects_buffered_count": gate.buffered,
        "connects_buffered_bytes": gate.buffered_bytes,
        "packets_in_process_count": window.in_process,
        "unfinished_bytes": window.in_process_bytes,
        # A part is a value divided by its objective; a stalled store's part is larger.
        "sojourn_min_s": parts[Signal.QUEUE] * objectives.queue_s,
        "drift_s": parts[Signal.LOOP] * objectives.loop_s,
        "commit_s": parts[Signal.STORE] * objectives.store_s,
    }


@final
class Growth(Generic[K]):
    """The growth of counts from one row to the next, by column."""

    def __init__(self, counts: dict[K, Any] | None = None) -> None:
        self._counts = counts or {}

    def since(self, counts: dict[K, Any]) -> dict[K, Any]:
        """Return the growth of each count since the last call."""
        before, self._counts = self._counts, counts
        return {name: count - before.get(name, 0) for name, count in counts.items()}


@final
class Decisions:
    """Changes of a node's window, CONNECT limit and overload level, as rows of table
    `decisions`."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._window = 0.0
        self._limit = 0
        self._rung = Rung.BUFFER

    def begin(self, window: float, gate: Gate[Any]) -> None:
        """Start again: the window in force now is no decision."""
        self._window, self._limit, self._rung = window, gate.limit, gate.rung

    def rows(
        self, decided: Iterable[tuple[float, Grant]], grant: Grant, gate: Gate[Any], t_s: float
    ) -> Iterator[DecisionRow]:
        """Yield rows for the windows `decided`, with their times, and for gate changes until
        `t_s`."""
        for decided_s, each in decided:
            change = (self._window, each.window)
            yield self._row(decided_s, "window", change, each.pressure, each.why)
            self._window = each.window
        pressure, why = grant.pressure, _why(grant.pressure)
        if gate.limit != self._limit:
            yield self._row(t_s, "connect_limit", (self._limit, gate.limit), pressure, why)
            self._limit = gate.limit
        if gate.rung is not self._rung:
            yield self._row(t_s, "rung", (self._rung, gate.rung), pressure, why)
            self._rung = gate.rung

    def _row(
        self, t_s: float, kind: str, change: tuple[float, float], pressure: Pressure, why: str
    ) -> DecisionRow:
        before, after = map(float, change)
        return DecisionRow(
            node=self._node,
            t_s=t_s,
            kind=kind,
            before=before,
            after=after,
            pressure_ratio=pressure.value,
            cause=_name(pressure),
            why=why,
        )


def _name(pressure: Pressure) -> str | None:
    return None if pressure.cause is None else pressure.cause.value


def _why(pressure: Pressure) -> str:
    if pressure.cause is None:
        return "no pressure"
    return f"{pressure.cause} at {pressure.value:.1f} times its objective"
