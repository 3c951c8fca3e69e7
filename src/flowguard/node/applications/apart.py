"""Apart: messages for applications that wait for a store of their own.

All that concerns applications has its own journal (`names`), and devices go on. A message for both
enters that journal first. Devices get it when it is stored there (`staged`), so a publisher's
messages and acknowledgements stay in order: what follows such a message takes the same way.
"""

from collections import deque
from typing import final

from flowguard.flow import Reason
from flowguard.node.applications.divided_journal import DividedJournal
from flowguard.node.applications.names import set_keys
from flowguard.node.journal import Continuation
from flowguard.node.publish.deliveries import Admitted
from flowguard.node.publish.incoming import Incoming
from flowguard.records import Delivery, StoreOp
from flowguard.session.counters import Counters
from flowguard.session.inbound.packets import Inbound
from flowguard.session.owner import MessageSink


@final
class Apart:
    """One per node with such a store."""

    def __init__(self, journal: DividedJournal, counters: Counters, bytes_max: int) -> None:
        self.journal = journal.second
        self.names = journal.names.names
        self._counters = counters
        self._bytes_max = bytes_max
        self.in_process_bytes = 0
        """Size of the packets that are in process here and not for all clients, bytes."""
        self._lines: dict[Inbound, deque[object]] = {}
        """The messages of each publisher that are in process here, in order."""
        self.has_groups = False
        """Whether some of these are groups of several brokers."""

    @property
    def is_full(self) -> bool:
        """Whether the journal of applications, or the packets in process, reached their bounds."""
        return self.journal.is_full or self.in_process_bytes >= self._bytes_max

    def concerns(self, inbound: Inbound | None, admitted: list[Admitted]) -> bool:
        """Whether a message goes here first: for its targets, or to keep its publisher's order."""
        if inbound is not None and inbound in self._lines:
            return True
        names = self.names
        return any([owner.client_id in names and delivery.qos for owner, delivery in admitted])

    def drop(self, owner: MessageSink, delivery: Delivery) -> None:
        """Free the place of a message in a queue, and count the message as dropped."""
        owner.queue.forget(delivery.size_bytes)
        self._counters.drop(Reason.QUEUE_MESSAGES)

    def count(self, incoming: Incoming, sign: int = 1) -> None:
        """Count a packet in process here and not for all clients; if `sign` is -1, the reverse."""
        inbound, size_bytes = incoming.inbound, sign * incoming.size_bytes
        assert inbound is not None
        inbound.window.set_aside(sign * incoming.cost, size_bytes)
        self.in_process_bytes += size_bytes

    def enter(self, inbound: Inbound, message: object) -> None:
        """Queue a message behind all others of its publisher."""
        line = self._lines.get(inbound)
        if line is None:
            line = self._lines[inbound] = deque()
        line.append(message)

    def append(self, ops: list[StoreOp], publisher: str, then: Continuation, now_s: float) -> None:
        """Store a publisher's message; call `then` after the commit."""
        if self.has_groups:
            set_keys(ops, publisher)
        self.journal.append(ops, then, now_s)

    def has_line(self, inbound: Inbound) -> bool:
        """Whether a message of a publisher is in process here."""
        return inbound in self._lines

    def is_first(self, inbound: Inbound, message: object) -> bool:
        return self._lines[inbound][0] is message

    def leave(self, inbound: Inbound) -> None:
        """Remove a publisher's first message, which the store has."""
        line = self._lines[inbound]
        line.popleft()
        if not line:
            del self._lines[inbound]
