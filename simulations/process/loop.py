"""Loop: a process that does one thing at a time and reads the clock when it is done.

It drives `flowguard.node.loop.turns` as the reactor does. A turn serves what was ready when it
began, and takes as long as its work costs. Work that arrives meanwhile waits for the next turn.
Other tasks (completed commits, the tick of 100 ms) run when the turns demand it, or when nothing is
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
        """True if another turn would find work."""

    def run_tasks(self) -> None:
        """Run the due tasks besides turns."""

    def check(self) -> None:
        """Called after each step."""


@final
class Loop:
    """`clock_s` is the process's own time. It is ahead of the engine's while the process works."""

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
        """Work time since the start."""
        self.ended = False
        """True if the process is dead; then its scheduled events do nothing."""

    def wake(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._engine.at(max(self._engine.now_s, self.clock_s), self._go, None)

    def pause(self, until_s: float) -> None:
        """Stop the process until `until_s`; its pending work is done after that."""
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
        # Connections that woke it meanwhile are served in the next turn, which begins after this
        # one.
        self._is_scheduled = not self._is_idle
        if self._is_scheduled:
            self._engine.at(self.clock_s, self._go, None)

    def _take_turn(self, turns: Turns[Any, Any, Any, Any]) -> None:
        work = self._work
        if turns.is_awaited and not turns.has_replayed:
            # Events that arrived during the previous turn are known only now.
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
        if following is Next.IDLE or not has_more:  # One more turn would find nothing.
            turns.rest()
            work.run_tasks()
            self._is_idle = not work.has_more
        else:
            work.run_tasks()
        turns.resume()
