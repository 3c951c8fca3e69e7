"""Backlog: the QoS 1 and 2 messages that wait for one client, oldest first.

Bounded in messages and bytes, wherever they are. The first of them are here, in memory, which a
node-wide budget bounds; where the store is on disk, the rest is only there (`away`) and is fetched
page by page when its turn comes. Nobody's backlog is in memory while its client is not connected.

A message that goes through the store is counted before it goes (`reserve`), so that what has a
place when it is accepted still has one when its commit is done.
"""

from collections import deque
from typing import TYPE_CHECKING, Final, final

from flowguard.flow import Budget, Reason
from flowguard.records import Delivery, QueueEntry
from flowguard.stores import Store

if TYPE_CHECKING:
    from flowguard.session.session import Session

HERE_MAX: Final = 1_000
HERE_BYTES_MAX: Final = 1024 * 1024
"""In memory of one client, where there is a disk; one message more is always possible."""
PAGE_MAX: Final = 250
PAGE_BYTES_MAX: Final = 512 * 1024

Waiting = tuple[int, Delivery, int]
"""Position, message, bytes it counts."""


@final
class Fetch:
    """A page of a backlog that the store is to be asked for.

    No dataclass: mypyc looks the types of its fields up while `Session` is still to come.
    """

    __slots__ = ("after_pos", "client_id", "session", "until_pos")

    def __init__(self, session: "Session", client_id: str, after_pos: int, until_pos: int) -> None:
        self.session = session
        self.client_id = client_id
        self.after_pos = after_pos
        self.until_pos = until_pos

    def entries(self, store: Store) -> list[QueueEntry]:
        """Ask; blocks as the store does."""
        return store.fetch(
            self.client_id,
            self.after_pos,
            PAGE_MAX,
            until_pos=self.until_pos,
            bytes_max=PAGE_BYTES_MAX,
        )


