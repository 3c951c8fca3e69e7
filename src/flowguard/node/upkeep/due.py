"""Due: the deadlines that a tick has reached, handled piece by piece in the background.

A thousand sessions that expire in one instant, each with two hundred subscriptions, take a third of
a second of the loop. Many connections may also time out at once, and many retained messages may
expire. The tick does the first piece itself; the rest follows in between other work.
"""

from collections.abc import Callable
from typing import Final, final

from flowguard.node.publish.publishing import Router
from flowguard.node.upkeep.timers import Timers, Wheel
from flowguard.records import DropRetained
from flowguard.session.chores import Chores
from flowguard.session.connection import ServerConnection

ENDS_PIECE: Final = 10
"""Maximum number of sessions and connections that end in one time slice. Each takes a third of a
millisecond, with its will and up to `FILTERS_PIECE` subscriptions."""
LOOKS_PIECE: Final = 200
"""Maximum number of connections that are checked, and of retained messages that expire.
Most of the checked connections are not late."""


@final
class Due:
    """One per node."""

    def __init__(
        self,
        chores: Chores,
        router: Router,
        timers: Timers,
        wheel: Wheel[ServerConnection],
        look_at: Callable[[ServerConnection, float, float], None],
    ) -> None:
        """`look_at` is called with a connection that may be late, `heard_s` and `now_s`."""
        self._chores = chores
        self._router = router
        self._timers = timers
        self._wheel = wheel
        self._look_at = look_at
        self._heard_s = 0.0
        self._is_waiting = False

    def tick(self, heard_s: float, now_s: float) -> None:
        """Begin with the deadlines until `heard_s`, unless those of the last tick are not done.

        All data of connections that arrived until `heard_s` has been read.
        """
        self._heard_s = heard_s
        if not self._is_waiting and self.step(now_s):
            self._chores.add(self.step)

    def step(self, now_s: float) -> bool:
        self._is_waiting = False
        heard_s, router = self._heard_s, self._router
        more = self._timers.fire(heard_s, now_s, ENDS_PIECE)
        more |= self._look(heard_s, now_s)
        expired = router.retained.expire(now_s, LOOKS_PIECE)
        for topic in expired:
            router.journal.note(DropRetained(topic))
        self._is_waiting = more or len(expired) == LOOKS_PIECE
        return self._is_waiting

    def _look(self, heard_s: float, now_s: float) -> bool:
        """Check connections that may be late; True if there are more."""
        ends_count = 0
        for _ in range(LOOKS_PIECE):
            if ends_count == ENDS_PIECE:
                return True
            found = self._wheel.due(heard_s, 1)
            if not found:
                return False
            connection = found[0]
            self._look_at(connection, heard_s, now_s)
            ends_count += connection.ended
        return True
