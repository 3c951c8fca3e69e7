"""Presence: detects pauses in which this broker may have lost its store's lease.

After a long pause, another broker may have taken over, while this one still finds data of clients
in its sockets. The store rejects what needs a commit. But a PUBLISH with no subscription in this
broker, or only those of clean sessions, needs no commit, and a durable session of the other broker
would never get it. So after such a pause nothing is sent before the lease is renewed.
"""

from collections.abc import Callable
from typing import Final, final

LONGEST_SHARE: Final = 0.5
"""Longest harmless pause, as a share of the lease. The last renewal was a quarter of the lease and
one commit before the pause at most."""


@final
class Presence:
    """Looks for pauses ten times a second, and before anything is sent."""

    __slots__ = ("_clock", "_longest_s", "_seen_s", "_settled", "pauses")

    def __init__(self, lease_s: float | None, clock: Callable[[], float]) -> None:
        """`lease_s`: duration of the lease, or None if no other broker can have the store."""
        self._clock = clock
        self._longest_s = None if lease_s is None else LONGEST_SHARE * lease_s
        self._seen_s = clock()
        self.pauses = 0
        """Number of pauses that were long enough."""
        self._settled = 0
        """Number of pauses at the last check of the lease."""

    @property
    def in_doubt(self) -> bool:
        """True if the lease was not checked since the last pause."""
        return self.pauses > self._settled

    def settle(self, pauses: int) -> None:
        """Note that the lease was checked after this number of pauses."""
        self._settled = pauses

    def look(self) -> bool:
        """Look for a pause; return True if it is in doubt now."""
        if self._longest_s is None:
            return False
        now_s = self._clock()
        if now_s - self._seen_s > self._longest_s:
            self.pauses += 1
        self._seen_s = now_s
        return self.in_doubt
