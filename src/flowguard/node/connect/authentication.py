"""Hook points: who may connect, publish, subscribe. Without hooks, everybody may.

Hooks are synchronous and quick; one that asks a remote service belongs in front of the broker.
One that raises costs the client its connection, and nobody else anything.
An enhanced authentication ([MQTT 5.0, 4.12]) is an object per exchange, made by the factory that
is registered under the method's name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from flowguard.access.rights import NOTHING, Rights, decision_bytes, published_as
from flowguard.access.rules import Rules
from flowguard.codec.packets import Connect
from flowguard.session.connection import ServerConnection
from flowguard.session.node_state import NodeState
from flowguard.session.session import Session
from flowguard.types import Publish, ReasonCode

CheckAnswer = Callable[[ReasonCode, float, str], None]


class Authenticator(Protocol):
    """Judges user name and password of a CONNECT."""

    def authenticate(self, connect: Connect) -> ReasonCode:
        """SUCCESS, or the reason code of the refusing CONNACK (0x86, 0x87, 0x8A ...)."""


class Checker(Protocol):
    """Judges user name and password of a CONNECT, and may take its time.

    Meanwhile the CONNECT counts as in process for the gate.
    """

    def check(
        self, connection: ServerConnection, connect: Connect, now_s: float, answer: CheckAnswer
    ) -> None:
        """Call `answer` once, now or later: with SUCCESS, or the reason code of the CONNACK that
        refuses, the time, and why, for the log: whom we do not know we do not tell."""


class Authorizer(Protocol):
    """Judges single actions of an accepted client; where it should, also
    subscriptions into the past (`flowguard.node.subscribe.start_time.PastAuthorizer`)."""

    def may_publish(self, client_id: str, topic: str) -> bool:
        """False: PUBACK/PUBREC 0x87 in 5.0; 3.1.1 gets its acknowledgement, nobody the message."""

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        """False: 0x87 for this filter in SUBACK (3.1.1: 0x80)."""


@dataclass(slots=True)
class Proceed:
    """The exchange goes on: AUTH 0x18 with this data."""

    data: bytes | None = None


@dataclass(slots=True)
class Accept:
    """The client is who it says; `data` goes into CONNACK or the closing AUTH."""

    data: bytes | None = None


@dataclass(slots=True)
class Refuse:
    """The client is not who it says; `why` is for the log."""

    reason_code: ReasonCode = ReasonCode.NOT_AUTHORIZED
    why: str = ""


Step = Proceed | Accept | Refuse


class Exchange(Protocol):
    """One run of an authentication method."""

    def step(self, data: bytes | None, now_s: float) -> Step:
        """Judge the client's authentication data; called for CONNECT and each AUTH.

        Before it accepts it says who the client is: `ServerConnection.principal`.
        """


ExchangeMaker = Callable[[ServerConnection, Connect], Exchange | None]
"""Makes an exchange, None: this connection may not use the method. On a connection that is open the
CONNECT is one that says nothing but the client id."""


@dataclass(slots=True)
class Hooks:
    """Questions of a node to its owner; absent hooks allow.

    Where CONNECT names a method and has no password, the method stands in for the checker.
    """

    authenticator: Authenticator | None = None
    authorizer: Authorizer | None = None
    methods: Mapping[str, ExchangeMaker] | None = None
    checker: Checker | None = None
    rules: Rules | None = None
    """Who may publish and receive what; None: everybody all, as far as the authorizer allows."""

    def may_publish(self, session: Session, message: Publish, node: NodeState) -> bool:
        """Whether rules and authorizer, as far as there are any, let a client publish it."""
        rights = session.rights
        if rights is not None:
            wanted = published_as(message.qos, retain=message.retain, will=False)
            if not _decision(session, rights, message.topic, node) & wanted:
                return False
        elif self.rules is not None:
            return False
        return self.authorizer is None or self.authorizer.may_publish(
            session.client_id, message.topic
        )

    def may_leave(self, will: Publish, client_id: str, rights: Rights | None) -> bool:
        """Whether they let a client leave this will."""
        if rights is not None and not rights.may_leave(will):
            return False
        return self.authorizer is None or self.authorizer.may_publish(client_id, will.topic)

    @property
    def asks(self) -> bool:
        """Whether anybody may be refused for who it is."""
        return self.authenticator is not None or self.checker is not None

    def exchange(
        self, method: str, connection: ServerConnection, connect: Connect
    ) -> Exchange | None:
        """A new exchange of `method`; None: no such method here."""
        maker = (self.methods or {}).get(method)
        return None if maker is None else maker(connection, connect)


def _decision(session: Session, rights: Rights, topic: str, node: NodeState) -> int:
    """Return what the rights of a client decide on a topic, and remember it within limits."""
    decision = rights.remembered(topic)
    if decision == NOTHING:
        account, decision = session.account, rights.decide(topic)
        if not rights.has_room(topic):
            account.charge(-rights.forget(), node)
        if rights.has_room(topic) and account.charge(decision_bytes(topic), node) is None:
            rights.remember(topic, decision)
    return decision
