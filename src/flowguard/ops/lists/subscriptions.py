"""Filters of clients, and the clients that get the messages of a topic."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, final

from typing_extensions import TypedDict

from flowguard.node.node import Node
from flowguard.ops.lists.clients import row_of
from flowguard.ops.lists.pages import IdPattern, parameters
from flowguard.routing import has_wildcard
from flowguard.session.session import Session

PIECE: Final = 500
"""Names of subscribers that are noted in one step."""


class ListedSubscription(TypedDict):
    client_id: str
    state: str
    filter: str
    """As the client sent it, with `$share/` and name."""
    qos: int
    no_local: bool
    identifier: int
    """Subscription identifier, or 0 without one."""


class ListedReceiver(TypedDict):
    """A client that gets the messages of a topic, by one filter; a client may have several."""

    client_id: str
    state: str
    filter: str
    """As the client sent it. One member of each shared subscription gets a message."""
    qos: int
    """Maximum QoS."""
    client_class: str
    """"application" or "device"."""
    queue_messages: int
    may_receive: bool
    """False if the rules keep the messages of this topic from the client."""


class _Subscription(NamedTuple):
    session: Session
    filter: str


@final
class SubscriptionListing:
    """The filters of all clients."""

    def __init__(self, node: Node, query: Mapping[str, str]) -> None:
        """Raises ValueError with the reason if a parameter is wrong."""
        client, filter = parameters(query, "client", "filter")
        self._sessions = node.registry.sessions
        self._ids = IdPattern("client", client)
        self._filter = filter
        """The only filter that is wanted, or "" for all."""

    def entries(self) -> Iterator[list[str]]:
        yield self._ids.ids_in(self._sessions)

    def parts(self, entry: str) -> Sequence[_Subscription]:
        for session in self._ids.find(self._sessions, entry):
            if not self._filter:
                return [_Subscription(session, filter) for filter in session.subscriptions]
            if self._filter in session.subscriptions:
                return [_Subscription(session, self._filter)]
        return ()

    def row(self, part: _Subscription) -> ListedSubscription | None:
        session, filter = part
        options = session.subscriptions.get(filter)
        if options is None:
            return None
        return ListedSubscription(
            client_id=session.client_id,
            state=row_of(session)["state"],
            filter=filter,
            qos=options.qos,
            no_local=options.no_local,
            identifier=options.identifier,
        )


@final
class ReceiverListing:
    """The clients that would get a message, found by the index that routes it."""

    def __init__(self, node: Node, query: Mapping[str, str]) -> None:
        """Raises ValueError with the reason if a parameter is wrong."""
        (topic,) = parameters(query, "topic")
        if not topic or has_wildcard(topic):
            raise ValueError("topic: the topic of a message, without wildcards")
        self._topic = topic
        self._sessions = node.registry.sessions
        self._table = node.router.table

    def entries(self) -> Iterator[list[tuple[str, str]]]:
        """Yield all names at the end, so that the list keeps no session that ends."""
        found: list[tuple[str, str]] = []
        for filter, sessions in self._table.subscribers(self._topic):
            for start in range(0, len(sessions), PIECE):
                piece = sessions[start : start + PIECE]
                found += [(session.client_id, filter) for session in piece]
                yield []
        yield found

    def parts(self, entry: tuple[str, str]) -> Sequence[_Subscription]:
        client_id, filter = entry
        session = self._sessions.get(client_id)
        return () if session is None else (_Subscription(session, filter),)

    def row(self, part: _Subscription) -> ListedReceiver | None:
        session, filter = part
        options, rights = session.subscriptions.get(filter), session.rights
        if options is None:
            return None
        return ListedReceiver(
            client_id=session.client_id,
            state=row_of(session)["state"],
            filter=filter,
            qos=options.qos,
            client_class="application" if session.is_application else "device",
            queue_messages=session.queue.count,
            may_receive=rights is None or rights.may_receive(self._topic),
        )
