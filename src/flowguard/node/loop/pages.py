"""Pages: messages that waited for disconnected clients, read and sent in turns.

Many clients that reconnect at once want all of their messages at once. Without a limit, this would
delay all other clients for seconds. So live work goes first, and backlogs get the rest of the
loop's time, but never less than a share of it: a replay has to end. They are served in the order of
their requests. A request is for a page from the store, or for sending a piece of one; the next
request follows when it is done.

Pages know no store, session or clock. Committer and turns drive them with requests and answers of
the store, a simulated broker with its connections, and both get the same order.

1. `wanted` grows. `to_read` returns the next requests to the store, `came` takes the answers.
2. `ready` grows by pages that came, and by backlogs that can go on.
3. After each turn of live work, call `begins`. If it is True, call `next` with the time after each
piece.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, TypeVar, final

from flowguard.flow.load.signals import TICK_S
from flowguard.session.outbound.fetch import Moving

Q = TypeVar("Q")
P = TypeVar("P")

TURN_S: Final = 0.002
"""Time limit of backlogs in one turn, in seconds; the piece that exceeds it is the last."""
REST: Final = 3
"""Time of endless live work per time of backlogs, which so get a quarter."""
REST_MAX_S: Final = TICK_S
"""Maximum time until backlogs continue, however long the last piece took."""
READ_LEAST: Final = 2
READ_MAX: Final = 64
READ_S: Final = 0.001
"""Time for reading pages together after the first `READ_LEAST`, as commits wait for them."""
READY_MAX: Final = 8
"""Number of ready pieces from which on no page is read."""


@final
class Pages(Generic[Q, P]):
    """One per node; `Q` is a request to the store, `P` a piece of work for the loop."""

    def __init__(
        self,
        *,
        turn_s: float = TURN_S,
        rest: int = REST,
        read_max: int = READ_MAX,
        ready_max: int = READY_MAX,
        moving: Moving | None = None,
    ) -> None:
        self._turn_s = turn_s
        self._rest = rest
        self._read_max = read_max
        self._ready_max = ready_max
        self.wanted: deque[Q] = deque()
        self.ready: deque[P] = deque()
        self._moving = moving or Moving()
        self._is_reading = False
        self._began_s = 0.0
        self._due_s = 0.0

    @property
    def is_hungry(self) -> bool:
        if self._is_reading or len(self.ready) >= self._ready_max:
            return False
        return bool(self.wanted) and not self._moving.is_full

    @property
    def waits(self) -> bool:
        """True if a ready piece waits only for its turn, which causes no event.

        A request to the store does cause one.
        """
        return bool(self.ready) and not self._moving.is_full

    def to_read(self) -> list[Q]:
        """Return the requests to the store; if there are any, `came` must follow.

        The store reads as many as it has time for (`READ_S`); the others are put back before.
        """
        if not self.is_hungry:
            return []
        self._is_reading = True
        return [self.wanted.popleft() for _ in range(min(self._read_max, len(self.wanted)))]

    def put_back(self, unread: Sequence[Q]) -> None:
        """Put back the last requests, for which there was no time."""
        self.wanted.extendleft(reversed(unread))

    @property
    def has_room(self) -> bool:
        """True if another page of those that `to_read` has returned may be read."""
        return len(self.ready) < self._ready_max

    def came(self, pages: list[P]) -> None:
        """Add the pages that the store has read."""
        self._is_reading = False
        self.ready.extend(pages)

    def begins(self, now_s: float, *, idle: bool) -> bool:
        """Return True if it is the turn of backlogs; `idle` if there is no live work."""
        if not self.waits or not (idle or now_s >= self._due_s):
            return False
        self._began_s = now_s
        return True

    def next(self, now_s: float) -> P | None:
        """Return the next piece of this turn, or None if the turn has ended."""
        took_s = now_s - self._began_s
        if self.waits and took_s < self._turn_s:
            return self.ready.popleft()
        self._due_s = now_s + min(self._rest * took_s, REST_MAX_S)
        return None
