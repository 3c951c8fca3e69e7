"""The path of a CONNECT inside a node, from the packet to CONNACK.

- `connect`   checks capacity, then asks the guard, which decides at once or later (`follow`)
- `_admit`    authentication, in one step or in several
- `_claim`    takes the client id from any other connection; the session goes to the journal
- `_claimed`  after the commit: CONNACK, then the messages that the client missed

A connection that ends on the way calls `left`. The processor time of these steps is counted as the
work of CONNECTs, apart from that of messages. Resuming a session counts as work of messages.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, final

from flowguard.access.rights import NO_QUOTAS
from flowguard.bounds import CONNECTION_BYTES
from flowguard.codec.packets import Auth, Connect
from flowguard.errors import ProtocolViolation
from flowguard.flow import Admission, Arrival, Reason, Verdict
from flowguard.node.connect.attempts import CONNECTED
from flowguard.node.connect.authentication import Accept, Exchange, Proceed, Refuse
from flowguard.node.connect.parts import ConnectParts
from flowguard.node.connect.placement import OneWorker, Placement
from flowguard.node.connect.proof_times import ProofTimes
from flowguard.node.connect.rejections import AWAY, STORE_FULL, Claimant, rejection_of
from flowguard.session.connection import ServerConnection
from flowguard.session.handshake import (
    Answer,
    connack_properties,
    connect_bytes,
    grant,
    session_expiry_s,
    will_of,
)
from flowguard.session.host import Lifecycle
from flowguard.session.session import Session
from flowguard.session.states import State
from flowguard.types import MQTT_5, NO_PROPERTIES, Properties, ReasonCode

STORE_AWAY: Final = "the store did not answer in time"
FENCED: Final = "its session belongs to another broker"
ENDS: Final = "the broker drains: it accepts no new clients"
RIGHTS_FULL: Final = "its ACL exceeds the memory limit per client or per node"


@final
class _Claim:
    """A connection that has taken a client id, and its answer."""

    __slots__ = ("answer", "connection", "session", "since_s")

    def __init__(
        self, connection: ServerConnection, session: Session, answer: Answer, since_s: float
    ) -> None:
        self.connection = connection
        self.session = session
        self.answer = answer
        self.since_s = since_s


@final
class Handshakes:
    """All CONNECTs of a node that are not answered yet."""

    def __init__(
        self,
        parts: ConnectParts,
        lifecycle: Lifecycle[ServerConnection],
        random_id: Callable[[], str],
        processor_clock: Callable[[], float],
    ) -> None:
        self._parts = parts
        self._lifecycle = lifecycle
        self._random_id = random_id
        self._processor_clock = processor_clock
        self._is_counting = False
        """True if a step of a CONNECT is under way, and its processor time is counted already."""
        self._claims: dict[str, _Claim] = {}
        self.abandoned: set[ServerConnection] = set()
        """Connections that ended before the commit of their claim, which is still work in
        process."""
        self._freed: set[ServerConnection] = set()
        """Connections whose slots were freed in an outage of the store, before their commit.
        Applications do not count."""
        self._exchanges: dict[ServerConnection, Exchange] = {}
        self._methods: dict[ServerConnection, str] = {}
        """Method of each client with enhanced authentication, until it disconnects."""
        self._proof_times = ProofTimes()
        self.placement: Placement = OneWorker()

    def connect(self, connection: ServerConnection, packet: Connect, now_s: float) -> None:
        """Check the capacity, then ask the guard; see `Lifecycle.connect`."""
        parts = self._parts
        if parts.state.draining:
            parts.state.counters.turn_away(Reason.DRAINING)
            connection.refuse(ReasonCode.SERVER_UNAVAILABLE, now_s, why=ENDS)
        elif packet.client_id and not self.placement.owns(packet.client_id):
            self.placement.hand_over(connection, packet, now_s)
        elif self._clients_count >= parts.state.bounds.connections_max and not self._is_here(
            packet
        ):
            why = f"there are {parts.state.bounds.connections_max:,} clients: node.connections_max"
            parts.state.counters.turn_away(Reason.CONNECTIONS_MAX)
            connection.refuse(ReasonCode.QUOTA_EXCEEDED, now_s, why=why)
        else:
            admission = parts.guard.offer(connection, self._arrival(connection, packet), now_s)
            self.follow(connection, admission, now_s)

    def _is_here(self, packet: Connect) -> bool:
        """Return True if a client is connected already, so that it takes over its own slot."""
        session = self._parts.registry.sessions.get(packet.client_id)
        return session is not None and session.outbound is not None

    def _arrival(self, connection: ServerConnection, packet: Connect) -> Arrival:
        size_bytes = connect_bytes(packet)
        return Arrival(packet.client_id, size_bytes, connection.waited_s, CONNECTION_BYTES)

    @property
    def _clients_count(self) -> int:
        """Number of clients that are connected or have sent CONNECT."""
        parts = self._parts
        gate = parts.guard.gate
        on_their_way = gate.in_process + gate.buffered + len(self._exchanges)
        return parts.state.counters.clients_connected + on_their_way - len(self.abandoned)

    def follow(self, connection: ServerConnection, admission: Admission, now_s: float) -> None:
        """Act on the guard's verdict, unless the CONNECT waits."""
        if admission.verdict is Verdict.ADMIT:
            self._counted(partial(self._admit, connection, now_s))
        elif admission.verdict is Verdict.REJECT:
            retry_after = _retry_after(connection, admission.retry_after_s)
            why = admission.reason or ""
            connection.refuse(ReasonCode.SERVER_BUSY, now_s, retry_after, why)
        elif admission.verdict is Verdict.DROP:
            connection.end(None, now_s)  # The client has sent a newer CONNECT.

    def _counted(self, step: Callable[[], None]) -> None:
        """Do a step of an admitted CONNECT, and report its processor time."""
        if self._is_counting:
            step()
            return
        self._is_counting, started_s = True, self._processor_clock()
        try:
            step()
        finally:
            self._is_counting = False
            self._parts.guard.observer.connecting(self._processor_clock() - started_s)

    def _admit(self, connection: ServerConnection, now_s: float) -> None:
        """Authenticate, then claim the client id."""
        parts = self._parts
        packet = connection.connect_packet
        assert packet is not None
        if parts.hooks.authenticator is not None:
            reason = parts.hooks.authenticator.authenticate(packet)
            if reason is not ReasonCode.SUCCESS:
                connection.refuse(reason, now_s)
                return
        stands_in = packet.properties.authentication_method is not None and packet.password is None
        if parts.hooks.checker is None or stands_in:
            self._prove(connection, now_s)
        else:
            parts.hooks.checker.check(connection, packet, now_s, partial(self._checked, connection))

    def _checked(
        self, connection: ServerConnection, reason: ReasonCode, now_s: float, why: str
    ) -> None:
        """Continue after the check of the password; the client may have left meanwhile."""
        if connection.state is not State.CONNECTING:
            return
        try:
            if reason is ReasonCode.SUCCESS:
                self._counted(partial(self._prove, connection, now_s))
            else:
                connection.refuse(reason, now_s, why=why)
        except Exception as error:
            self._lifecycle.failed(connection, error, now_s)

    def _prove(self, connection: ServerConnection, now_s: float) -> None:
        """Begin an enhanced authentication if CONNECT names a method, else claim the client id."""
        parts = self._parts
        packet = connection.connect_packet
        assert packet is not None
        method = packet.properties.authentication_method
        if method is None:
            self._claim(connection, now_s)
            return
        exchange = parts.hooks.exchange(method, connection, packet)
        if exchange is None:
            # [MQTT-4.12.0-1]
            connection.refuse(ReasonCode.BAD_AUTHENTICATION_METHOD, now_s)
            return
        self._exchanges[connection] = exchange
        self._methods[connection] = method
        parts.wheel.watch(connection, now_s + parts.state.settings.flow.connect_timeout_s)
        self._step(connection, packet.properties.authentication_data, now_s)

    def _step(self, connection: ServerConnection, data: bytes | None, now_s: float) -> None:
        exchange, method = self._exchanges[connection], self._methods[connection]
        step = exchange.step(data, now_s)
        match step:
            case Proceed():
                answer = Properties(authentication_method=method, authentication_data=step.data)
                connection.outbound.write_packet(Auth(ReasonCode.CONTINUE_AUTHENTICATION, answer))
                self._parts.guard.answered(connection, now_s)  # The client's time is not ours.
                connection.schedule()  # The next packet may have arrived already.
            case Accept() if connection.state is State.CONNECTED:
                answer = Properties(authentication_method=method, authentication_data=step.data)
                connection.outbound.write_packet(Auth(ReasonCode.SUCCESS, answer))
                del self._exchanges[connection]
                self._proof_times.watch(connection, self._parts.timers)
            case Accept():
                del self._exchanges[connection]
                self._claim(connection, now_s, step)
            case Refuse():
                del self._exchanges[connection]
                if connection.state is State.CONNECTED:
                    connection.end(step.reason_code, now_s)  # [MQTT-4.12.1-2]
                else:
                    connection.refuse(step.reason_code, now_s, why=step.why)  # [MQTT-4.12.0-4]

    def authenticating(self, connection: ServerConnection) -> bool:
        return connection in self._exchanges

    def authenticate(self, connection: ServerConnection, packet: Auth, now_s: float) -> None:
        """Handle AUTH: the next step, or a re-authentication [MQTT-4.12.1-1]."""
        method = self._methods.get(connection)
        if method is None:
            raise ProtocolViolation("AUTH without an authentication method in CONNECT")
        if packet.properties.authentication_method != method:
            # [MQTT-4.12.0-5] [MQTT-4.12.1-1]
            raise ProtocolViolation("AUTH with another authentication method")
        if packet.reason_code == ReasonCode.RE_AUTHENTICATE:
            if connection.state is not State.CONNECTED or connection in self._exchanges:
                raise ProtocolViolation("re-authentication is not allowed now")
            assert connection.session is not None
            connect = Connect(connection.session.client_id, properties=packet.properties)
            exchange = self._parts.hooks.exchange(method, connection, connect)
            if exchange is None:
                connection.end(ReasonCode.BAD_AUTHENTICATION_METHOD, now_s)
                return
            self._exchanges[connection] = exchange
        elif connection not in self._exchanges:
            raise ProtocolViolation("AUTH without an exchange under way")
        step = partial(self._step, connection, packet.properties.authentication_data, now_s)
        if connection.state is State.CONNECTED:
            step()
        else:
            self._counted(step)

    def _claim(
        self, connection: ServerConnection, now_s: float, accepted: Accept | None = None
    ) -> None:
        """Take the client id, and end its older connection; CONNACK follows the commit."""
        parts = self._parts
        packet = connection.connect_packet
        assert packet is not None
        client_id = packet.client_id
        assigned = None
        if not client_id:
            client_id = assigned = self._unused_id()  # [MQTT-3.1.3-6]
        rules, principal = parts.hooks.rules, connection.principal
        rights = None if rules is None else rules.rights(principal, client_id)
        will = will_of(packet)
        user = packet.username if principal is None else principal.user
        is_proved = principal is not None or parts.hooks.authenticator is not None
        proved = (user or "") if is_proved else ""
        claimant = Claimant(client_id, user, proved, rights, will)
        if (rejection := rejection_of(parts, packet, claimant)) is not None:
            reason_code, why = rejection
            connection.refuse(reason_code, now_s, why=why)
            return
        is_late = len(self._freed) > parts.guard.gate.late_claims_max
        if is_late and session_expiry_s(packet, parts.state.settings.session):
            # Otherwise a crowd that gives up and returns in an outage fills the journal.
            connection.refuse(ReasonCode.SERVER_UNAVAILABLE, now_s, why=STORE_AWAY)
            return
        self.end_client(client_id, ReasonCode.SESSION_TAKEN_OVER, now_s)
        found = parts.registry.sessions.get(client_id)
        weight = 1 if found is None else found.weight
        granted = grant(
            packet,
            parts.state.settings.session,
            parts.guard.window.limit,
            weight,
            NO_QUOTAS if rights is None else rights.quotas,
        )
        claimed = parts.registry.claim(
            client_id,
            proved,
            clean_start=packet.clean_start,
            expiry_s=granted.session_expiry_s,
            will=will,
            now_s=now_s,
        )
        if claimed is None:
            why = "its client id and will are more than a client may keep, or all together"
            connection.refuse(ReasonCode.QUOTA_EXCEEDED, now_s, why=why)
            return
        session, present = claimed
        if rights is not None and not parts.reviews.claimed(session, rights, now_s):
            parts.registry.disconnected(session, with_will=False, now_s=now_s)
            connection.refuse(ReasonCode.QUOTA_EXCEEDED, now_s, why=RIGHTS_FULL)
            return
        properties = connack_properties(packet, granted, parts.state.settings.session, assigned)
        if accepted is not None:
            properties.authentication_method = packet.properties.authentication_method
            properties.authentication_data = accepted.data
        connection.session = session
        parts.router.applications.claimed(session, user, rights)
        ops = parts.registry.claim_ops(session)
        answer = Answer(granted, properties, present=present)
        claim = self._claims[client_id] = _Claim(connection, session, answer, now_s)
        claimed_by = partial(self._claimed, claim)
        is_stuck = parts.state.read_only or parts.state.is_store_away
        if is_stuck and not self._must_wait(claim):
            claimed_by(now_s)
        else:
            parts.journal.append(ops, claimed_by, now_s, client_id)

    def _must_wait(self, claim: _Claim) -> bool:
        """Return True if CONNACK has to wait for a commit: of its session, or of the end of the one
        that it replaces, which would return after a crash [MQTT-3.1.2-4]."""
        parts, name = self._parts, claim.session.client_id
        return claim.session.durable or parts.packets.in_doubt or parts.journal.is_ending(name)

    def no_space(self, now_s: float) -> None:
        """Reject the CONNECTs that must wait for the full disk, and accept the others."""
        for claim in list(self._claims.values()):
            if not self._must_wait(claim):
                self._claimed(claim, now_s)
                continue
            self._parts.state.counters.drop(Reason.STORE_FULL)
            claim.connection.refuse(ReasonCode.QUOTA_EXCEEDED, now_s, why=STORE_FULL)
            if not claim.answer.present and not claim.session.ended:
                self._parts.registry.end(claim.session, now_s)
        self.free_abandoned(now_s)

    def store_away(self, now_s: float, stalled_s: float = 0.0) -> None:
        """Answer CONNECTs while the store is unavailable; its commit has taken `stalled_s`.

        CONNECTs that need no commit are accepted. Others get 0x88 after too long a wait.
        """
        patience_s = self._parts.state.settings.flow.connect_patience_s
        for claim in list(self._claims.values()):
            if not self._must_wait(claim):
                self._claimed(claim, now_s)
            elif max(now_s - claim.since_s, stalled_s) > patience_s:
                self._turn_away(claim, now_s, STORE_AWAY)

    def free_abandoned(self, now_s: float, *, only_applications: bool = False) -> None:
        """Free slots for clients that need no commit, while a store stores nothing."""
        names = self._parts.router.lane.names
        for connection in list(self.abandoned):
            is_application = connection.client_id in names
            if is_application or not only_applications:
                self._parts.guard.answered(connection, now_s)
                self.abandoned.discard(connection)
            if not (is_application or only_applications):
                self._freed.add(connection)

    def applications_away(self, now_s: float) -> None:
        """Reject clients that have waited too long for the store of applications."""
        names = self._parts.router.lane.names
        for claim in list(self._claims.values()):
            is_late = now_s - claim.since_s > self._parts.state.settings.flow.connect_patience_s
            if is_late and claim.session.client_id in names:
                self._turn_away(claim, now_s, AWAY)
        self.free_abandoned(now_s, only_applications=True)

    def _turn_away(self, claim: "_Claim", now_s: float, why: str) -> None:
        claim.connection.refuse(ReasonCode.SERVER_UNAVAILABLE, now_s, why=why)
        if not claim.answer.present and not claim.session.ended:
            self._parts.registry.end(claim.session, now_s)

    def fenced(self, client_id: str, now_s: float) -> None:
        """Reject the CONNECT for a session that another broker owns."""
        claim = self._claims.get(client_id)
        if claim is not None:
            claim.connection.refuse(ReasonCode.SERVER_UNAVAILABLE, now_s, why=FENCED)

    def _claimed(self, claim: "_Claim", now_s: float) -> None:
        """Send CONNACK after the commit, then the missed messages [MQTT-3.1.4-5]."""
        self.abandoned.discard(claim.connection)
        self._freed.discard(claim.connection)
        self._parts.guard.answered(claim.connection, now_s)
        if self._claims.get(claim.session.client_id) is not claim:
            return  # The client has left, or has been answered.
        if self._parts.hooks.rules is not None and claim.session.rights is None:
            # The rules have changed, and its new rights exceed the memory limit.
            claim.connection.refuse(ReasonCode.QUOTA_EXCEEDED, now_s, why=RIGHTS_FULL)
            return
        self._counted(partial(self._accept, claim, now_s))
        if not claim.connection.ended:
            claim.connection.outbound.resume(now_s)
            self._parts.subscriptions.searches.resumed(claim.session, now_s)

    def _accept(self, claim: "_Claim", now_s: float) -> None:
        connection, session, answer = claim.connection, claim.session, claim.answer
        del self._claims[session.client_id]
        parts = self._parts
        parts.attempts.service.observe(now_s - claim.since_s)
        parts.state.counters.client_connected()
        parts.attempts.ended(connection, CONNECTED, now_s)
        connection.accept(session, answer, parts.packets, now_s)
        if connection.ended:
            return
        self._proof_times.watch(connection, parts.timers)
        if connection.principal is not None:  # It overrides the user name in CONNECT.
            connection.tenant = connection.principal.user
        if connection.keep_alive_s:
            parts.wheel.watch(connection, now_s + connection.keep_alive_s)
        if answer.present:
            parts.router.queues.connected(session)

    def _unused_id(self) -> str:
        """Return an id without a session, which this worker is to own [MQTT-3.2.2-16]."""
        sessions = self._parts.registry.sessions
        while (client_id := self._random_id()) in sessions or not self.placement.owns(client_id):
            pass
        return client_id

    def end_client(self, client_id: str, reason: ReasonCode, now_s: float) -> None:
        """End the connection of a client, and one that waits for CONNACK [MQTT-3.1.4-3]."""
        if (claim := self._claims.get(client_id)) is not None:
            claim.connection.end(None, now_s)
        session = self._parts.registry.sessions.get(client_id)
        if session is not None and session.outbound is not None:
            if reason is ReasonCode.SESSION_TAKEN_OVER:
                self._parts.state.counters.takeovers += 1
            session.outbound.connection.end(reason, now_s)

    def disconnected(self, connection: ServerConnection) -> None:
        """Forget a disconnected client, which may have been in a re-authentication."""
        self._forget_exchange(connection)
        self._proof_times.forget(connection, self._parts.timers)

    def _forget_exchange(self, connection: ServerConnection) -> None:
        self._exchanges.pop(connection, None)
        self._methods.pop(connection, None)

    def left(self, connection: ServerConnection, now_s: float) -> None:
        """Release a connection that ended before CONNACK."""
        parts = self._parts
        self._forget_exchange(connection)
        session = connection.session
        if session is None or self._claims.pop(session.client_id, None) is None:
            parts.guard.answered(connection, now_s)
        else:
            if parts.guard.gate.holds(connection):
                # Otherwise clients that give up and return fill the journal with their claims.
                self.abandoned.add(connection)
            # The client was never accepted: no will is sent, and a session that it found goes on.
            if session.rights is not None:
                session.rights.leave()
            parts.registry.disconnected(session, with_will=False, now_s=now_s)


def _retry_after(connection: ServerConnection, after_s: float) -> Properties:
    """Return the retry-after hint for a 5.0 client, or no properties if `after_s` is 0."""
    after_ms = round(1_000 * after_s)
    if connection.version != MQTT_5 or not after_ms:
        return NO_PROPERTIES
    return Properties(user_properties=(("retry-after-ms", str(after_ms)),))
