"""Backlog: the QoS 1 and 2 messages that wait for one client, or one group, oldest first.

Bounded in messages and bytes, wherever they are. The first of them are here, in memory; where the
store is on disk, all of them are there, the rest only there (`away`), to be fetched page by page
when its turn comes. No client's backlog is in memory then while it is not connected. What all
backlogs hold is bounded by two budgets of the node, one for the memory and one for the disk.

A message that goes through the store is counted before it goes (`reserve`), so that what has a
place when it is accepted still has one when its commit is done.

Messages whose time has passed can be found wherever they wait: those here at once (`take_expired`),
those away page by page (`look`), from the time when the earliest of them can have expired. They
leave gaps, which a page shows only once they are durable: until then none is asked for (`gaps`).
"""

from bisect import bisect_left
from collections import deque
from operator import itemgetter
from typing import Final, final

from flowguard.flow import FairBudget, Reason
from flowguard.records import NEVER_S, Delivery, QueueEntry
from flowguard.session.outbound.fetch import Fetch, PageOwner

# Not final: tests have smaller ones, and the compiled code should look at them.
HERE_MAX = 1_000
HERE_BYTES_MAX = 1024 * 1024
"""In memory of one backlog, where there is a disk; one message more is always possible."""
PAGE_MAX = 250
PAGE_BYTES_MAX = 512 * 1024
"""A page ends with the message that reaches one of the two."""
PIECE_MAX: Final = 25
"""Messages of a page sent at a time, where many clients take turns: less than a millisecond."""
LOOK_PAUSE_S: Final = 1.0  # Between two scans of the messages on disk.
UNKNOWN_S: Final = float("-inf")

Waiting = tuple[int, Delivery, int]
"""Position, message, bytes it counts."""


