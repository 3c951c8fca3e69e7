"""The clients of a node, and their sessions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Generic, NotRequired, TypeVar, final

from typing_extensions import TypedDict

from flowguard.ops.lists.pages import IdPattern, parameters
from flowguard.session.connection import ServerConnection
from flowguard.session.session import Session
from flowguard.types import PROTOCOLS

C = TypeVar("C")


class ClientState(StrEnum):
    CONNECTED = "connected"
    PAUSED = "paused"
    """Connected, and its packets wait."""
    ABSENT = "absent"
    """It has a session, and no connection."""
    CONNECTING = "connecting"
    """At a proxy: its CONNECT waits."""


class ListedClient(TypedDict):
    client_id: str
    state: str
    user: str
    """The user of the connection, or the one that the session belongs to, or ""."""
    address: str
    protocol: str
    subscriptions: NotRequired[int]
    queue_messages: NotRequired[int]
    inflight: int
    """Messages sent to it and unacknowledged; at a proxy, cost units of its packets in process."""


@final
class ClientListing(Generic[C]):
    """The list of clients, with its filters; an empty text stands for all."""

    def __init__(
        self,
        clients: Mapping[str, C],
        row_of: Callable[[C], ListedClient],
        query: Mapping[str, str],
    ) -> None:
        """`clients`: all clients of a broker or a proxy, by client id. Raises ValueError with the
        reason if a parameter of the query is wrong."""
        pattern, self._user, self._address, part, state = parameters(
            query, "id", "user", "address", "part", "state"
        )
        self._part = part.lower()
        """Part of the client id, the user or the address."""
        if state and state not in list(ClientState):
            raise ValueError(f"state: one of {', '.join(ClientState)}")
        self._ids = IdPattern("id", pattern)
        self._state = ClientState(state) if state else None
        """`CONNECTED` includes those that are paused."""
        self._clients = clients
        self._row_of = row_of

    def entries(self) -> Iterator[list[str]]:
        yield self._ids.ids_in(self._clients)

    def parts(self, entry: str) -> Sequence[C]:
        return self._ids.find(self._clients, entry)

    def row(self, part: C) -> ListedClient | None:
        row, state = self._row_of(part), self._state
        is_wanted = (
            (not self._user or row["user"] == self._user)
            and row["address"].startswith(self._address)
            and (not self._part or self._part in _text(row))
            and (
                state is None
                or row["state"] == state
                or (state is ClientState.CONNECTED and row["state"] == ClientState.PAUSED)
            )
        )
        return row if is_wanted else None


def _text(row: ListedClient) -> str:
    return "\n".join((row["client_id"], row["user"], row["address"])).lower()


def row_of(session: Session) -> ListedClient:
    state, user, address, protocol = ClientState.ABSENT, session.user, "", ""
    if session.outbound is not None:
        connection = session.outbound.connection
        assert isinstance(connection, ServerConnection)
        state = ClientState.PAUSED if connection.pauses() else ClientState.CONNECTED
        user = connection.tenant or user
        peer = getattr(connection.transport, "peer", None)
        address = "" if peer is None else peer()
        protocol = PROTOCOLS.get(connection.version, "3.1")
    return ListedClient(
        client_id=session.client_id,
        state=str(state),
        user=user,
        address=address,
        protocol=protocol,
        subscriptions=len(session.subscriptions),
        queue_messages=session.queue.count,
        inflight=len(session.inflight.messages),
    )
