"""Entrance: the way of a CONNECT from the gate to its CONNACK.

It is `flowguard.node.node` without sessions: flowguard's gate decides, and `NodePlan` has the costs
of serving and rejecting.
"""

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, final

from flowguard.flow import Admission, Arrival, Verdict
from flowguard.records import PutSession, PutWill, StoreOp
from flowguard.session.handshake import CONNECT_BYTES
from simulations.crowd.connection import CONNECTED, CONNECTING, ENDED, SERVED, WAITING, Connection

if TYPE_CHECKING:
    from simulations.process.broker import Broker

CLAIM_OPS: Final[tuple[StoreOp, ...]] = (PutSession("", 0, None), PutWill("", None))
"""Operations that store a CONNECT of a durable session: see `Registry.claim_ops`."""


@final
class Entrance:
    def __init__(self, broker: "Broker") -> None:
        self.waiting_count = 0
        """Number of CONNECTs that wait for their outcome; the gate should count the same."""
        self.served_count = 0
        """Number of CONNECTs that are admitted and not answered; the gate should count the same."""
        self.emptied_count = 0
        """How often the number of waiting CONNECTs fell to 0."""
        self._broker = broker
        self._plan = broker.plan
        self._world = broker.world
        self._guard = broker.guard
        self._loop = broker.loop
        self._journal = broker.journal
        self._counters = broker.counters
        self._serving: deque[tuple[Connection, float]] = deque()
        """Admitted connections, and the time of their admission; only if an acceptor goes first."""
        self._claiming: set[Connection] = set()
        """Connections with claims that are not durable yet."""
        self.abandoned: set[Connection] = set()
        """Connections that ended before the commit of their claims. The work is still in process,
        so it keeps its slot."""
        self._freed: set[Connection] = set()
        """The same, but their slots are free, because the store stores nothing."""
        self._answers: list[tuple[Connection, float | None]] = []
        """CONNACKs of this slice, each with the hint of a rejection in seconds, or None for
        success."""

    def offer(self, connection: Connection, now_s: float) -> None:
        """Offer a CONNECT to the gate, which decides at once, or lets it wait."""
        connection.state = CONNECTING
        self.follow(
            connection, self._guard.offer(connection, self._arrival(connection), now_s), now_s
        )

    def _arrival(self, connection: Connection) -> Arrival:
        """Return what the gate needs to know of a CONNECT."""
        client_id = connection.population.client_id(connection.client)
        size_bytes = CONNECT_BYTES + client_id.__sizeof__()
        held_bytes = self._plan.connection_bytes + self._plan.connecting_bytes
        return Arrival(client_id, size_bytes, connection.waited_s, held_bytes)

    def leave(self, connection: Connection) -> None:
        """A connection ends, or is connected: it neither waits nor is served from now on."""
        if connection.state == WAITING:
            self.waiting_count -= 1
            self.emptied_count += not self.waiting_count
        elif connection.state == SERVED:
            self.served_count -= 1

    def ended(self, connection: Connection, now_s: float) -> None:
        """Free the slot of a connection that was never connected, or keep it until the commit."""
        if connection in self._claiming:
            self._claiming.discard(connection)
            self.abandoned.add(connection)
        else:
            self._guard.answered(connection, now_s)

    def free_abandoned(self, now_s: float) -> None:
        """Free slots for clients that need no commit, while the store stores nothing."""
        for connection in self.abandoned:
            self._guard.answered(connection, now_s)
        self._freed |= self.abandoned
        self.abandoned.clear()

    def answer(self) -> None:
        if not self._answers:
            return
        answers, self._answers = self._answers, []
        sent_s = self._loop.clock_s
        for connection, hint_s in answers:
            if hint_s is None:
                self._counters.accepted_count += 1
                connection.population.accepted(connection, sent_s)
            else:
                connection.population.refused(connection, sent_s, hint_s)

    # --- serving -----------------------------------------------------------------------------

    @property
    def is_serving(self) -> bool:
        """True if an acceptor left connections to be served."""
        return bool(self._serving)

    def serve_until(self, until_s: float) -> None:
        """Serve the connections that an acceptor left, one by one."""
        serving, loop = self._serving, self._loop
        while serving and loop.clock_s < until_s:
            connection, since_s = serving.popleft()
            if connection.state != ENDED:
                self._claim(connection, since_s)

    def _claim(self, connection: Connection, now_s: float) -> None:
        """Claim the session; it belongs to the connection as soon as that is durable."""
        started_s = self._loop.clock_s
        self._broker.spend(self._plan.connect_s)
        self._guard.observer.connecting(self._loop.clock_s - started_s)
        is_durable = connection.population.plan.durable
        if is_durable and len(self._freed) > self._guard.gate.late_claims_max:
            # Otherwise a crowd that gives up and returns in an outage fills the journal.
            self._reject(connection, 0.0, now_s)
            return
        self._claiming.add(connection)
        ops: list[StoreOp] = list(CLAIM_OPS) if is_durable else []
        self._journal.append(ops, partial(self._claimed, connection), now_s)

    def _claimed(self, connection: Connection, now_s: float) -> None:
        for each in (self._claiming, self.abandoned, self._freed):
            each.discard(connection)
        self._guard.answered(connection, now_s)
        if connection.state == ENDED:
            connection.population.wasted_count += 1
            return
        self.leave(connection)
        connection.state = CONNECTED
        if connection.population.plan.durable:
            connection.population.keep(connection.client, self._broker.node)
        self._broker.watch(connection, now_s)
        self._answers.append((connection, None))
        self._broker.replays.want(connection)

    # --- what the guard decides --------------------------------------------------------------

    def follow(self, connection: Connection, admission: Admission, now_s: float) -> None:
        """Follow the guard's decision on a CONNECT, at once or later."""
        if admission.verdict is Verdict.DELAY:
            connection.state = WAITING
            self.waiting_count += 1
        elif not self._may_decide(connection):
            return
        elif admission.verdict is Verdict.ADMIT:
            self._admit(connection, now_s)
        elif admission.verdict is Verdict.REJECT:
            self._turn_away(connection, admission.retry_after_s, now_s)
        else:
            self._broker.end(connection, now_s)
            connection.population.closed(connection, self._loop.clock_s)

    def _admit(self, connection: Connection, now_s: float) -> None:
        self.leave(connection)
        connection.state = SERVED
        self.served_count += 1
        if self._plan.accepts_first:
            self._serving.append((connection, now_s))
        else:
            self._claim(connection, now_s)

    def _turn_away(self, connection: Connection, hint_s: float, now_s: float) -> None:
        broker, invariants = self._broker, self._world.invariants
        if invariants is not None:
            invariants.on_refusal(connection)
        started_s = self._loop.clock_s
        broker.spend(self._plan.refuse_s)
        took_s = self._loop.clock_s - started_s
        self._counters.refusing_s += took_s
        if connection.state == WAITING or not self._plan.accepts_first:
            self._guard.refused(took_s, started_s)  # Else the acceptor reports it.
        self._reject(connection, hint_s, now_s)

    def _reject(self, connection: Connection, hint_s: float, now_s: float) -> None:
        """End a connection with a CONNACK; it has no hint if `hint_s` is 0."""
        self._counters.refused_count += 1
        self._broker.end(connection, now_s, refused=True)
        self._answers.append((connection, hint_s))

    def _may_decide(self, connection: Connection) -> bool:
        invariants = self._world.invariants
        return invariants is None or invariants.may_decide(connection)
