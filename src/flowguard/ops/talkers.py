"""The clients with the most traffic, and those with the longest queues; each look samples some.

A node may have a million clients, and a look takes a millisecond at most. Up to LOOKS_MAX clients
are all sampled at each look. With more clients, a round takes several looks of LOOKS_MAX clients,
and the first few are remembered meanwhile.
"""

from collections.abc import Callable, Mapping
from heapq import nlargest
from typing import Final, TypeVar, final

from typing_extensions import TypedDict

from flowguard.node.node import Node
from flowguard.session.connection import ServerConnection
from flowguard.session.session import Session

LOOKS_MAX: Final = 2_000
SHOWN: Final = 8
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


@final
class Talkers:
    """Compares the counters of clients with those of the look before."""

    def __init__(self, node: Node) -> None:
        self._sessions = node.registry.sessions
        self._round: list[str] = []
        """Client ids of this round, and the number of them that are done."""
        self._done = 0
        self._noted: dict[str, tuple[int, int]] = {}
        """Bytes received and sent by the clients that the last look noted."""
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
        here = self._sessions
        return [each for name, each in self._talkers.items() if _connection(here.get(name))]

    def queues(self) -> list[LongQueue]:
        """Return the longest queues first."""
        return [each for name, each in self._queues.items() if name in self._sessions]

    def _next(self) -> list[str]:
        if self._done >= len(self._round):
            self._round, self._done = list(self._sessions), 0
        found = self._round[self._done : self._done + LOOKS_MAX]
        self._done += LOOKS_MAX
        return found

    def _counts(self, client_id: str) -> tuple[int, int]:
        connection = _connection(self._sessions.get(client_id))
        if connection is None:
            return 0, 0
        return connection.received_bytes, connection.outbound.outbox.sent_bytes

    def _compare(self, client_id: str, noted: tuple[int, int], passed_s: float) -> None:
        self._talkers.pop(client_id, None)
        self._queues.pop(client_id, None)
        session = self._sessions.get(client_id)
        if session is None:
            return
        counts = self._counts(client_id)
        # A connection that is younger than the note counts from its start.
        since = (0, 0) if counts[0] < noted[0] else noted
        received, sent = (
            (now - before) / passed_s for now, before in zip(counts, since, strict=True)
        )
        if received > 0 or sent > 0:
            self._talkers[client_id] = Talker(
                client_id=client_id, received_bytes_per_s=received, sent_bytes_per_s=max(0.0, sent)
            )
        if session.queue.count:
            self._queues[client_id] = LongQueue(
                client_id=client_id,
                messages=session.queue.count,
                bytes=session.queue.size_bytes,
                connected=session.connected,
            )


def _connection(session: Session | None) -> ServerConnection | None:
    if session is None or session.outbound is None:
        return None
    connection = session.outbound.connection
    assert isinstance(connection, ServerConnection)
    return connection


def _said(talker: Talker) -> float:
    return talker["received_bytes_per_s"] + talker["sent_bytes_per_s"]


def _waiting(queue: LongQueue) -> float:
    return queue["messages"]


def _most(found: dict[str, T], rank: Callable[[T], float]) -> dict[str, T]:
    return {each["client_id"]: each for each in nlargest(SHOWN, found.values(), rank)}
