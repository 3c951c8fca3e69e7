"""Loop: a process that does one thing at a time and looks at the clock when it is done.

It drives `flowguard.node.loop.turns` as the reactor does. A turn serves what was ready when it
began and takes as long as its work costs; what arrives meanwhile waits for the next one. Other
tasks (commits that are done, the tick of 100 ms) run when the turns say so, or when nothing is
ready.
"""

from typing import Any, Protocol, final

from flowguard.flow import Observer
from flowguard.node.loop.turns import Next, Turns
from simulations.engine import Engine


class Work(Protocol):
    """Work that a loop runs; it moves `Loop.clock_s` on by what it costs."""

    turns: Turns[Any, Any, Any, Any]

    @property
    def has_more(self) -> bool:
        """Whether another turn would find something to do."""

    def run_tasks(self) -> None:
        """Run what is due besides turns."""

    def check(self) -> None:
        """A step is done."""


@final
class Loop:
    """`clock_s` is the process's own time: ahead of the engine's while it works."""

    def __init__(
        self, engine: Engine, work: Work, observer: Observer, *, wake_s: float = 0.0
    ) -> None:
        self._engine = engine
        self._wake_s = wake_s
        self._work = work
        self._observer = observer
        self._is_scheduled = False
        self._is_idle = True
        self.clock_s = engine.now_s
        self.busy_s = 0.0
        """Time it has worked, since the start."""
        self.ended = False
        """The process is dead: what was scheduled for it does nothing any more."""

    def wake(self) -> None:
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
        turns = self._work.turns
        if self._is_idle:
            self._is_idle = False
            self.clock_s += self._wake_s
            self.busy_s += self._wake_s
            started_s = self.clock_s
            turns.resume()
        self._take_turn(turns)
        self._work.check()
        self.busy_s += self.clock_s - started_s
        # Who woke it meanwhile is served in the next turn, which begins when this one is over.
        self._is_scheduled = not self._is_idle
        if self._is_scheduled:
            self._engine.at(self.clock_s, self._go, None)

    def _take_turn(self, turns: Turns[Any, Any, Any, Any]) -> None:
        work = self._work
        if turns.is_awaited and not turns.has_replayed:
            # What came while the turn before was under way is known only now.
            turns.pause(self.clock_s)
            work.run_tasks()
            turns.resume()
        following = turns.go_on()
        while turns.is_under_way:
            work.run_tasks()
            turns.resume()
            following = turns.go_on()
        has_more = work.has_more
        if following is Next.TURN and has_more:
            return
        if following is Next.IDLE or not has_more:  # A turn more would find nothing.
            turns.rest()
            work.run_tasks()
            self._is_idle = not work.has_more
        else:
            work.run_tasks()
        turns.resume()
