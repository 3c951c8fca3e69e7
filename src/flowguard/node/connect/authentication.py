"""Hook points for the rights to connect, publish and subscribe. Without hooks, all clients may.

Hooks are synchronous and quick; one that asks a remote service belongs in front of the broker.
A hook that raises ends the connection of its client and affects no other client.
Each exchange of an enhanced authentication ([MQTT 5.0, 4.12]) is an object. It is made by the
factory that is registered under the method's name.
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
    """Checks user name and password of a CONNECT."""

    def authenticate(self, connect: Connect) -> ReasonCode:
        """Return SUCCESS, or the reason code of a rejection (0x86, 0x87, 0x8A ...)."""


class Checker(Protocol):
    """Checks user name and password of a CONNECT, and may answer later.

    Meanwhile the CONNECT counts as in process for the gate.
    """

    def check(
        self, connection: ServerConnection, connect: Connect, now_s: float, answer: CheckAnswer
    ) -> None:
        """Call `answer` once, now or later.

        It takes SUCCESS or the reason code of the rejecting CONNACK, the time, and the reason for
        the log. An unknown client does not get this reason.
        """


class Authorizer(Protocol):
    """Checks single actions of an accepted client.

    A `flowguard.node.subscribe.start_time.PastAuthorizer` also checks subscriptions into the past.
    """

    def may_publish(self, client_id: str, topic: str) -> bool:
        """Return False to drop the message.

        A 5.0 client gets PUBACK or PUBREC with 0x87, a 3.1.1 client a usual acknowledgement.
        """

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        """Return False to reject the filter: SUBACK has 0x87 for it (3.1.1: 0x80)."""


@dataclass(slots=True)
class Proceed:
    """Continues the exchange: AUTH 0x18 with this data."""

    data: bytes | None = None


@dataclass(slots=True)
class Accept:
    """Accepts the identity of the client; `data` goes into CONNACK or the closing AUTH."""

    data: bytes | None = None


@dataclass(slots=True)
class Refuse:
    """Rejects the identity of the client; `why` is for the log."""

    reason_code: ReasonCode = ReasonCode.NOT_AUTHORIZED
    why: str = ""


Step = Proceed | Accept | Refuse


class Exchange(Protocol):
    """One run of an authentication method."""

    def step(self, data: bytes | None, now_s: float) -> Step:
        """Check the client's authentication data; called for CONNECT and each AUTH.

        Before it accepts, it sets the identity of the client: `ServerConnection.principal`.
        """


ExchangeMaker = Callable[[ServerConnection, Connect], Exchange | None]
"""Makes an exchange, or None if the connection may not use the method.
For a re-authentication, the CONNECT contains only the client id and the properties of AUTH."""


@dataclass(slots=True)
class Hooks:
    """Hooks of a node; an absent hook allows everything.

    If CONNECT names a method and has no password, the method replaces the checker.
    """

    authenticator: Authenticator | None = None
    authorizer: Authorizer | None = None
    methods: Mapping[str, ExchangeMaker] | None = None
    checker: Checker | None = None
    rules: Rules | None = None
    """Rights to publish and receive, or None if only the authorizer limits them."""

    def may_publish(self, session: Session, message: Publish, node: NodeState) -> bool:
        """Return True if rules and authorizer, if configured, let a client publish it."""
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
        """Return True if rules and authorizer let a client leave this will."""
        if rights is not None and not rights.may_leave(will):
            return False
        return self.authorizer is None or self.authorizer.may_publish(client_id, will.topic)

    @property
    def asks(self) -> bool:
        """True if a client may be rejected because of its identity."""
        return self.authenticator is not None or self.checker is not None

    def exchange(
        self, method: str, connection: ServerConnection, connect: Connect
    ) -> Exchange | None:
        """Return a new exchange of `method`, or None if the method is unknown or not allowed."""
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
