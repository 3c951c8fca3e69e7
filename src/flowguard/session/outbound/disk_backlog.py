"""DiskBacklog: the messages of a backlog that are only on disk, and the requested page.

Expired messages are searched page by page (`look_pos`), from the time when the earliest of them can
have expired. They leave gaps, which a page shows only when they are durable; until then no page is
requested (`gaps`).
"""

from typing import Final, final

from flowguard.records import NEVER_S
from flowguard.session.outbound.fetch import Fetch, PageOwner


@final
class DiskBacklog:
    """Counts and positions of these messages."""

    __slots__ = (
        "_late_bytes",
        "_late_count",
        "after_pos",
        "count",
        "damage",
        "expires_s",
        "fetching",
        "gaps",
        "last_pos",
        "look_pos",
        "seen_expires_s",
        "size_bytes",
    )

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self.after_pos = 0
        """The position before the first message."""
        self.last_pos = 0
        """The position of the last message."""
        self.expires_s = NEVER_S
        """No message has expired before this time."""
        self.look_pos = 0
        """Messages up to this position have been checked."""
        self.seen_expires_s = NEVER_S
        """The earliest expiry of messages that were checked, or put on disk since."""
        self.fetching: Fetch | None = None
        """The page that is on its way."""
        self._late_count = self._late_bytes = 0
        """Messages put on disk since the request for that page, and their bytes."""
        self.gaps = 0
        """Number of changes out of order that are not durable yet."""
        self.damage = ""
        """Error of the last read, or ""."""

    def put(self, pos: int, count: int, size_bytes: int, expires_at_s: float) -> None:
        """Add messages, the last of them at `pos`."""
        is_first = not self.count
        self.after_pos = pos - 1 if is_first else min(self.after_pos, pos - 1)
        self.last_pos = pos if is_first else max(self.last_pos, pos)
        self._late_count += count
        self._late_bytes += size_bytes
        self._add(count, size_bytes, expires_at_s)

    def put_first(self, positions: list[int], size_bytes: int, expires_at_s: float) -> None:
        """Add messages before all others; a requested page of the others is outdated."""
        self.after_pos = min(positions) - 1
        self.last_pos = max(self.last_pos, *positions)
        self._add(len(positions), size_bytes, expires_at_s)
        if self.fetching is not None and not self.fetching.looks:
            self.fetching = None

    def _add(self, count: int, size_bytes: int, expires_at_s: float) -> None:
        self.count += count
        self.size_bytes += size_bytes
        self.expires_s = min(self.expires_s, expires_at_s)
        self.seen_expires_s = min(self.seen_expires_s, expires_at_s)

    def ask(
        self, owner: PageOwner, after_pos: int, count_max: int, bytes_max: int, *, looks: bool
    ) -> Fetch | None:
        """Return the page to request, or None if none is needed or one is on its way."""
        if self.fetching is not None or self.gaps or not self.count:
            return None
        if self.damage and not owner.connected:
            return None  # No client needs another attempt now.
        self._late_count = self._late_bytes = 0
        self.fetching = Fetch(owner, after_pos, self.last_pos, count_max, bytes_max, looks=looks)
        return self.fetching

    def came(self, fetch: Fetch) -> bool:
        """Return True if a page is the one that was requested last; then none is on its way."""
        if fetch is not self.fetching:
            return False
        self.fetching = None
        return True

    def unreadable(self, fetch: Fetch) -> None:
        """Note that a page cannot be read: its messages wait, and so do those after it."""
        self.came(fetch)
        self.damage = fetch.damage

    def remove(self, size_bytes: int) -> None:
        """Remove one message."""
        self.count -= 1
        self.size_bytes -= size_bytes
        if not self.count:
            self._forget_times()

    def lose(self, fetch: Fetch) -> tuple[int, int]:
        """Remove messages that the store has lost; return their bytes and their number."""
        lost = self.size_bytes - self._late_bytes, self.count - self._late_count
        self.count, self.size_bytes = self._late_count, self._late_bytes
        self.after_pos = fetch.until_pos
        if not self.count:
            self._forget_times()
        return lost

    def looked_at_all(self, next_s: float) -> None:
        """Begin the next search from the start, not before `next_s`."""
        self.expires_s = max(self.seen_expires_s, next_s)
        self.seen_expires_s = NEVER_S
        self.look_pos = 0

    def clear(self) -> None:
        """Forget all messages: the session has ended."""
        self.fetching = None
        self.count = self.size_bytes = 0
        self._forget_times()

    def _forget_times(self) -> None:
        self.expires_s = self.seen_expires_s = NEVER_S
        self.look_pos = 0


EMPTY_DISK: Final = DiskBacklog()
"""Shared by all backlogs that never had a message on disk; it is never changed."""
