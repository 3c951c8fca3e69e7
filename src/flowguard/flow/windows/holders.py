"""Holders: the holders of a budget, and the order in which they give way when it is spent.

The cost of keeping a holder is its claim times the time for which it has stood still: a holder that
keeps moving costs little, even a large one, and so does a small one, even after a long time.
Holders are in classes by their claims, each class twice as large as the one before. In each class
they are in the order of their last move, so the costliest holder is one of the heads.
"""

from collections import OrderedDict
from math import inf
from typing import Final, Generic, TypeVar, final

from flowguard.flow.budget import Budget

CLASSES: Final = 40
"""The largest claim is below 2 ** 40 bytes."""
TIGHT_BYTES: Final = 1024 * 1024
"""Bytes that a turn of the reactor may bring before the next check, and as many once more."""
INSTANT_S: Final = 0.05
"""Time that is added to each holder's, some turns of a busy loop, so that of several moving holders
the largest gives way. Otherwise a crowd in one turn would end all that came in the turn before."""

K = TypeVar("K")


@final
class Holders(Generic[K]):
    """A budget that knows its holders; every call costs O(1)."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        """May be exceeded by the last bytes, until a holder has given way."""
        self._held_bytes: dict[K, int] = {}
        self._claims: dict[K, int] = {}
        """Classes of the holders that may have to give way."""
        self._classes: list[OrderedDict[K, float]] = [OrderedDict() for _ in range(CLASSES)]
        """Times of the last moves, seconds."""

    def __len__(self) -> int:
        return len(self._held_bytes)

    @property
    def is_tight(self) -> bool:
        """True if the budget is so tight that incoming bytes must be counted before."""
        return self.budget.limit_bytes - 2 * self.budget.used_bytes < TIGHT_BYTES

    @property
    def is_over(self) -> bool:
        """True if a holder has to give way."""
        return self.budget.used_bytes > self.budget.limit_bytes

    def hold(self, key: K, size_bytes: int, now_s: float, *, claim_bytes: int | None) -> None:
        """`key` moves, and holds `size_bytes` now; 0 if nothing any more.

        It claims `claim_bytes`, for which it may have to give way, or None if it never does. Time
        must not run backwards.
        """
        self.budget.used_bytes += size_bytes - self._held_bytes.pop(key, 0)
        before = self._claims.pop(key, None)
        if before is not None:
            del self._classes[before][key]
        if not size_bytes:
            return
        self._held_bytes[key] = size_bytes
        if claim_bytes is not None:
            claim = max(size_bytes, claim_bytes).bit_length()
            self._claims[key] = claim
            self._classes[claim][key] = now_s

    def costliest(self, now_s: float, since_s: float = inf) -> K | None:
        """Return the holder to give way first, or None if there is none that last moved by
        `since_s`."""
        found: K | None = None
        highest = 0.0
        for claim, holders in enumerate(self._classes):
            if holders:
                key = next(iter(holders))
                moved_s = holders[key]
                cost = (1 << claim) * (INSTANT_S + now_s - moved_s)
                if cost > highest and moved_s <= since_s:
                    found, highest = key, cost
        return found
