"""The invariants: publications, and the sessions that must get them.

I1  an acknowledged message is in the queue of each session that was subscribed at its PUBLISH
I2  first deliveries keep the order of each publisher per topic, QoS and session; for sessions that
    are subscribed from the PUBLISH on, since a publisher may repeat a message that it sent before
I3  a QoS 2 message enters the queue of a session once
I5  no two entries of a session have the same position, from which packet ids follow
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NoReturn

from flowguard.routing.filters import matches


@dataclass(eq=False)
class Publication:
    """One application message of one publisher."""

    publisher: str
    number: int
    topic: str
    qos: int
    expected: set[str]
    """Sessions that must get it."""
    queued: Counter[str] = field(default_factory=Counter)
    """Committed queue entries by session."""
    is_acknowledged: bool = False

    @property
    def data(self) -> bytes:
        return f"{self.publisher} {self.number} {self.topic} {self.qos}".encode()


class Ledger:
    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self.is_broken = False
        self.publications: dict[bytes, Publication] = {}
        self.subscriptions: dict[str, set[str]] = {}
        """Filters by session, those with a SUBACK and without a later UNSUBSCRIBE."""
        self._last: dict[tuple[str, str, str, int], int] = {}
        """Highest number by session, publisher, topic and QoS."""
        self._positions: dict[str, int] = {}

    def fail(self, why: str) -> NoReturn:
        self.is_broken = True
        raise AssertionError(why)

    def published(self, publisher: str, number: int, topic: str, qos: int) -> Publication:
        expected = {session for session in self.subscriptions if self._matches(session, topic)}
        publication = Publication(publisher, number, topic, qos, expected)
        self.publications[publication.data] = publication
        self.counts["messages published"] += 1
        return publication

    def unsubscribing(self, session: str, filter: str) -> None:
        """From now on its messages need not reach the session, unless another filter matches."""
        self.subscriptions[session].discard(filter)
        for each in self.publications.values():
            if not each.queued[session] and not self._matches(session, each.topic):
                each.expected.discard(session)

    def queued(self, session: str, position: int, data: bytes) -> None:
        """An entry of a queue is committed."""
        each = self.publications[data]
        self.counts["queue entries committed"] += 1
        if position <= self._positions.get(session, 0):
            self.fail(f"I5: position {position} of {session} is used twice")
        self._positions[session] = position
        each.queued[session] += 1
        if each.queued[session] > 1:
            self.counts["QoS 1 messages queued again"] += 1
            if each.qos == 2:
                self.fail(f"I3: {data!r} is in the queue of {session} twice")
            return
        if session not in each.expected:
            return
        key = (session, each.publisher, each.topic, each.qos)
        if each.number < self._last.get(key, 0):
            self.fail(f"I2: {data!r} is in the queue of {session} after {self._last[key]}")
        self._last[key] = each.number

    def acknowledged(self, publication: Publication) -> None:
        """A PUBACK or PUBREC was received."""
        publication.is_acknowledged = True
        self.counts["messages acknowledged"] += 1
        if publication.qos == 1:
            self._check(publication)

    def check_all(self) -> None:
        for each in self.publications.values():
            if each.is_acknowledged:
                self._check(each)

    def _check(self, publication: Publication) -> None:
        for session in publication.expected:
            if not publication.queued[session]:
                self.fail(f"I1: {publication.data!r} is acknowledged, and {session} has it not")

    def _matches(self, session: str, topic: str) -> bool:
        return any(matches(each, topic) for each in self.subscriptions[session])
