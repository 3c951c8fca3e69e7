"""Backlog: the QoS 1 and 2 messages that wait for one client, or one group, oldest first.

A backlog is bounded in messages and bytes. The first messages are in memory (`memory_backlog`). If
the store is on disk, it has all of them. The rest is only on disk (`disk_backlog`), and is fetched
page by page. Then no backlog is in memory while its client is not connected. Two budgets of the
node limit all backlogs together, one for the memory and one for the disk.

A message that goes through the store is counted before (`reserve`), so that its slot is still
reserved when its commit is done.

Expired messages are found wherever they wait: in memory at once (`take_expired`), on disk page by
page (`look`).
"""

from typing import Final, final

from flowguard.flow import FairBudget, Reason
from flowguard.records import NEVER_S, Delivery, QueueEntry
from flowguard.session.outbound.disk_backlog import EMPTY_DISK, DiskBacklog
from flowguard.session.outbound.fetch import Fetch, PageOwner
from flowguard.session.outbound.memory_backlog import MemoryBacklog, Waiting

# Not final: tests have smaller ones, and the compiled code should look at them.
HERE_MAX = 1_000
HERE_BYTES_MAX = 1024 * 1024
"""Limits of one backlog in memory, if there is a disk; one more message is always possible."""
PAGE_MAX = 250
PAGE_BYTES_MAX = 512 * 1024
"""A page ends with the message that reaches one of the two limits."""
PIECE_MAX: Final = 25
"""Messages of a page that are sent in one turn of a client: less than a millisecond."""
LOOK_PAUSE_S: Final = 1.0  # Between two scans of the messages on disk.
UNKNOWN_S: Final = float("-inf")


