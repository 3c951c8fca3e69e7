"""Samples: what a node shows of itself at an instant, and what it decided since the one before.

The rows of tables `samples` and `decisions`, without `run_id`. Counts are kept per machine: what a
process counted after its last sample comes with the first one of its next life.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, final

from flowguard.flow import Grant, Rung
from flowguard.flow.load.pressure import objectives_of
from flowguard.telemetry.rows import RUNGS, Decisions, Growth, guard_columns
from flowguard.telemetry.schema import DecisionRow, SampleRow

if TYPE_CHECKING:
    from simulations.process.broker import Broker
    from simulations.process.machine import Machine

_ZEROS: Final[dict[str, Any]] = dict.fromkeys(SampleRow._fields, 0)
_DEAD: Final = SampleRow(
    **_ZEROS
    | SampleRow._field_defaults
    | {"is_alive": False, "cause": None, "rung": RUNGS[Rung.BUFFER], "dropped_count": None}
)
"""A sample while there is no process."""


@final
class Samples:
    def __init__(self, machine: "Machine") -> None:
        settings = machine.world.settings
        self._machine = machine
        self._objectives = objectives_of(settings)
        self._window_start = float(settings.window_max)
        self._memory_limit_bytes = machine.world.scenario.node.memory_max_bytes
        self._growth = Growth[str]()
        self._decisions = Decisions(machine.index)
        self._life: Broker | None = None
        self._begin_life()

    def _begin_life(self) -> None:
        """Decisions of a process begin with what it is first seen with."""
        broker = self._life = self._machine.broker
        if broker is not None:
            self._decisions.begin(self._window_start, broker.guard.gate)

    def row(self, t_s: float) -> SampleRow:
        """Row of table `samples`: what is to be seen at `t_s`, which is now."""
        broker = self._machine.broker
        if broker is None:
            return _DEAD._replace(node=self._machine.index, t_s=t_s)
        counters, loop = self._machine.counters, broker.loop
        # A turn counts as work until now, however long it will take: its clock is ahead.
        busy_s = counters.busy_s + loop.busy_s - max(0.0, loop.clock_s - t_s)
        return SampleRow(
            node=self._machine.index,
            t_s=t_s,
            is_alive=True,
            **guard_columns(broker.guard, self._objectives),
            backlog_count=len(broker.listener.backlog),
            connections_count=len(broker.connections),
            packets_waiting_count=broker.packets.waiting_count,
            memory_bytes=broker.memory_bytes,
            memory_limit_bytes=self._memory_limit_bytes,
            **self._growth.since(asdict(replace(counters, busy_s=busy_s))),
            dropped_count=None,
        )

    def decisions(self, t_s: float) -> Iterator[DecisionRow]:
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
