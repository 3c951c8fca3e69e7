"""Presence: whether this broker has run all the time, as far as its store's lease is concerned.

A process that was stopped for long enough may have been succeeded by another broker, and finds in
its sockets what clients have sent meanwhile. What needs a commit is refused by the store. But a
PUBLISH for which nobody has a subscription here, or only clean sessions, needs none, and a durable
session that the other broker has by now would never get it. So after such a pause nothing leaves
before the lease was renewed.
"""

from collections.abc import Callable
from typing import Final, final

LONGEST_SHARE: Final = 0.5
"""Of a lease: it was renewed a quarter of it before a pause, and a commit later at most."""


@final
class Presence:
    """Looked at again and again: ten times a second by the tick, and before anything leaves."""

    __slots__ = ("_clock", "_longest_s", "_seen_s", "_settled", "pauses")

    def __init__(self, lease_s: float | None, clock: Callable[[], float]) -> None:
        """`lease_s`: None: nobody else can have the store."""
        self._clock = clock
        self._longest_s = None if lease_s is None else LONGEST_SHARE * lease_s
        self._seen_s = clock()
        self.pauses = 0
        """How many there were that were long enough."""
        self._settled = 0
        """After so many of them the lease was asked for."""

    @property
    def in_doubt(self) -> bool:
        """There was a pause, and nobody has asked since whether the lease is ours."""
        return self.pauses > self._settled

    def settle(self, pauses: int) -> None:
        """After so many pauses the store was asked."""
        self._settled = pauses

    def look(self) -> bool:
        """Whether there is doubt, now."""
        if self._longest_s is None:
            return False
        now_s = self._clock()
        if now_s - self._seen_s > self._longest_s:
            self.pauses += 1
        self._seen_s = now_s
        return self.in_doubt
