"""Intake: what a node takes in, and when: CONNECTs at the gate, packets before the windows.

Here whoever waits for the node waits, and here the observer hears how long. It knows no packet and
no session: `Node` drives it with conversations, a simulated node with its clients, and both get the
same decisions at the same points of a turn.

1. `connect` for every CONNECT; its `Reception` is told what becomes of it, at once or later.
2. `paused` for every conversation with packets and no room; `schedule` is called on it when there
   may be some again.
3. `turn` after every slice of work, `next_batch` and `committed` around every commit, `tick` every
   100 ms.
"""

from typing import Final, Generic, Protocol, TypeVar, final

from flowguard.flow import Arrival, Verdict
from flowguard.node.journal import Batch, Journal
from flowguard.node.protection import Guarded, Protection

C = TypeVar("C", bound=Guarded)
C_contra = TypeVar("C_contra", bound=Guarded, contravariant=True)

REFUSAL_S: Final = 0.000_1
"""What decoding and refusing a CONNECT takes of the loop, nominally: no clock here, seconds."""


class Reception(Protocol[C_contra]):
    """What becomes of a CONNECT; exactly one of these, unless its connection ends before."""

    def admit(self, connection: C_contra, now_s: float) -> None:
        """Serve it, and settle it at the gate when it is answered."""

    def turn_away(self, connection: C_contra, now_s: float) -> None:
        """Answer 137."""

    def drop(self, connection: C_contra, now_s: float) -> None:
        """Not worth an answer: its client has asked again."""

    def failed(self, connection: C_contra, error: Exception, now_s: float) -> None:
        """Serving it broke; all others are served on."""


@final
class Intake(Generic[C]):
    """One per node."""

    def __init__(
        self, protection: Protection[C], journal: Journal, reception: Reception[C]
    ) -> None:
        self.protection = protection
        self.journal = journal
        self.draining = False
        """Nothing is admitted any more; what is in process goes on."""
        self._reception = reception
        self._gate = protection.gate
        self._window = protection.window
        self._observer = protection.observer
        self._starved: dict[C, None] = {}
        self._heard_s: float | None = None

    # --- CONNECTs ----------------------------------------------------------------------------

    def connect(self, connection: C, arrival: Arrival, now_s: float) -> None:
        """A CONNECT has arrived."""
        self._on_verdict(connection, self._gate.offer(connection, arrival, now_s), now_s)

    def _on_verdict(self, connection: C, verdict: Verdict, now_s: float) -> None:
        if verdict is Verdict.ADMIT:
            self._reception.admit(connection, now_s)
        elif verdict is Verdict.REJECT:
            self._reception.turn_away(connection, now_s)
            self._gate.spent(REFUSAL_S, now_s)
        elif verdict is Verdict.DROP:
            self._reception.drop(connection, now_s)

    def _admit_waiting(self, now_s: float) -> None:
        for _ in range(self._gate.limit):  # Who is refused makes room at once: not all in one turn.
            waiting = self._gate.admit_next(now_s, self._heard_s)
            if waiting is None:
                break
            connection, verdict = waiting
            try:
                self._on_verdict(connection, verdict, now_s)
            except Exception as error:
                self._reception.failed(connection, error, now_s)

    # --- packets -----------------------------------------------------------------------------

    def paused(self, connection: C, now_s: float) -> None:
        """Its window has no room; if it is the whole node that has none, it is remembered here.

        While clients take turns it stands with the others, closed or not: else those who do would
        fill the journal again before it has come so far.
        """
        if self._window.closed and not self._window.shared:
            self._starved[connection] = None
        else:
            self.protection.paused(connection, now_s)

    def left(self, connection: C) -> None:
        """A client is gone."""
        self._starved.pop(connection, None)
        self.protection.left(connection)

    @property
    def starved_count(self) -> int:
        """Conversations that wait because the node admits nothing at all."""
        return len(self._starved)

    @property
    def admits_nothing(self) -> bool:
        """Whether no window has room now: the node drains, or its journal is full."""
        return self.draining or self.journal.is_full

    # --- time --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `turn` would find something to do, though nothing new came in."""
        return bool(
            self._gate.is_ready
            or (self._starved and not self.admits_nothing)
            or (self._window.shared and self.protection.is_ready)
        )

    def turn(self, now_s: float) -> None:
        """Once per turn: CONNECTs that waited, sockets that had to wait for the whole node."""
        if self._gate.is_ready:
            self._admit_waiting(now_s)
        self._window.closed = self.admits_nothing
        if self._window.shared:
            self.protection.take_turns(now_s)
        if self._starved and not self._window.closed:
            starved, self._starved = self._starved, {}
            for connection in starved:
                connection.schedule()

    def next_batch(self, now_s: float) -> Batch | None:
        """What the journal wants committed now; `committed` follows. None: nothing, or not yet."""
        batch = self.journal.take(now_s)
        if batch is not None and batch.continuations:
            # The luckiest of a batch, like CoDel's minimum: one that all waits for stands.
            self._observer.started(now_s - batch.until_s)
        return batch

    def committed(self, batch: Batch, now_s: float, latency_s: float) -> None:
        """The batch is durable, after a commit of `latency_s`: answer whoever waited for it."""
        self.durable(batch, now_s, latency_s)
        while self.journal.is_answering:
            self.journal.answer(len(batch.continuations), now_s)

    def durable(self, batch: Batch, now_s: float, latency_s: float) -> None:
        """The same; the driver answers with `journal.answer`, piece by piece."""
        self._observer.committed(latency_s, now_s)
        count = len(batch.continuations)
        self._observer.finished(count, count * (now_s - batch.since_s))
        self.journal.durable(batch, now_s)

    def tick(self, now_s: float, heard_s: float | None = None) -> None:
        """Every 100 ms: what waits is observed, then the policy decides.

        `heard_s`: whoever had given up by then is known to be gone; None: by now.
        """
        self._heard_s = heard_s
        self._observer.waiting(self.journal.waiting_s(now_s))
        self._observer.committing(self.journal.committing_s(now_s))
        self._admit_waiting(now_s)
        self.protection.tick(now_s)
