"""Samples: what a node shows of itself at an instant, and what it decided since the one before.

The rows of tables `samples` and `decisions`, without `run_id`. Counts are kept per machine: what a
process counted after its last sample comes with the first one of its next life.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Final, final

from flowguard.flow import Grant, Rung
from flowguard.flow.pressure import objectives_of
from flowguard.telemetry.pending import Row
from flowguard.telemetry.rows import RUNGS, Decisions, sample_row
from simulations.counters import MachineCounters

if TYPE_CHECKING:
    from simulations.broker import Broker
    from simulations.machine import Machine

_DEAD: Final = (False, *(0.0,) * 6, None, 0.0, 0, RUNGS[Rung.BUFFER], *(0,) * 17, None, *(0.0,) * 5)
"""The columns of table `samples` after node and time, while there is no process."""


@final
class Samples:
    def __init__(self, machine: "Machine") -> None:
        settings = machine.world.settings
        self._machine = machine
        self._objectives = objectives_of(settings)
        self._window_start = float(settings.window_max)
        self._memory_limit_bytes = machine.world.scenario.node.memory_max_bytes
        self._counts: tuple[float, ...] = astuple(MachineCounters())
        self._decisions = Decisions(machine.index)
        self._life: Broker | None = None
        self._begin_life()

    def _begin_life(self) -> None:
        """Decisions of a process begin with what it is first seen with."""
        broker = self._life = self._machine.broker
        if broker is not None:
            self._decisions.begin(self._window_start, broker.guard.gate)

    def row(self, t_s: float) -> Row:
        """Row of table `samples`: what is to be seen at `t_s`, which is now."""
        broker = self._machine.broker
        if broker is None:
            return (self._machine.index, t_s, *_DEAD)
        return sample_row(
            self._machine.index,
            t_s,
            broker.guard.grant,
            broker.guard.gate,
            broker.guard.window,
            self._objectives,
            (len(broker.listener.backlog), len(broker.connections)),
            broker.packets.waiting_count,
            (broker.memory_bytes, self._memory_limit_bytes),
            self._counts_since(broker, t_s),
        )

    def _counts_since(self, broker: "Broker", t_s: float) -> list[float | None]:
        counters, loop = self._machine.counters, broker.loop
        # A turn counts as work until now, however long it will take: its clock is ahead.
        busy_s = counters.busy_s + loop.busy_s - max(0.0, loop.clock_s - t_s)
        counts = astuple(replace(counters, busy_s=busy_s))
        since = [now - before for now, before in zip(counts, self._counts, strict=True)]
        self._counts = counts
        return [*since[:-2], None, *since[-2:]]

    def decisions(self, t_s: float) -> Iterator[Row]:
        """All since the last call; those of a turn that is not over are ahead of `t_s`."""
        broker = self._machine.broker
        if broker is not self._life:
            self._begin_life()
        if broker is not None:
            guard = broker.guard
            decided = _taken(guard.decisions)
            yield from self._decisions.rows(decided, guard.grant, guard.gate, t_s)


def _taken(decided: deque[tuple[float, Grant]]) -> Iterator[tuple[float, Grant]]:
    while decided:
        yield decided.popleft()
