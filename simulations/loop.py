"""Loop: a process that does one thing at a time and looks at the clock when it is done.

This is `flowguard.broker.reactor.Reactor.run` without sockets. A turn serves what was ready when it
began, in slices, and takes as long as its work costs; what arrives meanwhile waits for the next
one. Other tasks (commits that are done, the tick of 100 ms) get their chance between two turns when
a slice's time has passed, or nothing is ready; sooner where the store waits for that. How long all
that takes is what the observer hears as drift.
"""

from typing import Protocol, final

from flowguard.broker.reactor import AWAITED_S, SLICE_S
from flowguard.flow import Observer
from simulations.engine import Engine


class Work(Protocol):
    """What a loop runs; each call moves `Loop.clock_s` on by what it costs."""

    @property
    def has_more(self) -> bool:
        """Whether another turn would find something to do."""

    @property
    def is_awaited(self) -> bool:
        """Whether the store has answered, or is to be asked: see `Reactor.awaited`."""

    def turn(self, now_s: float) -> bool:
        """One pass over what is ready; False: there was nothing."""

    def run_round(self) -> bool:
        """Conversations that wait for their turn; False: there were none."""

    def replay(self, *, idle: bool) -> bool:
        """Backlogs, if it is their turn; `idle`: the turn before found nothing."""

    def run_tasks(self) -> None:
        """What is due besides sockets."""


@final
class Loop:
    """`clock_s` is the process's own time: ahead of the engine's while it works."""

    __slots__ = (
        "_engine",
        "_has_replayed",
        "_has_yielded",
        "_is_idle",
        "_is_scheduled",
        "_observer",
        "_wake_s",
        "_work",
        "_yielded_s",
        "busy_s",
        "clock_s",
        "ended",
    )

    def __init__(
        self, engine: Engine, work: Work, observer: Observer, *, wake_s: float = 0.0
    ) -> None:
        self._engine = engine
        self._wake_s = wake_s
        self._work = work
        self._observer = observer
        self._is_scheduled = False
        self._is_idle = True
        self._has_yielded = True
        self._has_replayed = False
        self._yielded_s = engine.now_s
        self.clock_s = engine.now_s
        self.busy_s = 0.0
        """Time it has worked, since the start."""
        self.ended = False
        """The process is dead: what was scheduled for it does nothing any more."""

    def wake(self) -> None:
        """Something is there to be done."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._engine.at(max(self._engine.now_s, self.clock_s), self._go, None)

    def pause(self, until_s: float) -> None:
        """The process stands still: nothing it was about to do is done before."""
        paused_s = max(self._engine.now_s, self.clock_s)
        if until_s > paused_s:
            self.clock_s = until_s
            self._observer.drift(until_s - paused_s, until_s)

    def _go(self, _: None) -> None:
        if self.ended:
            return
        if self.clock_s > self._engine.now_s:  # Paused since it was scheduled.
            self._engine.at(self.clock_s, self._go, None)
            return
        started_s = self.clock_s = self._engine.now_s
        if self._is_idle:
            self._is_idle = False
            self.busy_s += self._wake_s
            started_s = self.clock_s = self._yielded_s = started_s + self._wake_s
        work = self._work
        if not self._has_replayed:
            self._yield_if_awaited(self.clock_s)  # What came in the turn before is known only now.
        since_s = self.clock_s
        worked = work.turn(since_s)
        if self.clock_s - self._yielded_s > SLICE_S:
            since_s = self._yield(since_s)
        worked |= work.run_round()
        since_s = self._yield_if_awaited(since_s)
        replayed = self._has_replayed = work.replay(idle=not worked and self._has_yielded)
        self._has_yielded = False
        ended_s = self.clock_s
        if worked or replayed:
            self._observer.drift(ended_s - since_s, ended_s)
        if not (worked or replayed) or not work.has_more:
            work.run_tasks()
            self._yielded_s = self.clock_s
            self._has_yielded = True
            self._is_idle = not work.has_more
        elif ended_s - self._yielded_s > SLICE_S:
            self._yield(ended_s)
        self.busy_s += self.clock_s - started_s
        # Who woke it meanwhile is served in the next turn, which begins when this one is over.
        self._is_scheduled = not self._is_idle
        if self._is_scheduled:
            self._engine.at(self.clock_s, self._go, None)

    def _yield(self, since_s: float) -> float:
        """See `Reactor._let_others_run`."""
        began_s = self.clock_s
        if began_s > since_s:
            self._observer.drift(began_s - since_s, began_s)
        self._work.run_tasks()
        self._yielded_s = self.clock_s
        self._observer.drift(self.clock_s - began_s, self.clock_s)
        return self.clock_s

    def _yield_if_awaited(self, since_s: float) -> float:
        if self._work.is_awaited and self.clock_s - self._yielded_s > AWAITED_S:
            return self._yield(since_s)
        return since_s
