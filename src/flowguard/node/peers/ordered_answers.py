"""OrderedAnswers: publishers that wait for the commits of peers, and for capacity of links.

PUBACKs of one client leave in the order of its PUBLISHes [MQTT-4.6.0-2]. So a QoS 1 message behind
one that waits for a peer waits as well. PUBRECs wait for no peer, so the journal keeps their order.
"""

from collections import deque
from typing import Protocol, final

from flowguard.node.journal import Journal
from flowguard.session.inbound.packets import Inbound


class Pending(Protocol):
    """A PUBLISH that is answered after some commits."""

    commits_left: int
    is_in_order: bool

    def answer(self, inbound: Inbound, now_s: float) -> None:
        """Acknowledge it to its publisher."""

    def part_done(self, now_s: float) -> None:
        """One of the commits is done."""


@final
class OrderedAnswers:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.orders: dict[Inbound, deque[Pending]] = {}
        """Messages of each client whose first one waits for a peer, in order."""
        self.blocked: dict[Inbound, None] = {}
        """Clients whose next packet waits for capacity of a link, or for the owner of the store."""

    def begin(self, inbound: Inbound, pending: Pending, *, waits: bool) -> None:
        """A message waits for the commits of peers if `waits`, or is behind one that does."""
        order = self.orders.get(inbound)
        if order is None:
            if not waits:
                return
            order = self.orders[inbound] = deque()
        order.append(pending)
        pending.is_in_order = True
        self._journal.elsewhere_count += 1

    def release(self, inbound: Inbound, now_s: float) -> None:
        """Answer the messages of a client up to the first that waits for a commit."""
        order = self.orders[inbound]
        while order and not order[0].commits_left:
            self._journal.elsewhere_count -= 1
            order.popleft().answer(inbound, now_s)
        if not order:
            del self.orders[inbound]

    def block(self, inbound: Inbound) -> None:
        """Pause a client until `go_on`."""
        inbound.blocked = True
        self.blocked[inbound] = None

    def go_on(self) -> None:
        """Let each client try again, in order."""
        blocked, self.blocked = self.blocked, {}
        for inbound in blocked:
            if not inbound.ended:
                inbound.go_on()

    def tick(self) -> None:
        """Forget clients that have disconnected."""
        for inbound in [each for each in self.blocked if each.ended]:
            del self.blocked[inbound]
