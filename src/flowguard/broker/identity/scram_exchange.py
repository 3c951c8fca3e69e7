"""ScramExchange: SCRAM-SHA-256 as an authentication method of MQTT 5.0 ([4.12]).

    CONNECT  client-first   ->
                            <-  AUTH 0x18  server-first
    AUTH 0x18 client-final  ->
                            <-  CONNACK, or AUTH 0x00 on an open connection: server-final

It costs the broker only a few hashes, so it runs in the loop. A wrong guess counts against its
address like a wrong password.
"""

from typing import TYPE_CHECKING, Protocol, final

from flowguard.access.rights import Principal
from flowguard.codec.packets import Connect
from flowguard.errors import UnprovedError
from flowguard.node.connect.accept_state import CheckOutcome
from flowguard.node.connect.authentication import Accept, Proceed, Refuse, Step
from flowguard.session.connection import ServerConnection

if TYPE_CHECKING:
    from flowguard.identity.scram import ScramServer


class ProofCounter(Protocol):
    """Counts the outcomes of proofs, per address."""

    def allows(self, connection: ServerConnection, now_s: float) -> bool:
        """True if the address may fail once more."""

    def judged(self, connection: ServerConnection, outcome: CheckOutcome, now_s: float) -> None:
        """Count an outcome."""


@final
class ScramExchange:
    """One authentication (`node.connect.authentication.Exchange`)."""

    def __init__(
        self,
        server: "ScramServer",
        counter: ProofCounter,
        connection: ServerConnection,
        connect: Connect,
    ) -> None:
        """`connect`: its user name, and one proved before, must match the user of this proof."""
        self._server = server
        self._counter = counter
        self._connection = connection
        before = connection.principal
        self._wanted = [name for name in (connect.username, before and before.user) if name]
        self._is_asked = False

    def step(self, data: bytes | None, now_s: float) -> Step:
        """Answer the first message, then judge the proof."""
        connection, counter = self._connection, self._counter
        if not counter.allows(connection, now_s):
            counter.judged(connection, CheckOutcome.LIMITED, now_s)
            return Refuse(why="too many wrong passwords from its address")
        try:
            if not self._is_asked:
                self._is_asked = True
                return Proceed(self._server.first(data))
            answer = self._server.final(data)
            if any([name != self._server.user for name in self._wanted]):
                raise UnprovedError("SCRAM: the proof is of another user")
        except UnprovedError as error:
            counter.judged(connection, CheckOutcome.WRONG, now_s)
            return Refuse(why=str(error))
        if connection.principal is None:
            connection.principal = Principal(self._server.user)
        counter.judged(connection, CheckOutcome.RIGHT, now_s)
        return Accept(answer)
