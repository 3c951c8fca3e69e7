"""Admission windows: how much of one client's work is in process, and of all clients together.

A packet is in process from its decoding until the durable work for it is done. The limit is the
node's (`NodeWindow`, set by the policy every tick), or a smaller one of the client's own; the count
is the client's (`AdmissionWindow`). Both count cost units (`flow/cost`; docs/explain/overload.md,
"What counts", and invariants 1 and 2 of "What must hold").
"""

from typing import Final, final

from flowguard.flow.verdict import Pause

WINDOW_MAX: Final = 100
WINDOW_MIN: Final = 1
UNBOUNDED: Final = 1 << 62


@final
class NodeWindow:
    """The limit that every client of this node has right now, and what all have in process."""

    def __init__(
        self, limit_max: int = WINDOW_MAX, units_max: int = UNBOUNDED, bytes_max: int = UNBOUNDED
    ) -> None:
        assert limit_max >= WINDOW_MIN
        self.limit_max = limit_max
        self.units_max = units_max
        """Cost units of all clients in process, from which on they take turns."""
        self.bytes_max = bytes_max
        """The same, bytes."""
        self.limit = limit_max
        """Cost units of one client; `limit_max` when the node is calm."""
        self.closed = False
        """True while the node admits nothing at all: its journal is full, or it drains."""
        self.shared = False
        """True while clients take turns (`flow/pool`): room only for who has a permit."""
        self.permits = 0
        """Permits given and not used."""
        self.credits: int | None = None
        """Cost units per client and round, where a policy limits a rate; None: it does not."""
        self.credits_round = 0
        self.in_process = 0
        """Cost units of all clients."""
        self.in_process_bytes = 0
        self.active = 0
        """Clients that have packets in process, or waiting."""
        self.busy: dict[AdmissionWindow, None] = {}
        """Of clients with at least one packet in process."""
        self.used_max = 0
        """Most units that one client had in process since the last tick."""
        self.work = 0.0
        """Work for clients' packets since the last tick: packets and deliveries, or seconds."""
        self.movable_work = 0.0
        """The part of `work` that smaller windows would have put off."""
        self.divides = False
        """Whether windows may be smaller than a packet, and so put off a client's only one."""

    def resize(self, limit: int) -> None:
        """Move the limit; no less than one packet."""
        self.limit = max(WINDOW_MIN, limit)

    def worked(self, amount: float, *, movable: bool) -> None:
        """Count work; `movable`: a smaller window, here or on another node, would put it off."""
        self.work += amount
        if movable:
            self.movable_work += amount

    def over(self, limit: float) -> int:
        """Clients that have more than `limit` in process."""
        return sum(window.in_process > limit for window in self.busy)


@final
class Spent:
    __slots__ = ("round", "units")

    def __init__(self) -> None:
        self.round = 0
        """In which it was counted last (`NodeWindow.credits_round`)."""
        self.units = 0
        """Cost units in that one, with what is owed from before."""


