"""Samples: what a node shows of itself at an instant, and what it decided since the one before.

The rows of tables `samples` and `decisions`, without `run_id`. Counts are kept per machine: what a
process counted after its last sample comes with the first one of its next life.
"""

from typing import TYPE_CHECKING, Any, Final, final

from flowguard.flow.policy import Rung
from flowguard.flow.pressure import objectives_of
from flowguard.flow.signals import Pressure, Signal

if TYPE_CHECKING:
    from simulations.broker import Broker
    from simulations.machine import Machine

Row = tuple[Any, ...]

RUNGS: Final = {rung: rung.name.lower() for rung in Rung}
_DEAD_PRESSURES: Final = (0.0,) * 6
_DEAD_LEVELS: Final = (0.0, 0, RUNGS[Rung.BUFFER], *(0,) * 10)
_DEAD_COUNTS: Final = (*(0,) * 7, None, 0.0, 0.0)


@final
class Samples:
    """One machine's."""

    def __init__(self, machine: "Machine") -> None:
        settings = machine.world.settings
        objectives = objectives_of(settings)
        self._machine = machine
        self._queue_s = objectives.queue_s
        self._loop_s = objectives.loop_s
        self._store_s = objectives.store_s
        self._window_start = float(settings.window_max)
        self._memory_limit_bytes = machine.world.scenario.node.memory_max_bytes
        self._counts: tuple[float, ...] = (0,) * 7
        self._busy_s = 0.0
        self._refusing_s = 0.0
        self._life: Broker | None = None
        self._window = 0.0
        self._connect_limit = 0
        self._rung = Rung.BUFFER
        self._begin_life()

    def _begin_life(self) -> None:
        """Decisions of a process begin with what it is first seen with."""
        broker = self._life = self._machine.broker
        if broker is not None:
            self._window = self._window_start
            self._connect_limit = broker.guard.gate.limit
            self._rung = broker.guard.gate.rung

    # --- table samples -----------------------------------------------------------------------

    def row(self, t_s: float) -> Row:
        """What is to be seen at `t_s`, which is now."""
        broker = self._machine.broker
        if broker is None:
            dead = (False, *_DEAD_PRESSURES, None, *_DEAD_LEVELS, *_DEAD_COUNTS, 0.0, 0.0, 0.0)
            return (self._machine.index, t_s, *dead)
        pressure = broker.guard.grant.pressure
        parts = pressure.parts
        queue = parts.get(Signal.QUEUE, 0.0)
        loop = parts.get(Signal.LOOP, 0.0)
        store = parts.get(Signal.STORE, 0.0)
        return (
            self._machine.index,
            t_s,
            True,
            pressure.value,
            queue,
            loop,
            store,
            parts.get(Signal.REPLICATION, 0.0),
            parts.get(Signal.MEMORY, 0.0),
            _name(pressure),
            *self._levels(broker),
            *self._counts_since(broker, t_s),
            # The parts are these by their objectives; a simulated store never says that it stalls.
            queue * self._queue_s,
            loop * self._loop_s,
            store * self._store_s,
        )

    def _levels(self, broker: "Broker") -> Row:
        gate, window = broker.guard.gate, broker.guard.window
        return (
            broker.guard.grant.window,
            gate.limit,
            RUNGS[gate.rung],
            gate.in_process,
            gate.buffered,
            gate.buffered_bytes,
            len(broker.listener.backlog),
            len(broker.connections),
            window.in_process,
            broker.packets.waiting_count,
            window.in_process_bytes,
            broker.memory_bytes,
            self._memory_limit_bytes,
        )

    def _counts_since(self, broker: "Broker", t_s: float) -> Row:
        counters, loop = self._machine.counters, broker.loop
        counts = (
            counters.accepted_count,
            counters.refused_count,
            counters.discarded_count,
            counters.closed_count,
            counters.published_count,
            counters.delivered_count,
            counters.lost_count,
        )
        # A turn counts as work until now, however long it will take: its clock is ahead.
        busy_s = counters.busy_s + loop.busy_s - max(0.0, loop.clock_s - t_s)
        since = [now - before for now, before in zip(counts, self._counts, strict=True)]
        row = (*since, None, busy_s - self._busy_s, counters.refusing_s - self._refusing_s)
        self._counts, self._busy_s = counts, busy_s
        self._refusing_s = counters.refusing_s
        return row

    # --- table decisions ---------------------------------------------------------------------

    def decisions(self, t_s: float) -> list[Row]:
        """All since the last call; those of a turn that is not over are ahead of `t_s`."""
        broker = self._machine.broker
        if broker is not self._life:
            self._begin_life()
        if broker is None:
            return []
        node = self._machine.index
        rows: list[Row] = []
        decided = broker.guard.decisions
        while decided:
            decided_s, grant = decided.popleft()
            before, self._window = self._window, grant.window
            pressure = grant.pressure
            change = (before, grant.window, pressure.value, _name(pressure), grant.why)
            rows.append((node, decided_s, "window", *change))
        limit, rung = broker.guard.gate.limit, broker.guard.gate.rung
        if limit != self._connect_limit or rung != self._rung:
            pressure = broker.guard.grant.pressure
            why = (pressure.value, _name(pressure), _why(pressure))
            if limit != self._connect_limit:
                change_of_limit = (float(self._connect_limit), float(limit))
                rows.append((node, t_s, "connect_limit", *change_of_limit, *why))
                self._connect_limit = limit
            if rung != self._rung:
                rows.append((node, t_s, "rung", float(self._rung), float(rung), *why))
                self._rung = rung
        return rows


def _name(pressure: Pressure) -> str | None:
    return None if pressure.cause is None else pressure.cause.value


def _why(pressure: Pressure) -> str:
    if pressure.cause is None:
        return "no pressure"
    return f"{pressure.cause} at {pressure.value:.1f} times its objective"
