"""Rows of tables `samples` and `decisions` (docs/reference/parquet-schema.md), live or simulated.

A row has all columns but `run_id`, in the order of the schema.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, final

from flowguard.flow import Gate, Grant, NodeWindow, Rung, Signal
from flowguard.flow.signals import Objectives, Pressure
from flowguard.telemetry.pending import Row

RUNGS: Final = {rung: rung.name.lower() for rung in Rung}
Memory = tuple[int, int]
"""Bytes held, and bytes beyond which the process dies."""


def sample_row(
    node: int,
    t_s: float,
    grant: Grant,
    gate: Gate[Any],
    window: NodeWindow,
    objectives: Objectives,
    sockets: tuple[int | None, int],
    waiting_count: int | None,
    memory: Memory,
    counts: Sequence[float | None],
) -> Row:
    """A row of table `samples`.

    `sockets`: those that the kernel keeps, and those accepted; `counts`: the columns from
    `accepted_count` to `refusing_s`, since the row before.
    """
    pressure = grant.pressure
    parts = pressure.parts
    queue = parts.get(Signal.QUEUE, 0.0)
    loop = parts.get(Signal.LOOP, 0.0)
    store = parts.get(Signal.STORE, 0.0)
    return (
        node,
        t_s,
        True,
        pressure.value,
        queue,
        loop,
        store,
        parts.get(Signal.REPLICATION, 0.0),
        parts.get(Signal.MEMORY, 0.0),
        _name(pressure),
        grant.window,
        gate.limit,
        RUNGS[gate.rung],
        gate.in_process,
        gate.buffered,
        gate.buffered_bytes,
        *sockets,
        window.in_process,
        waiting_count,
        window.in_process_bytes,
        *memory,
        *counts,
        # The parts are these by their objectives; a store that says it stalls has more.
        queue * objectives.queue_s,
        loop * objectives.loop_s,
        store * objectives.store_s,
    )


@final
class Decisions:
    """The changes of window, limit and rung of one node, as rows of table `decisions`."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._window = 0.0
        self._limit = 0
        self._rung = Rung.BUFFER

    def begin(self, window: float, gate: Gate[Any]) -> None:
        """Start anew: the window in force now is no decision."""
        self._window, self._limit, self._rung = window, gate.limit, gate.rung

    def rows(
        self, decided: Iterable[tuple[float, Grant]], grant: Grant, gate: Gate[Any], t_s: float
    ) -> Iterator[Row]:
        """Windows `decided`, with their times, and the changes of the gate until `t_s`."""
        for decided_s, each in decided:
            pressed = (each.pressure.value, _name(each.pressure), each.why)
            yield self._node, decided_s, "window", self._window, each.window, *pressed
            self._window = each.window
        pressure = grant.pressure
        why = (pressure.value, _name(pressure), _why(pressure))
        if gate.limit != self._limit:
            change = (float(self._limit), float(gate.limit))
            yield self._node, t_s, "connect_limit", *change, *why
            self._limit = gate.limit
        if gate.rung is not self._rung:
            yield self._node, t_s, "rung", float(self._rung), float(gate.rung), *why
            self._rung = gate.rung


def _name(pressure: Pressure) -> str | None:
    return None if pressure.cause is None else pressure.cause.value


def _why(pressure: Pressure) -> str:
    if pressure.cause is None:
        return "no pressure"
    return f"{pressure.cause} at {pressure.value:.1f} times its objective"
