"""Due: what a tick finds to be over, worked off a piece at a time like any chore.

A thousand sessions that expire in one instant, each with two hundred subscriptions, are a third of
a second of the loop; connections that are late at once, and retained messages that expire, are a
crowd like that. The first piece is done with the tick itself, the rest in between other work.
"""

from collections.abc import Callable
from typing import Final, final

from flowguard.node.publish.publishing import Router
from flowguard.node.upkeep.timers import Timers, Wheel
from flowguard.records import DropRetained
from flowguard.session.chores import Chore, Chores
from flowguard.session.connection import ServerConnection

ENDS_PIECE: Final = 10
"""Sessions and connections that end in one stretch: each with its will, and with few enough
subscriptions (`FILTERS_PIECE`) for a third of a millisecond."""
LOOKS_PIECE: Final = 200
"""Connections that are looked at, and are mostly not late; retained messages that go."""


@final
class Due(Chore):
    """One per node; each tick says until when its peers have been heard."""

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
        """Begin with what is due by `heard_s`, unless that of the last tick is not done."""
        self._heard_s = heard_s
        if not self._is_waiting and self.step(now_s):
            self._chores.add(self)

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
        """Look at those that may be late; True: there are more."""
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