@final
class Backlog:
    """Counts, limits, and the messages that are here.

    The deque is made with the first message: an idle client pays for a few integers.
    """

    __slots__ = (
        "after_pos",
        "_away_bytes",
        "away_count",
        "_away_expires_s",
        "away_pos",
        "_budget",
        "bytes_max",
        "_fetching",
        "_here",
        "_here_budget",
        "_here_bytes",
        "_here_expires_s",
        "_late_bytes",
        "_late_count",
        "_look_pos",
        "messages_max",
        "_over_bytes",
        "_seen_expires_s",
        "count",
        "damage",
        "gaps",
        "size_bytes",
        "spills",
    )

    def __init__(
        self,
        messages_max: int,
        bytes_max: int,
        memory_budget: FairBudget,
        disk_budget: FairBudget | None = None,
    ) -> None:
        """`disk_budget`: there is a disk, and every message is on it, here or not."""
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.spills = disk_budget is not None
        self._budget = disk_budget or memory_budget  # Holds all of it.
        self._here_budget = memory_budget  # Where there is a disk: holds what is here.
        self._here: deque[Waiting] | None = None
        self._here_bytes = 0
        self._here_expires_s = NEVER_S
        """None of those here has expired before."""
        self.away_count = 0
        self._away_bytes = 0
        self._away_expires_s = NEVER_S
        """None of those away has expired before."""
        self._look_pos = 0
        """Up to here those away have been looked through."""
        self._seen_expires_s = NEVER_S  # The earliest of those left there, or put away since.
        self.after_pos = 0  # The position before the first message that is only on disk.
        self.away_pos = 0
        """The position of the last message that is only on disk."""
        self._fetching: Fetch | None = None
        self._late_count = self._late_bytes = 0  # Put away since the page under way was asked for.
        self.count = 0
        """Messages that wait, or will when their commit is done."""
        self.size_bytes = 0
        """The same, as `Delivery.size_bytes` counts."""
        self._over_bytes = 0
        """Bytes of it that the budget of the disk does not hold."""
        self.gaps = 0
        """How often something left out of its turn, and is not known to be durable."""
        self.damage = ""
        """Why what is away could not be read when it was asked for last; empty: it could."""

    @property
    def waits(self) -> bool:
        """Whether a message waits for its client."""
        return self._here is not None or self.away_count > 0

    @property
    def charged_bytes(self) -> int:
        """Bytes of it that the budget of the memory holds."""
        return self._here_bytes if self.spills else self.size_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes that its own budget holds: the disk's, where there is one."""
        return self.size_bytes - self._over_bytes

    @property
    def is_away(self) -> bool:
        """Nothing is here, and something is on disk: a page is wanted."""
        return self._here is None and self.away_count > 0

    # --- places ------------------------------------------------------------------------------

    def reserve(self, size_bytes: int, count: int = 1, *, overshoot: bool = False) -> Reason | None:
        """Count so many in; else why not all of them fit. `overshoot`: one, a page above limits."""
        reason = self.refusal(size_bytes, count, overshoot=overshoot)
        if reason is None:
            if overshoot and self.node_refusal(size_bytes) is not None:
                self._over_bytes += size_bytes
                self.size_bytes += size_bytes
                self.count += 1
            else:
                self.promise(size_bytes, count)
        return reason

    def refusal(self, size_bytes: int, count: int = 1, *, overshoot: bool = False) -> Reason | None:
        """The answer that `reserve` would give."""
        if overshoot:
            if self.count >= self.messages_max + PAGE_MAX:
                return Reason.QUEUE_MESSAGES
            if self.size_bytes >= self.bytes_max + PAGE_BYTES_MAX:
                return Reason.QUEUE_BYTES
        elif self.count + count > self.messages_max:
            return Reason.QUEUE_MESSAGES
        elif self.size_bytes + size_bytes > self.bytes_max:
            return Reason.QUEUE_BYTES
        if overshoot and self.spills and self._over_bytes < PAGE_BYTES_MAX:
            return None
        budget = self._budget
        if budget.used_bytes + size_bytes <= budget.common_bytes:
            return None
        return self.node_refusal(size_bytes)

    def node_refusal(self, size_bytes: int) -> Reason | None:
        """Why the node has no room for such a message here, whatever this queue's own limits."""
        if self._budget.fits(size_bytes, self.held_bytes):
            return None
        return Reason.NODE_DISK_QUEUE_BYTES if self.spills else Reason.NODE_QUEUE_BYTES

    def reserve_spare(self, size_bytes: int) -> bool:
        """Count in what is larger than the share of who keeps up; False: no room either."""
        if not self.has_spare(size_bytes):
            return False
        self.promise(size_bytes)
        return True

    def has_spare(self, size_bytes: int) -> bool:
        """Return what `reserve_spare` would answer: one at a time."""
        fits = size_bytes <= self.bytes_max and self.messages_max > 0
        return fits and not self.count and self._budget.has_spare(size_bytes)

    def could_hold(self, size_bytes: int) -> bool:
        """Whether there would be room for such a message if nothing else waited."""
        return size_bytes <= self.bytes_max

    def could_have(self, size_bytes: int) -> bool:
        """Whether the node would have room for such a message if nothing else waited here."""
        budget, held_bytes = self._budget, self.held_bytes
        if budget.used_bytes - held_bytes + size_bytes <= budget.common_bytes:
            return True
        return held_bytes > 0 and size_bytes <= budget.share_bytes(held_bytes)

    def promise(self, size_bytes: int, count: int = 1) -> None:
        """Count in what had its place before: it keeps one whatever the limits are."""
        budget = self._budget
        budget.used_bytes += size_bytes
        if not self.size_bytes:
            budget.holders_count += 1
        self.count += count
        self.size_bytes += size_bytes

    def forget(self, size_bytes: int, count: int = 1) -> None:
        """Messages that were counted in do not wait after all."""
        self.count -= count
        if self._over_bytes:
            self._relieve(size_bytes)
            return
        size_left_bytes = self.size_bytes - size_bytes
        self.size_bytes = size_left_bytes
        budget = self._budget
        budget.used_bytes -= size_bytes
        if not size_left_bytes:
            budget.holders_count -= 1

    def _relieve(self, size_bytes: int) -> None:
        """Give back `size_bytes`, first of those that the budget does not hold."""
        relief_bytes = min(size_bytes, self._over_bytes)
        self._over_bytes -= relief_bytes
        self.size_bytes -= size_bytes
        self._budget.give_back(size_bytes - relief_bytes, self.held_bytes)

    def excess(self) -> Reason | None:
        """The limit that is exceeded: after an overshoot, or a restart with lower ones."""
        if self.count > self.messages_max:
            return Reason.QUEUE_MESSAGES
        if self.size_bytes > self.bytes_max:
            return Reason.QUEUE_BYTES
        return Reason.NODE_DISK_QUEUE_BYTES if self._over_bytes else None

    @property
    def is_full(self) -> bool:
        """No message at all would find room."""
        return self.count >= self.messages_max or self.size_bytes >= self.bytes_max

    # --- messages ----------------------------------------------------------------------------

    def put(self, pos: int, delivery: Delivery, size_bytes: int, *, connected: bool) -> None:
        """A message that was counted in waits now, the last of all."""
        if self.spills and not (connected and self._takes(size_bytes)):
            self._put_away(pos, 1, size_bytes, delivery.expires_at_s)
        else:
            self._put_here((pos, delivery, size_bytes))

    def _takes(self, size_bytes: int) -> bool:
        """Whether one more may be here, where it need not."""
        if self.away_count:
            return False
        if self._here is not None and (
            len(self._here) >= HERE_MAX or self._here_bytes + size_bytes > HERE_BYTES_MAX
        ):
            return False
        return self._here_budget.take(size_bytes, self._here_bytes)

    def _put_here(self, waiting: Waiting) -> None:
        if self._here is None:
            self._here = deque()
        self._here.append(waiting)
        self._here_bytes += waiting[2]
        expires_at_s = waiting[1].expires_at_s
        if expires_at_s < self._here_expires_s:
            self._here_expires_s = expires_at_s

    def _put_away(self, pos: int, count: int, size_bytes: int, expires_at_s: float) -> None:
        is_first = not self.away_count
        self.after_pos = pos - 1 if is_first else min(self.after_pos, pos - 1)
        self.away_pos = pos if is_first else max(self.away_pos, pos)
        self.away_count += count
        self._away_bytes += size_bytes
        self._late_count += count
        self._late_bytes += size_bytes
        self._away_expires_s = min(self._away_expires_s, expires_at_s)
        self._seen_expires_s = min(self._seen_expires_s, expires_at_s)

    def peek(self) -> Waiting | None:
        """The oldest message, if it is here; left in place."""
        return self._here[0] if self._here is not None else None

    def take(self) -> Waiting | None:
        """The oldest message, if it is here; it waits no longer."""
        here = self._here
        if here is None:
            return None
        waiting = here.popleft()
        if not here:
            self._here = None
            self._here_expires_s = NEVER_S
        self._taken(waiting[2])
        return waiting

    def take_expired(self, now_s: float) -> list[Waiting]:
        """Remove and return the messages in memory whose time has passed, a page at most.

        O(messages here), and only if one of them may have expired.
        """
        expired: list[Waiting] = []
        if self._here is None or self._here_expires_s > now_s:
            return expired
        rest: deque[Waiting] = deque()
        self._here_expires_s = NEVER_S
        for waiting in self._here:
            expires_at_s = waiting[1].expires_at_s
            if expires_at_s <= now_s and len(expired) < PAGE_MAX:
                expired.append(waiting)
                self._taken(waiting[2])
            else:
                rest.append(waiting)
                self._here_expires_s = min(self._here_expires_s, expires_at_s)
        self._here = rest or None
        return expired

    def _taken(self, size_bytes: int) -> None:
        """A message is here no longer."""
        self._here_bytes -= size_bytes
        if self.spills:
            self._here_budget.give_back(size_bytes, self._here_bytes)
        self.forget(size_bytes)

    def put_back(self, pos: int, delivery: Delivery, size_bytes: int) -> None:
        """A message that was taken waits again, at its old place."""
        self.promise(size_bytes)
        if self.spills:
            self._here_budget.hold(size_bytes, self._here_bytes)
        if self._here is None:
            self._here = deque()
        place = bisect_left(self._here, pos, key=itemgetter(0))
        self._here.insert(place, (pos, delivery, size_bytes))
        self._here_bytes += size_bytes
        self._here_expires_s = min(self._here_expires_s, delivery.expires_at_s)

    # --- pages -------------------------------------------------------------------------------

    def fetch(self, owner: PageOwner) -> Fetch | None:
        """The next page to ask the store for; None: none is missing, or one is on its way.

        While the client is not connected it is no longer than what is above the limits.
        """
        count_max, bytes_max = PAGE_MAX, PAGE_BYTES_MAX
        if not owner.connected and self.spills:
            excess = self.excess()
            if excess is Reason.QUEUE_MESSAGES:
                count_max = min(count_max, self.count - self.messages_max)
            elif excess is Reason.QUEUE_BYTES:
                bytes_max = min(bytes_max, self.size_bytes - self.bytes_max)
            elif excess is Reason.NODE_DISK_QUEUE_BYTES:
                bytes_max = min(bytes_max, self._over_bytes)
        return self._ask(owner, self.after_pos, count_max, bytes_max, looks=False)

    def look(self, owner: PageOwner, now_s: float) -> Fetch | None:
        """The next page in which a message may have expired; None: none, or one is on its way."""
        if not self.may_have_expired(now_s):
            return None
        after_pos = max(self._look_pos, self.after_pos)
        return self._ask(owner, after_pos, PAGE_MAX, PAGE_BYTES_MAX, looks=True)

    def may_have_expired(self, now_s: float) -> bool:
        """Whether expired messages on disk would free enough for the limits."""
        return self._away_expires_s <= now_s and self.count - self.messages_max < self.away_count

    def _ask(
        self, owner: PageOwner, after_pos: int, count_max: int, bytes_max: int, *, looks: bool
    ) -> Fetch | None:
        if self._fetching is not None or self.gaps or not self.away_count:
            return None
        if self.damage and not owner.connected:
            return None  # Nobody is here for whom it would be worth another try.
        self._late_count = self._late_bytes = 0
        fetch = Fetch(owner, after_pos, self.away_pos, count_max, bytes_max, looks=looks)
        self._fetching = fetch
        return fetch

    def unreadable(self, fetch: Fetch) -> None:
        """The page cannot be read: what is in it waits, and so does what comes after it."""
        if fetch is self._fetching:
            self._fetching = None
        self.damage = fetch.damage

    def fetched(self, fetch: Fetch, entries: list[QueueEntry]) -> None:
        """The page is there; an empty one: nothing was left up to where it was asked for.

        What was sent does not wait, nor do positions that have no message any more.
        """
        if fetch is not self._fetching:
            return  # The client left meanwhile, and the order of things is another.
        self._fetching = None
        self.damage = ""
        for entry in entries:
            delivery = entry.delivery
            if delivery is None or entry.pos in fetch.sent:
                self.after_pos = entry.pos
                continue
            size_bytes = delivery.size_bytes
            if self.spills:
                if self._here is None:  # One message per client always has room.
                    self._here_budget.hold(size_bytes, 0)
                elif not self._here_budget.take(size_bytes, self._here_bytes):
                    return  # The rest is asked for again.
            self.after_pos = entry.pos
            self._not_away(size_bytes)
            self._put_here((entry.pos, delivery, size_bytes))
        if not entries:
            self._lost(fetch)

    def looked(self, fetch: Fetch, entries: list[QueueEntry], now_s: float) -> list[Waiting]:
        """Remove and return messages of a page whose time has passed; the others stay on disk."""
        expired: list[Waiting] = []
        if fetch is not self._fetching:
            return expired
        self._fetching = None
        for entry in entries:
            self._look_pos = entry.pos
            delivery = entry.delivery
            if delivery is None or entry.pos in fetch.sent:
                continue
            if delivery.expires_at_s > now_s:
                self._seen_expires_s = min(self._seen_expires_s, delivery.expires_at_s)
                continue
            size_bytes = delivery.size_bytes
            expired.append((entry.pos, delivery, size_bytes))
            self._not_away(size_bytes)
            self.forget(size_bytes)
        if not entries and fetch.after_pos == self.after_pos:
            self._lost(fetch)
        elif not entries or self._look_pos >= fetch.until_pos:
            # All of them have been seen: the next look is from the start.
            self._away_expires_s = max(self._seen_expires_s, now_s + LOOK_PAUSE_S)
            self._seen_expires_s = NEVER_S
            self._look_pos = 0
        return expired

    def _not_away(self, size_bytes: int) -> None:
        """A message is away no longer."""
        self.away_count -= 1
        self._away_bytes -= size_bytes
        if not self.away_count:
            self._nothing_away()

    def _nothing_away(self) -> None:
        self._away_expires_s = self._seen_expires_s = NEVER_S
        self._look_pos = 0

    def _lost(self, fetch: Fetch) -> None:
        """Uncount messages that are not there after all: the store lost them, and said so."""
        lost_bytes = self._away_bytes - self._late_bytes
        self.count -= self.away_count - self._late_count
        self._relieve(lost_bytes)
        self.away_count, self._away_bytes = self._late_count, self._late_bytes
        self.after_pos = fetch.until_pos
        if not self.away_count:
            self._nothing_away()

    def restore(self, after_pos: int, last_pos: int, count: int, size_bytes: int) -> None:
        """The store remembers so many messages that wait: promised, whatever limits are now."""
        if count:
            self._budget.hold(size_bytes, self.held_bytes)
            self.count, self.size_bytes = self.count + count, self.size_bytes + size_bytes
            self._put_away(last_pos, count, size_bytes, UNKNOWN_S)
            self._seen_expires_s = NEVER_S
            self.after_pos = after_pos

    def move(self, messages_max: int, bytes_max: int, budget: FairBudget) -> None:
        """Put what waits under these bounds from now on, counted in another budget."""
        self._budget.give_back(self.held_bytes, 0)
        self.messages_max, self.bytes_max = messages_max, bytes_max
        self._budget, self._over_bytes = budget, 0
        budget.hold(self.size_bytes, 0)

    def leave(self) -> None:
        """The client is gone: what is on disk anyway need not be here."""
        here = self._here
        if here is None or not self.spills:
            return
        # Whoever puts messages here need not do so in the order of their positions.
        positions = [pos for pos, _, _ in here]
        self.after_pos = min(positions) - 1
        self.away_pos = max(self.away_pos, *positions)
        self.away_count += len(here)
        self._away_bytes += self._here_bytes
        self._away_expires_s = min(self._away_expires_s, self._here_expires_s)
        self._seen_expires_s = min(self._seen_expires_s, self._here_expires_s)
        self._here_budget.give_back(self._here_bytes, 0)
        self._here = None
        self._here_bytes = 0
        self._here_expires_s = NEVER_S
        if self._fetching is not None and not self._fetching.looks:
            self._fetching = None

    def clear(self) -> None:
        """The session is over: nothing waits any more."""
        if self.spills:
            self._here_budget.give_back(self._here_bytes, 0)
        self._budget.give_back(self.held_bytes, 0)
        self._here = None
        self._fetching = None
        self._here_bytes = self.away_count = self._away_bytes = 0
        self._here_expires_s = NEVER_S
        self._nothing_away()
        self.count = self.size_bytes = self._over_bytes = 0