@final
class Backlog:
    """Counts, limits, and the messages in memory.

    The parts are made with the first message, so that an idle client has only a few integers.
    """

    __slots__ = (
        "_budget",
        "_in_memory",
        "_memory_budget",
        "_over_bytes",
        "bytes_max",
        "count",
        "disk",
        "messages_max",
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
        """`disk_budget` is given if there is a disk, which has every message."""
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.spills = disk_budget is not None
        self._budget = disk_budget or memory_budget  # Holds all of it.
        self._memory_budget = memory_budget  # If there is a disk: holds what is in memory.
        self._in_memory: MemoryBacklog | None = None
        self.disk = EMPTY_DISK
        """The messages that are only on disk; `own_disk` to change it."""
        self.count = 0
        """Number of messages that wait, or will wait after their commit."""
        self.size_bytes = 0
        """Size of these messages, as `Delivery.size_bytes` counts."""
        self._over_bytes = 0
        """Bytes of it that the budget of the disk does not hold."""

    @property
    def waits(self) -> bool:
        """True if a message waits for its client."""
        return self._in_memory is not None or self.disk.count > 0

    @property
    def charged_bytes(self) -> int:
        """Number of its bytes in the budget of the memory."""
        if not self.spills:
            return self.size_bytes
        return 0 if self._in_memory is None else self._in_memory.size_bytes

    @property
    def held_bytes(self) -> int:
        """Number of its bytes in its own budget, that of the disk if there is one."""
        return self.size_bytes - self._over_bytes

    @property
    def is_away(self) -> bool:
        """True if all messages are on disk, so that a page is needed."""
        return self._in_memory is None and self.disk.count > 0

    def own_disk(self) -> DiskBacklog:
        """Return `disk` to change it."""
        if self.disk is EMPTY_DISK:
            self.disk = DiskBacklog()
        return self.disk

    # --- slots -------------------------------------------------------------------------------

    def reserve(self, size_bytes: int, count: int = 1, *, overshoot: bool = False) -> Reason | None:
        """Reserve slots, or return the reason if not all fit.

        With `overshoot`, one message may exceed the limits, by a page at most.
        """
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
        """Return what `reserve` would return."""
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
        """Return the limit of the node that rejects such a message, or None."""
        if self._budget.fits(size_bytes, self.held_bytes):
            return None
        return Reason.NODE_DISK_QUEUE_BYTES if self.spills else Reason.NODE_QUEUE_BYTES

    def has_spare(self, size_bytes: int) -> bool:
        """Return True if a client that keeps up may have one message larger than its share."""
        fits = size_bytes <= self.bytes_max and self.messages_max > 0
        return fits and not self.count and self._budget.has_spare(size_bytes)

    def could_have(self, size_bytes: int) -> bool:
        """Return True if the node would accept such a message if this backlog were empty."""
        budget, held_bytes = self._budget, self.held_bytes
        if budget.used_bytes - held_bytes + size_bytes <= budget.common_bytes:
            return True
        return held_bytes > 0 and size_bytes <= budget.share_bytes(held_bytes)

    def promise(self, size_bytes: int, count: int = 1) -> None:
        """Count messages that had slots before, whatever the limits are."""
        budget = self._budget
        budget.used_bytes += size_bytes
        if not self.size_bytes:
            budget.holders_count += 1
        self.count += count
        self.size_bytes += size_bytes

    def forget(self, size_bytes: int, count: int = 1) -> None:
        """Free the slots of messages that do not wait."""
        self.count -= count
        size_left_bytes = self.size_bytes - size_bytes
        self.size_bytes = size_left_bytes
        budget = self._budget
        if self._over_bytes:  # First those that the budget does not hold.
            relief_bytes = min(size_bytes, self._over_bytes)
            self._over_bytes -= relief_bytes
            budget.give_back(size_bytes - relief_bytes, self.held_bytes)
            return
        budget.used_bytes -= size_bytes
        if not size_left_bytes and size_bytes:
            budget.holders_count -= 1

    def excess(self) -> Reason | None:
        """Return the limit that is exceeded, by an overshoot or after a restart, or None."""
        if self.count > self.messages_max:
            return Reason.QUEUE_MESSAGES
        if self.size_bytes > self.bytes_max:
            return Reason.QUEUE_BYTES
        return Reason.NODE_DISK_QUEUE_BYTES if self._over_bytes else None

    # --- messages ----------------------------------------------------------------------------

    def put(self, pos: int, delivery: Delivery, size_bytes: int, *, connected: bool) -> None:
        """Append a message that has a slot."""
        if self.spills and not (connected and self._takes(size_bytes)):
            self.own_disk().put(pos, 1, size_bytes, delivery.expires_at_s)
        else:
            self._own_memory().append((pos, delivery, size_bytes))

    def _takes(self, size_bytes: int) -> bool:
        """Return True if one more message may be in memory, although the disk has it."""
        here = self._in_memory
        if self.disk.count:
            return False
        if here is None:
            return self._memory_budget.take(size_bytes, 0)
        if len(here.messages) >= HERE_MAX or here.size_bytes + size_bytes > HERE_BYTES_MAX:
            return False
        return self._memory_budget.take(size_bytes, here.size_bytes)

    def _own_memory(self) -> MemoryBacklog:
        if self._in_memory is None:
            self._in_memory = MemoryBacklog()
        return self._in_memory

    def peek(self) -> Waiting | None:
        """Return the oldest message if it is in memory, and leave it in place."""
        return None if self._in_memory is None else self._in_memory.messages[0]

    def take(self) -> Waiting | None:
        """Remove and return the oldest message if it is in memory."""
        here = self._in_memory
        if here is None:
            return None
        waiting = here.messages.popleft()
        self._taken(here, waiting[2])
        return waiting

    def take_expired(self, now_s: float) -> list[Waiting]:
        """Remove and return the expired messages in memory, a page at most.

        O(messages in memory), and only if one of them may have expired.
        """
        here = self._in_memory
        if here is None or here.expires_s > now_s:
            return []
        expired = here.split_expired(now_s, PAGE_MAX)
        for _, _, size_bytes in expired:
            self._taken(here, size_bytes)
        return expired

    def _taken(self, here: MemoryBacklog, size_bytes: int) -> None:
        """Count a message that has left the memory."""
        here.size_bytes -= size_bytes
        if not here.messages:
            self._in_memory = None
        if self.spills:
            self._memory_budget.give_back(size_bytes, here.size_bytes)
        self.forget(size_bytes)

    def put_back(self, pos: int, delivery: Delivery, size_bytes: int) -> None:
        """Queue a message that was taken again, at its old place."""
        self.promise(size_bytes)
        here = self._own_memory()
        if self.spills:
            self._memory_budget.hold(size_bytes, here.size_bytes)
        here.insert((pos, delivery, size_bytes))

    # --- pages -------------------------------------------------------------------------------

    def fetch(self, owner: PageOwner) -> Fetch | None:
        """Return the next page to request, or None if none is needed or one is on its way.

        While the client is not connected, a page has only the excess above the limits.
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
        return self.disk.ask(owner, self.disk.after_pos, count_max, bytes_max, looks=False)

    def look(self, owner: PageOwner, now_s: float) -> Fetch | None:
        """Return the next page to search for expired messages, or None as for `fetch`."""
        if not self.may_have_expired(now_s):
            return None
        after_pos = max(self.disk.look_pos, self.disk.after_pos)
        return self.disk.ask(owner, after_pos, PAGE_MAX, PAGE_BYTES_MAX, looks=True)

    def may_have_expired(self, now_s: float) -> bool:
        """Return True if expired messages on disk may free enough for the limits."""
        disk = self.disk
        return disk.expires_s <= now_s and self.count - self.messages_max < disk.count

    def fetched(self, fetch: Fetch, entries: list[QueueEntry]) -> None:
        """Take a page; an empty one means that no message was left in its range.

        Messages that were sent do not wait, nor do positions that have no message any more.
        """
        disk = self.disk
        if not disk.came(fetch):
            return  # The client left meanwhile, and the page is outdated.
        disk.damage = ""
        for entry in entries:
            delivery = entry.delivery
            if delivery is None or entry.pos in fetch.sent:
                disk.after_pos = entry.pos
                continue
            size_bytes = delivery.size_bytes
            here = self._in_memory
            if self.spills:
                if here is None:  # One message per client is always allowed.
                    self._memory_budget.hold(size_bytes, 0)
                elif not self._memory_budget.take(size_bytes, here.size_bytes):
                    return  # The rest is requested again.
            disk.after_pos = entry.pos
            disk.remove(size_bytes)
            self._own_memory().append((entry.pos, delivery, size_bytes))
        if not entries:
            self.forget(*disk.lose(fetch))

    def looked(self, fetch: Fetch, entries: list[QueueEntry], now_s: float) -> list[Waiting]:
        """Remove and return expired messages of a page; the others stay on disk."""
        expired: list[Waiting] = []
        disk = self.disk
        if not disk.came(fetch):
            return expired
        for entry in entries:
            disk.look_pos = entry.pos
            delivery = entry.delivery
            if delivery is None or entry.pos in fetch.sent:
                continue
            if delivery.expires_at_s > now_s:
                disk.seen_expires_s = min(disk.seen_expires_s, delivery.expires_at_s)
                continue
            size_bytes = delivery.size_bytes
            expired.append((entry.pos, delivery, size_bytes))
            disk.remove(size_bytes)
            self.forget(size_bytes)
        if not entries and fetch.after_pos == disk.after_pos:
            self.forget(*disk.lose(fetch))
        elif not entries or disk.look_pos >= fetch.until_pos:
            disk.looked_at_all(now_s + LOOK_PAUSE_S)
        return expired

    def restore(self, after_pos: int, last_pos: int, count: int, size_bytes: int) -> None:
        """Count messages that wait in the store after a start, whatever the limits are now."""
        if count:
            self._budget.hold(size_bytes, self.held_bytes)
            self.count, self.size_bytes = self.count + count, self.size_bytes + size_bytes
            disk = self.own_disk()
            disk.put(last_pos, count, size_bytes, UNKNOWN_S)
            disk.seen_expires_s, disk.after_pos = NEVER_S, after_pos

    def move(self, messages_max: int, bytes_max: int, budget: FairBudget) -> None:
        """Apply other limits and another budget to the backlog."""
        self._budget.give_back(self.held_bytes, 0)
        self.messages_max, self.bytes_max = messages_max, bytes_max
        self._budget, self._over_bytes = budget, 0
        budget.hold(self.size_bytes, 0)

    def leave(self) -> None:
        """Remove from memory what is also on disk, as the client has left."""
        here = self._in_memory
        if here is None or not self.spills:
            return
        # Messages need not come in the order of their positions.
        positions = [pos for pos, _, _ in here.messages]
        self.own_disk().put_first(positions, here.size_bytes, here.expires_s)
        self._memory_budget.give_back(here.size_bytes, 0)
        self._in_memory = None

    def clear(self) -> None:
        """Remove all messages, as the session has ended."""
        if self.spills:
            self._memory_budget.give_back(self.charged_bytes, 0)
        self._budget.give_back(self.held_bytes, 0)
        self._in_memory = None
        if self.disk is not EMPTY_DISK:
            self.disk.clear()
        self.count = self.size_bytes = self._over_bytes = 0