@final
class Backlog:
    """Counts, limits, and the messages that are here.

    The deque is made with the first message: an idle client pays for a few integers.
    """

    __slots__ = (
        "_after_pos",
        "_away_bytes",
        "_away_count",
        "_away_pos",
        "_budget",
        "_bytes_max",
        "_fetching",
        "_here",
        "_here_bytes",
        "_late_bytes",
        "_late_count",
        "_messages_max",
        "count",
        "size_bytes",
        "spills",
    )

    def __init__(
        self, messages_max: int, bytes_max: int, budget: Budget, *, spills: bool = False
    ) -> None:
        """`spills`: every message is on disk as well; else `budget` holds all of them."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._budget = budget
        self.spills = spills
        self._here: deque[Waiting] | None = None
        self._here_bytes = 0
        self._away_count = 0
        self._away_bytes = 0
        self._after_pos = 0
        """Before the first message that is away."""
        self._away_pos = 0
        """Of the last one."""
        self._fetching: Fetch | None = None
        self._late_count = 0
        self._late_bytes = 0
        """Put away since the page under way was asked for."""
        self.count = 0
        """Messages that wait, or will when their commit is done."""
        self.size_bytes = 0
        """The same, as `Delivery.size_bytes` counts."""

    @property
    def waits(self) -> bool:
        """Whether a message waits for its client."""
        return self._here is not None or self._away_count > 0

    @property
    def charged_bytes(self) -> int:
        """What the budget holds of it."""
        return self._here_bytes if self.spills else self.size_bytes

    @property
    def is_away(self) -> bool:
        """Nothing is here, and something is on disk: a page is wanted."""
        return self._here is None and self._away_count > 0

    # --- places ------------------------------------------------------------------------------

    def reserve(self, size_bytes: int, *, overshoot: int = 0) -> Reason | None:
        """Count a message in; else why there is no room. `overshoot`: messages above the limits."""
        if self.count >= self._messages_max + overshoot:
            return Reason.QUEUE_MESSAGES
        if self.size_bytes + size_bytes > self._bytes_max and not overshoot:
            return Reason.QUEUE_BYTES
        if not self.spills and not self._budget.take(size_bytes):
            return Reason.NODE_QUEUE_BYTES
        self.count += 1
        self.size_bytes += size_bytes
        return None

    def forget(self, size_bytes: int) -> None:
        """A message that was counted in does not wait after all."""
        self.count -= 1
        self.size_bytes -= size_bytes
        if not self.spills:
            self._budget.give_back(size_bytes)

    @property
    def is_over(self) -> bool:
        """More than the limits allow, after an overshoot."""
        return self.count > self._messages_max or self.size_bytes > self._bytes_max

    # --- messages ----------------------------------------------------------------------------

    def put(self, pos: int, delivery: Delivery, size_bytes: int, *, connected: bool) -> None:
        """A message that was counted in waits now, the last of all."""
        if self.spills and not (connected and self._takes(size_bytes)):
            self._put_away(pos, 1, size_bytes)
        else:
            self._put_here((pos, delivery, size_bytes))

    def _takes(self, size_bytes: int) -> bool:
        """Whether one more may be here, where it need not."""
        if self._away_count:
            return False
        if self._here is not None and (
            len(self._here) >= HERE_MAX or self._here_bytes + size_bytes > HERE_BYTES_MAX
        ):
            return False
        return self._budget.take(size_bytes)

    def _put_here(self, waiting: Waiting) -> None:
        if self._here is None:
            self._here = deque()
        self._here.append(waiting)
        self._here_bytes += waiting[2]

    def _put_away(self, pos: int, count: int, size_bytes: int) -> None:
        if not self._away_count:
            self._after_pos = pos - 1
        self._away_pos = pos
        self._away_count += count
        self._away_bytes += size_bytes
        self._late_count += count
        self._late_bytes += size_bytes

    def peek(self) -> Waiting | None:
        """The oldest message, if it is here; left in place."""
        return self._here[0] if self._here is not None else None

    def take(self) -> Waiting | None:
        """The oldest message, if it is here; it waits no longer."""
        here = self._here
        if here is None:
            return None
        waiting = here.popleft()
        size_bytes = waiting[2]
        self._here_bytes -= size_bytes
        if not here:
            self._here = None
        if self.spills:
            self._budget.give_back(size_bytes)
        self.forget(size_bytes)
        return waiting

    # --- pages -------------------------------------------------------------------------------

    def fetch(self, session: "Session") -> Fetch | None:
        """The next page to ask the store for; None: none is missing, or one is on its way."""
        if self._fetching is not None or not self._away_count:
            return None
        self._late_count = self._late_bytes = 0
        fetch = Fetch(session, session.client_id, self._after_pos, self._away_pos)
        self._fetching = fetch
        return fetch

    def fetched(self, fetch: Fetch, entries: list[QueueEntry]) -> None:
        """The page is there; an empty one: nothing was left up to where it was asked for."""
        if fetch is not self._fetching:
            return  # The client left meanwhile, and the order of things is another.
        self._fetching = None
        for entry in entries:
            delivery = entry.delivery
            assert delivery is not None
            size_bytes = delivery.size_bytes
            if self._here is not None and not self._budget.take(size_bytes):
                return  # The rest is asked for again.
            if self._here is None:
                self._budget.used_bytes += size_bytes  # One message per client always has room.
            self._after_pos = entry.pos
            self._away_count -= 1
            self._away_bytes -= size_bytes
            self._put_here((entry.pos, delivery, size_bytes))
        if not entries:
            # What was counted and is not there: the store lost it, and said so.
            self.count -= self._away_count - self._late_count
            self.size_bytes -= self._away_bytes - self._late_bytes
            self._away_count, self._away_bytes = self._late_count, self._late_bytes
            self._after_pos = fetch.until_pos

    def restore(self, after_pos: int, last_pos: int, count: int, size_bytes: int) -> None:
        """The store remembers so many messages that wait: promised, whatever limits are now."""
        if count:
            self.count += count
            self.size_bytes += size_bytes
            self._put_away(last_pos, count, size_bytes)
            self._after_pos = after_pos

    def leave(self) -> None:
        """The client is gone: what is on disk anyway need not be here."""
        here = self._here
        if here is None or not self.spills:
            return
        self._after_pos = here[0][0] - 1
        self._away_pos = max(self._away_pos, here[-1][0])
        self._away_count += len(here)
        self._away_bytes += self._here_bytes
        self._budget.give_back(self._here_bytes)
        self._here = None
        self._here_bytes = 0
        self._fetching = None

    def clear(self) -> None:
        """The session is over: nothing waits any more."""
        self._budget.give_back(self.charged_bytes)
        self._here = None
        self._fetching = None
        self._here_bytes = self._away_count = self._away_bytes = 0
        self.count = self.size_bytes = 0
