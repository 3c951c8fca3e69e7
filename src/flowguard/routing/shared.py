"""One shared subscription: each message goes to one of its members.

Theory of operation. `pick` asks the caller how well a member could take the message now, because
only the caller knows sessions: 0 is best (online, with room), higher is worse (online but full,
offline with a queue), negative is not at all. Members stand in one of two rings. The *hopeful*
were fit when last asked, or were never asked; picking takes them in turn. One that is not fit when
its turn comes is *parked*, and every pick looks at a few parked ones, so that they come back
without anybody telling us. Each move out of the hopeful ring was paid for by a move into it: a
pick costs O(1) amortised, also with thousands of members offline.

Only while no hopeful member is left do messages go to parked ones, the best of the first
`PROBES_MAX`, or the first beyond them that can take it at all. A larger group can have an online
member beyond those: `wake` it when it connects.

Where a group has a queue of its own (`flowguard.node.shared.shared_queue`), `first`, `turn` and
`park` are the same without parked members: they are woken when they have room.

What the standard decides elsewhere: a QoS 2 message stays with the member that has it
([MQTT-4.8.2-4], [MQTT-4.8.2-5]), and one refused by a member is not tried again
([MQTT-4.8.2-6]); both are the session's to keep.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar, final

S = TypeVar("S")
V = TypeVar("V")

PROBES_MAX: Final = 64
"""Parked members asked when no hopeful one is left: a pick stays below some ten microseconds."""

PROBES_BESIDE: Final = 2
"""Parked members asked by every other pick; two, so that members return faster than they leave one
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
        """True: a new member; False: new options for an old one, which keeps its turn. O(1)."""
        if member in self._parked:
            self._parked[member] = options
            return False
        is_new = member not in self._hopeful
        self._hopeful[member] = options
        return is_new

    def remove(self, member: S) -> bool:
        """Remove the member; False: it was none. O(1)."""
        for ring in (self._hopeful, self._parked):
            if member in ring:
                del ring[member]
                return True
        return False

    def members(self) -> list[tuple[S, V]]:
        return [*self._hopeful.items(), *self._parked.items()]

    def wake(self, member: S) -> None:
        """The member may be fit again (it has connected, its window has opened). O(1)."""
        if member in self._parked:
            self._hopeful[member] = self._parked.pop(member)

    def pick(self, ready: Callable[[S], int]) -> tuple[S, V] | None:
        """The member whose turn it is among the fittest; None: nobody can take the message.

        `ready`: 0 best, higher worse, negative not at all; it must not change the group. The same
        calls always give the same answers: no chance is involved.
        """
        self._probe_beside(ready)
        chosen = self.first(ready)
        if chosen is None:
            return self._pick_parked(ready)
        self.turn(chosen[0])
        return chosen

    def first(self, ready: Callable[[S], int]) -> tuple[S, V] | None:
        """The hopeful member whose turn it is, and remains until `turn`; None: nobody is fit.

        For callers that wake a member when it becomes fit: parked ones are not asked.
        """
        while self._hopeful:
            member = next(iter(self._hopeful))
            if ready(member) == 0:
                return member, self._hopeful[member]
            self.park(member)
        return None

    def turn(self, member: S) -> None:
        """A hopeful member has had its turn. O(1)."""
        self._hopeful.move_to_end(member)

    def park(self, member: S) -> None:
        """A hopeful member was not fit after all. O(1)."""
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
        """The fittest of the first few; it and the worse ones before it go to the end."""
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
