"""Apart: who waits for the store of applications, where that is another one and may be away.

What concerns applications has a journal of its own (`names`), and devices go on. A message for both
enters that journal first, and is routed to devices when applications have it (`in_process`); so a
publisher's messages stay in order, and so do its acknowledgements, as long as what comes behind
such a message takes the same way.

While the store is away, or the journal full, whoever publishes to an application waits, before
anything of the message was done; so the journal is bounded, and nothing else is. Of all that waits
here nothing counts against what all clients together may have in process: devices need that.
"""

from collections import deque
from typing import Final, final

from flowguard.flow import AdmissionWindow, Pause, Reason
from flowguard.node.applications.divided_journal import DividedJournal
from flowguard.node.applications.names import set_keys
from flowguard.node.journal import Continuation
from flowguard.records import Delivery, StoreOp
from flowguard.session.counters import Counters
from flowguard.session.inbound import Inbound
from flowguard.session.owner import MessageSink
from flowguard.session.session import Session

AWAY_S: Final = 1.0
"""So long a commit may take before publishers and new connections are told to wait."""
Admitted = tuple[MessageSink, Delivery]
"""Who gets a message, and has a place for it."""


@final
class Apart:
    """One per node with such a store."""

    def __init__(self, journal: DividedJournal, counters: Counters, *, bytes_max: int) -> None:
        self.journal = journal.second
        self._sides = journal.names
        self.names = journal.names.names
        self._counters = counters
        self._bytes_max = bytes_max
        self.in_process_bytes = 0
        """Of packets that are here, which all clients together have not."""
        self._lines: dict[Inbound, deque[object]] = {}
        """A publisher's messages that are here, in order."""
        self._waiting: dict[Session, Inbound] = {}
        """Publishers who wait with a message."""
        self.has_groups = False
        """Whether some of these are groups of several brokers."""
        self.is_away = False
        """The store has taken nothing for a while."""
        self.away_since_s = 0.0

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is to come in."""
        return self.is_away or self.is_full

    @property
    def is_full(self) -> bool:
        return self.journal.is_full or self.in_process_bytes >= self._bytes_max

    # --- messages ----------------------------------------------------------------------------

    def concerns(self, inbound: Inbound | None, admitted: list[Admitted]) -> bool:
        """Whether a message for these has to come here first: for them, or for its place."""
        if inbound is not None and inbound in self._lines:
            return True
        names = self.names
        return any([owner.client_id in names and delivery.qos for owner, delivery in admitted])

    def drop(self, owner: MessageSink, delivery: Delivery) -> None:
        """Let it go without a message for which it had a place."""
        owner.queue.forget(delivery.size_bytes)
        self._counters.drop(Reason.QUEUE_MESSAGES)

    def count(self, window: AdmissionWindow, cost: int, size_bytes: int) -> None:
        """Count a packet in process here, and not among those of all clients; negative: there."""
        window.set_aside(cost, size_bytes)
        self.in_process_bytes += size_bytes

    def enter(self, inbound: Inbound, message: object) -> None:
        """A message of this publisher is here, behind all others of it."""
        line = self._lines.get(inbound)
        if line is None:
            line = self._lines[inbound] = deque()
        line.append(message)

    def append(
        self, ops: list[StoreOp], publisher: Session, then: Continuation, now_s: float
    ) -> None:
        """Store a publisher's message; `then` it is there."""
        if self.has_groups:
            set_keys(ops, publisher.client_id)
        self.journal.append(ops, then, now_s)

    def is_first(self, inbound: Inbound, message: object) -> bool:
        return self._lines[inbound][0] is message

    def leave(self, inbound: Inbound) -> None:
        """The first of its messages is in the store."""
        line = self._lines[inbound]
        line.popleft()
        if not line:
            del self._lines[inbound]

    # --- who waits ---------------------------------------------------------------------------

    def has_here(self, inbound: Inbound) -> bool:
        """Whether an earlier message of a publisher is here."""
        return inbound in self._lines

    def wait(self, inbound: Inbound) -> None:
        """A publisher waits with its next message until there is room."""
        inbound.blocked = True
        self._waiting[inbound.session] = inbound

    def is_before(self, inbound: Inbound, pause: Pause) -> bool:
        """Whether that pause of a publisher is because of what is here."""
        if pause is Pause.WINDOW:
            return inbound in self._lines
        return pause is Pause.QUEUE and inbound.session in self._waiting

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def left(self, session: Session) -> None:
        """Its connection is over."""
        self._waiting.pop(session, None)

    def turn(self, now_s: float) -> None:
        """Once per turn: whoever waits may go on, if there is room."""
        if self.is_away:
            self._look(now_s)
        if self._waiting and not self.is_closed:
            waiting, self._waiting = self._waiting, {}
            for inbound in waiting.values():
                inbound.go_on()

    def tick(self, now_s: float) -> None:
        """Look whether the store is away, whether live work came, and which names have left."""
        self._look(now_s)
        self.journal.observe(now_s)
        self._sides.tidy(self.journal.done_number)

    def _look(self, now_s: float) -> None:
        journal = self.journal
        late_s = max(journal.committing_s(now_s), journal.waiting_s(now_s))
        if late_s > AWAY_S and not self.is_away:
            self.away_since_s = now_s - late_s
        self.is_away = late_s > AWAY_S
