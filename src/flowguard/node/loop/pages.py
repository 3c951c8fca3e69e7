"""Pages: what waited for clients while they were away, read and sent by turns.

A crowd that comes back wants all of it at once. In one stretch it would keep everybody else waiting
for seconds. So live work goes first, and backlogs get what it leaves of the loop, a turn at a time,
but never less than a share of it: a replay has to end. They are served in the order in which they
ask, a page from the store or a piece of one to send, and ask again when they have had it.

It knows no store, no session and no clock: committer and turns drive it with what the store is
asked and what it answers, a simulated broker with its connections, and both get the same turns.

1. `wanted` grows; `to_read` gives what the store is to be asked for next, `came` brings it.
2. `ready` grows, by pages that came and by backlogs that can go on.
3. After each turn of live work: `begins`, and if so `next` with the time after each piece.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, TypeVar, final

from flowguard.flow.load.signals import TICK_S
from flowguard.session.outbound.fetch import Moving

Q = TypeVar("Q")
P = TypeVar("P")

TURN_S: Final = 0.002
"""What backlogs may take of the loop at a time; the piece during which it passes is the last."""
REST: Final = 3
"""So many times as long live work goes first where it has no end: backlogs get a quarter."""
REST_MAX_S: Final = TICK_S
"""However long the last piece has taken."""
READ_LEAST: Final = 2
READ_MAX: Final = 64
READ_S: Final = 0.001
"""Pages read together: so many, and on while it has taken no longer: commits wait for them."""
READY_MAX: Final = 8
"""No page is read while so many pieces are ready."""


@final
class Pages(Generic[Q, P]):
    """One per node; `Q` is what the store is asked for, `P` a piece of work for the loop."""

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
        """Whether a piece only waits for its turn, which nothing announces; what is on its way to
        the store does announce itself."""
        return bool(self.ready) and not self._moving.is_full

    def to_read(self) -> list[Q]:
        """Return what the store is to be asked for now; if there is something, `came` follows.

        It reads as many as it has time for (`READ_S`); the others go back before that.
        """
        if not self.is_hungry:
            return []
        self._is_reading = True
        return [self.wanted.popleft() for _ in range(min(self._read_max, len(self.wanted)))]

    def put_back(self, unread: Sequence[Q]) -> None:
        """There was no time for the last of them."""
        self.wanted.extendleft(reversed(unread))

    @property
    def has_room(self) -> bool:
        """Whether another page may be read that `to_read` has given before."""
        return len(self.ready) < self._ready_max

    def came(self, pages: list[P]) -> None:
        """The store has answered."""
        self._is_reading = False
        self.ready.extend(pages)

    def begins(self, now_s: float, *, idle: bool) -> bool:
        """Whether it is the turn of backlogs; `idle`: live work has left the loop nothing to do."""
        if not self.waits or not (idle or now_s >= self._due_s):
            return False
        self._began_s = now_s
        return True

    def next(self, now_s: float) -> P | None:
        """The next piece of this turn; None: it is over."""
        took_s = now_s - self._began_s
        if self.waits and took_s < self._turn_s:
            return self.ready.popleft()
        self._due_s = now_s + min(self._rest * took_s, REST_MAX_S)
        return None
