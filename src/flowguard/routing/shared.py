"""One shared subscription: each message goes to one of its members.

Theory of operation. `pick` asks the caller for the rank of a member, because only the caller knows
sessions. Rank 0 is best (online, with capacity), a higher rank is worse (online but full, offline
with a queue), a negative rank excludes the member. Members are in one of two rings. The *hopeful*
ones had rank 0 at the last check, or were never checked; `pick` takes them in turn. A member with
another rank at its turn is *parked*. Every pick checks a few parked ones, so that they return
without a notification. Each move out of the hopeful ring follows a move into it, so a pick costs
O(1) amortised, also with thousands of members offline.

If no hopeful member is left, messages go to parked ones: the best of the first `PROBES_MAX`, or the
first beyond them that can take it at all. A larger group can have an online member beyond those:
`wake` it when it connects.

If a group has a queue of its own (`flowguard.node.shared.shared_queue`), `first`, `turn` and `park`
do the same without checks of parked members: these are woken when they have capacity.

The session enforces two rules of the standard: a QoS 2 message stays with the member that has it
([MQTT-4.8.2-4], [MQTT-4.8.2-5]), and a message that a member rejects is not tried again
([MQTT-4.8.2-6]).
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar, final

S = TypeVar("S")
V = TypeVar("V")

PROBES_MAX: Final = 64
"""Parked members checked if no hopeful one is left; a pick takes some ten microseconds at most."""

PROBES_BESIDE: Final = 2
"""Parked members checked by every other pick; with two, members return faster than they leave one
by one."""


@final
class SharedGroup(Generic[S, V]):
    """The members of `$share/{name}/{filter}`, each with the options of its own subscription."""

    __slots__ = ("name", "filter", "share", "_hopeful", "_parked")

    def __init__(self, name: str, filter: str) -> None:
        self.name = name
        self.filter = filter
        self.share = f"$share/{name}/{filter}"
        self._hopeful: OrderedDict[S, V] = OrderedDict()
        self._parked: OrderedDict[S, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hopeful) + len(self._parked)

    def add(self, member: S, options: V) -> bool:
        """Return True for a new member, False for an old one, which keeps its turn. O(1)."""
        if member in self._parked:
            self._parked[member] = options
            return False
        is_new = member not in self._hopeful
        self._hopeful[member] = options
        return is_new

    def remove(self, member: S) -> bool:
        """Remove the member; return False if it was none. O(1)."""
        for ring in (self._hopeful, self._parked):
            if member in ring:
                del ring[member]
                return True
        return False

    def members(self) -> list[tuple[S, V]]:
        return [*self._hopeful.items(), *self._parked.items()]

    def wake(self, member: S) -> None:
        """Unpark a member that has connected, or that has a window with capacity. O(1)."""
        if member in self._parked:
            self._hopeful[member] = self._parked.pop(member)

    def pick(self, ready: Callable[[S], int]) -> tuple[S, V] | None:
        """Return the next member of the best rank, or None if no member can take the message.

        `ready` returns the rank: 0 is best, negative excludes. It must not change the group. The
        results are deterministic.
        """
        self._probe_beside(ready)
        chosen = self.first(ready)
        if chosen is None:
            return self._pick_parked(ready)
        self.turn(chosen[0])
        return chosen

    def first(self, ready: Callable[[S], int]) -> tuple[S, V] | None:
        """Return the next hopeful member, which remains first until `turn`, or None.

        Parked members are not checked: the caller must wake a member that has capacity again.
        """
        while self._hopeful:
            member = next(iter(self._hopeful))
            if ready(member) == 0:
                return member, self._hopeful[member]
            self.park(member)
        return None

    def turn(self, member: S) -> None:
        """Move a hopeful member to the end after its turn. O(1)."""
        self._hopeful.move_to_end(member)

    def park(self, member: S) -> None:
        """Park a hopeful member that cannot take the message. O(1)."""
        self._parked[member] = self._hopeful.pop(member)

    def _probe_beside(self, ready: Callable[[S], int]) -> None:
        if not self._hopeful:
            return
        for _ in range(min(PROBES_BESIDE, len(self._parked))):
            member = next(iter(self._parked))
            if ready(member) == 0:
                self._hopeful[member] = self._parked.pop(member)
            else:
                self._parked.move_to_end(member)

    def _pick_parked(self, ready: Callable[[S], int]) -> tuple[S, V] | None:
        """Return the best of the first few; it and the worse ones before it go to the end."""
        best_rank = -1
        best_position = -1
        probed: list[S] = []
        for member in self._parked:
            if len(probed) >= PROBES_MAX and best_rank >= 0:
                break
            rank = ready(member)
            if rank >= 0 and (best_rank < 0 or rank < best_rank):
                best_rank = rank
                best_position = len(probed)
            probed.append(member)
            if rank == 0:
                break
        turned = probed if best_rank < 0 else probed[: best_position + 1]
        for member in turned:
            self._parked.move_to_end(member)
        if best_rank < 0:
            return None
        best = probed[best_position]
        options = self._parked[best]
        if best_rank == 0:
            self.wake(best)
        return best, options
