"""Holders: who holds how much of a budget, and who has to give way when it is spent.

What it costs to keep somebody is what he claims, times how long he has stood still: who keeps
moving costs little, however much it is, and who holds little costs little, however long. Holders
stand in classes by their claims, each twice as large as the one before, and in each class who has
moved last stands last: the costliest is found by a look at the heads.
"""

from collections import OrderedDict
from math import inf
from typing import Final, Generic, TypeVar, final

from flowguard.flow.budget import Budget

CLASSES: Final = 40
"""The largest claim is below 2 ** 40 bytes."""
TIGHT_BYTES: Final = 1024 * 1024
"""What a turn of the reactor may bring before somebody looks again, and as much once more."""
INSTANT_S: Final = 0.05
"""Who moves now has stood still for so long, some turns of a busy loop: of those who move, the
largest gives way. Else what a crowd brings in a turn would end all that came in the turn before."""

K = TypeVar("K")


@final
class Holders(Generic[K]):
    """A budget with the names of those who hold it; every call costs O(1)."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        """May be exceeded by what came last, until somebody has given way."""
        self._held_bytes: dict[K, int] = {}
        self._claims: dict[K, int] = {}
        """The classes of those who may have to give way."""
        self._classes: list[OrderedDict[K, float]] = [OrderedDict() for _ in range(CLASSES)]
        """When they moved last, seconds."""

    def __len__(self) -> int:
        return len(self._held_bytes)

    @property
    def is_tight(self) -> bool:
        """Whether the budget is so tight that what others bring must be counted before."""
        return self.budget.limit_bytes - 2 * self.budget.used_bytes < TIGHT_BYTES

    @property
    def is_over(self) -> bool:
        """Whether somebody has to give way."""
        return self.budget.used_bytes > self.budget.limit_bytes

    def hold(self, key: K, size_bytes: int, now_s: float, *, claim_bytes: int | None) -> None:
        """`key` moves, and holds so much now, 0: nothing any more. It claims so much, and perhaps
        gives way for it; None: it does not. Time must not run backwards."""
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
        """The holder to give way first; None: nobody, or all have moved after `since_s`."""
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
