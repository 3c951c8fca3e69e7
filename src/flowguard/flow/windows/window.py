"""Admission windows: the work in process of one client, and of all clients together.

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
    """The present limit of every client of this node, and the work in process of all."""

    def __init__(
        self, limit_max: int = WINDOW_MAX, units_max: int = UNBOUNDED, bytes_max: int = UNBOUNDED
    ) -> None:
        assert limit_max >= WINDOW_MIN
        self.limit_max = limit_max
        self.units_max = units_max
        """Cost units of all clients in process, from which on they take turns."""
        self.bytes_max = bytes_max
        """Bytes of all clients in process, from which on they take turns."""
        self.limit = limit_max
        """Cost units of one client; `limit_max` when the node is calm."""
        self.closed = False
        """True while the node admits nothing at all: its journal is full, or it drains."""
        self.shared = False
        """True while clients take turns (`flow/pool`): only clients with a permit have capacity."""
        self.permits = 0
        """Permits given and not used."""
        self.credits: int | None = None
        """Cost units per client and round, or None if the policy does not limit a rate."""
        self.credits_round = 0
        self.in_process = 0
        """Cost units of all clients."""
        self.in_process_bytes = 0
        self.active = 0
        """Clients that have packets in process, or waiting."""
        self.busy: dict[AdmissionWindow, None] = {}
        """Windows of clients with at least one packet in process."""
        self.used_max = 0
        """Most units that one client had in process since the last tick."""
        self.work = 0.0
        """Work for clients' packets since the last tick: packets and deliveries, or seconds."""
        self.movable_work = 0.0
        """The part of `work` that smaller windows would have put off."""
        self.divides = False
        """True if windows may be smaller than a packet, and so put off a client's only one."""

    def resize(self, limit: int) -> None:
        """Set the limit; at least one packet."""
        self.limit = max(WINDOW_MIN, limit)

    def worked(self, amount: float, *, movable: bool) -> None:
        """Count work. `movable` is True if a smaller window, on any node, would put it off."""
        self.work += amount
        if movable:
            self.movable_work += amount

    def over(self, limit: float) -> int:
        """Return the number of clients that have more than `limit` in process."""
        return sum(window.in_process > limit for window in self.busy)


@final
class Spent:
    __slots__ = ("round", "units")

    def __init__(self) -> None:
        self.round = 0
        """The round in which it was counted last (`NodeWindow.credits_round`)."""
        self.units = 0
        """Cost units in that round, including debts from before."""


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
        """Limit of this client at any state of the node, cost units."""
        self.in_process = 0
        """Cost units."""
        self._waits = False
        """True if it has packets that are not admitted."""
        self._permits = 0
        """Number of packets it may admit while clients take turns."""
        self.needs = 1
        """Cost of the next packet, as far as it is known."""
        self.weight = 1
        """Cost of the last packet."""
        self._charge = 0
        """Cost of packets admitted by permits that the pool has not charged yet."""
        self._spent: Spent | None = None
        """Spent credits, or None if no policy limits a rate."""

    @property
    def limit(self) -> int:
        """Cost units that it may have in process now: the node's limit, or its own."""
        limit, limit_max = self._node.limit, self.limit_max
        return limit if limit < limit_max else limit_max

    def room(self) -> int:
        """Return how many packets may still be admitted now; never negative."""
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
        """Return why no packet may be admitted, or None if one may."""
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
        """True if its next packet waits for one of its own, even if the node has capacity."""
        return self.limit - self.in_process < self.needs

    def fits(self, cost: int, limit_max: int = UNBOUNDED) -> bool:
        """Return True if a packet of this cost may join those in process; alone it always may.

        `limit_max` is a limit that holds for this packet besides that of the window. If False, the
        packet is the next one, and no packet is admitted until it fits.
        """
        limit = self.limit
        above = limit - limit_max if limit > limit_max else 0
        if not self.in_process or self.in_process + cost <= limit - above:
            return True
        self.needs = cost + above
        return False

    def room_together(self, packets: int, size_bytes: int) -> int:
        """Return how many of `packets` may join at once, each of cost 1, with `size_bytes` in
        total.

        The caller has checked that they fit this window. At the node's bound packets join one by
        one.
        """
        node = self._node
        if node.in_process_bytes + size_bytes > node.bytes_max:
            return 0
        return packets if node.shared else min(packets, node.units_max - node.in_process)

    def admit(self, cost: int = 1, size_bytes: int = 0, packets: int = 1) -> None:
        """Count packets of this total cost. The caller has just asked `room()`, without a pause in
        between, and `fits` for a packet that costs more than one."""
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
        """It is this client's turn: permit `packets` more."""
        self._permits += packets
        self._node.permits += packets

    def rest(self, waits: bool) -> None:
        """The turn ends, and permits with it, used or not. `waits` is True if it has packets
        left."""
        node = self._node
        if self._permits:
            node.permits -= self._permits
            self._permits = 0
        if waits is not self._waits:
            self._waits = waits
            if not self.in_process:
                node.active += 1 if waits else -1

    def take_charge(self) -> int:
        """Return the cost served since the last charge, and reset it."""
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
        """Take a packet in process out of the node's sums; with negative values put it back."""
        self._node.in_process -= cost
        self._node.in_process_bytes -= size_bytes

    def spend(self, units: int) -> None:
        """Count handled packets, if the policy limits a rate.

        Each counts 1. `admit` counts the cost of a packet above that.
        """
        if self._node.credits is not None:
            self._spent_lately(self._node.credits).units += units

    def _spent_lately(self, credits: int) -> Spent:
        """Return the units spent in this round; units beyond earlier credits are owed."""
        spent = self._spent
        if spent is None:
            spent = self._spent = Spent()
        rounds = self._node.credits_round - spent.round
        if rounds:
            spent.round = self._node.credits_round
            spent.units = max(0, spent.units - rounds * credits)
        return spent
