"""The clients with the most traffic, and those with the longest queues; each look samples some.

A node may have a million clients, and a look takes a millisecond at most. Up to LOOKS_MAX clients
are all sampled at each look. With more clients, a round takes several looks of LOOKS_MAX clients,
and the first few are remembered meanwhile.
"""

from collections.abc import Callable, Mapping
from heapq import nlargest
from typing import Final, Generic, NamedTuple, TypeVar, final

from typing_extensions import TypedDict

from flowguard.session.connection import ServerConnection
from flowguard.session.session import Session

LOOKS_MAX: Final = 2_000
SHOWN: Final = 8
C = TypeVar("C")
T = TypeVar("T", "Talker", "LongQueue")


class Talker(TypedDict):
    client_id: str
    received_bytes_per_s: float
    sent_bytes_per_s: float


class LongQueue(TypedDict):
    client_id: str
    messages: int
    bytes: int
    connected: bool


class ClientTraffic(NamedTuple):
    """The counters of a client that are compared."""

    is_connected: bool
    received_bytes: int
    sent_bytes: int
    queued: int
    """Messages that wait, with their bytes."""
    queued_bytes: int


@final
class Talkers(Generic[C]):
    """Compares the counters of clients with those of the look before."""

    def __init__(self, clients: Mapping[str, C], traffic_of: Callable[[C], ClientTraffic]) -> None:
        """`clients`: all clients of a broker or a proxy, by client id."""
        self._clients = clients
        self._traffic_of = traffic_of
        self._round: list[str] = []
        """Client ids of this round, and the number of them that are done."""
        self._done = 0
        self._noted: dict[str, ClientTraffic] = {}
        """ClientTraffic of the clients that the last look noted."""
        self._noted_s = 0.0
        self._talkers: dict[str, Talker] = {}
        self._queues: dict[str, LongQueue] = {}

    def look(self, now_s: float) -> None:
        """Measure the traffic of the clients that the last look noted, and note the next
        clients."""
        passed_s = now_s - self._noted_s
        if passed_s > 0:
            for client_id, noted in self._noted.items():
                self._compare(client_id, noted, passed_s)
        self._noted = {client_id: self._counts(client_id) for client_id in self._next()}
        self._noted_s = now_s
        self._talkers = _most(self._talkers, _said)
        self._queues = _most(self._queues, _waiting)

    def shown(self) -> Mapping[str, object]:
        return {"talkers": self.talkers(), "queues": self.queues()}

    def talkers(self) -> list[Talker]:
        """Return connected clients with traffic, most traffic first."""
        return [each for name, each in self._talkers.items() if self._counts(name).is_connected]

    def queues(self) -> list[LongQueue]:
        """Return the longest queues first."""
        return [each for name, each in self._queues.items() if name in self._clients]

    def _next(self) -> list[str]:
        if self._done >= len(self._round):
            self._round, self._done = list(self._clients), 0
        found = self._round[self._done : self._done + LOOKS_MAX]
        self._done += LOOKS_MAX
        return found

    def _counts(self, client_id: str) -> ClientTraffic:
        client = self._clients.get(client_id)
        return NONE if client is None else self._traffic_of(client)

    def _compare(self, client_id: str, noted: ClientTraffic, passed_s: float) -> None:
        self._talkers.pop(client_id, None)
        self._queues.pop(client_id, None)
        if client_id not in self._clients:
            return
        now = self._counts(client_id)
        # A connection that is younger than the note counts from its start.
        since = NONE if now.received_bytes < noted.received_bytes else noted
        received = (now.received_bytes - since.received_bytes) / passed_s
        sent = (now.sent_bytes - since.sent_bytes) / passed_s
        if received > 0 or sent > 0:
            self._talkers[client_id] = Talker(
                client_id=client_id, received_bytes_per_s=received, sent_bytes_per_s=max(0.0, sent)
            )
        if now.queued:
            self._queues[client_id] = LongQueue(
                client_id=client_id,
                messages=now.queued,
                bytes=now.queued_bytes,
                connected=now.is_connected,
            )


def traffic_of(session: Session) -> ClientTraffic:
    received_bytes = sent_bytes = 0
    if session.outbound is not None:
        connection = session.outbound.connection
        assert isinstance(connection, ServerConnection)
        received_bytes = connection.received_bytes
        sent_bytes = connection.outbound.outbox.sent_bytes
    queue = session.queue
    return ClientTraffic(
        session.connected, received_bytes, sent_bytes, queue.count, queue.size_bytes
    )


def _said(talker: Talker) -> float:
    return talker["received_bytes_per_s"] + talker["sent_bytes_per_s"]


def _waiting(queue: LongQueue) -> float:
    return queue["messages"]


def _most(found: dict[str, T], rank: Callable[[T], float]) -> dict[str, T]:
    return {each["client_id"]: each for each in nlargest(SHOWN, found.values(), rank)}


NONE: Final = ClientTraffic(False, 0, 0, 0, 0)