@final
class AdmissionWindow:
    """The packets of one client in process, against the node's limit."""

    __slots__ = (
        "_charge",
        "_node",
        "_permits",
        "_spent",
        "_waits",
        "in_process",
        "limit_max",
        "needs",
        "weight",
    )

    def __init__(self, node: NodeWindow, limit_max: int = UNBOUNDED) -> None:
        self._node = node
        self.limit_max = limit_max
        """What this client may have in process however calm the node is, cost units."""
        self.in_process = 0
        """Cost units."""
        self._waits = False
        """Whether it has packets that are not admitted."""
        self._permits = 0
        """Packets it may admit while clients take turns."""
        self.needs = 1
        """Cost of the next packet, as far as it is known."""
        self.weight = 1
        """Cost of the last one."""
        self._charge = 0
        """Cost of what it admitted by permits, not yet told to the pool."""
        self._spent: Spent | None = None
        """Of its credits; None: no policy limits a rate."""

    @property
    def limit(self) -> int:
        """Cost units that it may have in process now: the node's limit, or its own."""
        limit, limit_max = self._node.limit, self.limit_max
        return limit if limit < limit_max else limit_max

    def room(self) -> int:
        """How many packets may still be admitted now; never negative."""
        node = self._node
        room = self.limit - self.in_process
        if room < self.needs or node.closed:
            return 0
        if node.shared:
            if node.in_process_bytes >= node.bytes_max:
                return 0  # A permit is for a packet: those of others may have filled the budget.
            if room > self._permits:
                room = self._permits
        if node.credits is not None:
            room = min(room, max(0, node.credits - self._spent_lately(node.credits).units))
        return room

    def worked(self, amount: float, packets: int = 1) -> None:
        """Count work for `packets` packets of this client, or for their deliveries.

        A smaller window would put it off if the client has more than one packet, in process,
        waiting, or handled at once.
        """
        node = self._node
        movable = packets > 1 or self._waits or self.in_process > self.weight or node.divides
        node.worked(amount, movable=movable)

    def pause(self) -> Pause | None:
        """Why there is no `room`; None: there is some."""
        if self.room():
            return None
        node = self._node
        if node.closed:
            return Pause.CLOSED
        if self.is_full:
            return Pause.WINDOW
        if node.shared and (node.in_process_bytes >= node.bytes_max or not self._permits):
            return Pause.TURN
        return Pause.CREDITS

    @property
    def is_full(self) -> bool:
        """Whether its next packet waits for one of its own, whatever room the node has."""
        return self.limit - self.in_process < self.needs

    def fits(self, cost: int) -> bool:
        """Whether a packet that weighs so much may join those in process; alone it always may.

        False: it is the next one, and there is no `room` until it fits.
        """
        if not self.in_process or self.in_process + cost <= self.limit:
            return True
        self.needs = cost
        return False

    def room_together(self, packets: int, size_bytes: int) -> int:
        """How many of these may join at once: of packets for which there is `room`, that weigh one
        each and have so many bytes together. From the node's bound on they join one by one."""
        node = self._node
        if node.in_process_bytes + size_bytes > node.bytes_max:
            return 0
        return packets if node.shared else min(packets, node.units_max - node.in_process)

    def admit(self, cost: int = 1, size_bytes: int = 0, packets: int = 1) -> None:
        """Count packets that cost so much together; in the same synchronous stretch its caller
        asked `room()`, and `fits` where one weighs more than one."""
        node = self._node
        assert self.in_process + cost <= self.limit or not self.in_process
        self.needs = 1
        self.weight = cost // packets
        if not self.in_process:
            node.busy[self] = None
            if not self._waits:
                node.active += 1
        self.in_process += cost
        node.in_process += cost
        node.in_process_bytes += size_bytes
        if self.in_process > node.used_max:
            node.used_max = self.in_process
        if cost > packets and node.credits is not None:
            self.spend(cost - packets)
        if node.shared:
            self._charge += cost
            used = packets if packets < self._permits else self._permits
            self._permits -= used
            node.permits -= used
        elif node.in_process >= node.units_max or node.in_process_bytes >= node.bytes_max:
            node.shared = True

    def permit(self, packets: int) -> None:
        """Its turn: so many packets more."""
        self._permits += packets
        self._node.permits += packets

    def rest(self, waits: bool) -> None:
        """Its turn is over, and permits with it, used or not; `waits`: it has packets left."""
        node = self._node
        if self._permits:
            node.permits -= self._permits
            self._permits = 0
        if waits is not self._waits:
            self._waits = waits
            if not self.in_process:
                node.active += 1 if waits else -1

    def take_charge(self) -> int:
        """Work served since it was last charged, cost units."""
        charge, self._charge = self._charge, 0
        return charge

    def settle(self, cost: int = 1, size_bytes: int = 0) -> None:
        """One admitted packet is done, or abandoned with its connection."""
        assert self.in_process >= cost
        self.in_process -= cost
        node = self._node
        node.in_process -= cost
        node.in_process_bytes -= size_bytes
        if not self.in_process:
            self.needs = 1
            del node.busy[self]
            if not self._waits:
                node.active -= 1

    def set_aside(self, cost: int, size_bytes: int) -> None:
        """One in process takes nothing of what all clients may have together; negative: again."""
        self._node.in_process -= cost
        self._node.in_process_bytes -= size_bytes

    def spend(self, units: int) -> None:
        """Packets were handled: what the rate of a policy that has one is counted by.

        One for each; what a packet weighs above that `admit` counts by itself.
        """
        if self._node.credits is not None:
            self._spent_lately(self._node.credits).units += units

    def _spent_lately(self, credits: int) -> Spent:
        """In this round; what was spent beyond the credits of those before is owed."""
        spent = self._spent
        if spent is None:
            spent = self._spent = Spent()
        rounds = self._node.credits_round - spent.round
        if rounds:
            spent.round = self._node.credits_round
            spent.units = max(0, spent.units - rounds * credits)
        return spent
