"""The invariants of a cluster whose shards change owners, beside those of links.

Queue entries are counted when a commit returns, or when the next owner reads them, whichever comes
first. What a fail-over of Redis may have lost is in doubt: it may be missing only if one of the
processes that had to write it again has died, or has lost its shard.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.flowguard.cluster.clients import Packet, Publisher
from tests.flowguard.cluster.leases.shard_node import Entry
from tests.flowguard.cluster.ledger import Ledger, Publication


@dataclass
class Doubt:
    """A fail-over that has lost a tail."""

    entries: set[tuple[str, int]]
    publications: set[bytes]
    filters: set[tuple[str, str]]
    free: dict[str, set[int]]
    """Packet ids that each publisher did not use at that time."""
    is_excused: Callable[[], bool]
    """True if an owner that had to write the tail again was not able to."""


@dataclass
class Marked:
    """What has happened since the last snapshot of the replica."""

    entries: set[tuple[str, int]] = field(default_factory=set)
    publications: set[bytes] = field(default_factory=set)
    filters: set[tuple[str, str]] = field(default_factory=set)


class LeaseLedger(Ledger):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__(counts)
        self._entries: dict[str, dict[int, bytes]] = {}
        self._tail = Marked()
        self._doubts: list[Doubt] = []
        self.released: dict[str, set[int]] = {}
        """Packet ids by publisher that are free for it, and that a lost tail has brought back. The
        broker takes the next message with one of them for the last one."""
        self._taken_for_another: set[bytes] = set()

    # --- events ----------------------------------------------------------------------------------

    def published(self, publisher: str, number: int, topic: str, qos: int) -> Publication:
        publication = super().published(publisher, number, topic, qos)
        self._tail.publications.add(publication.data)
        return publication

    def acknowledged(self, publication: Publication) -> None:
        self._tail.publications.add(publication.data)
        super().acknowledged(publication)

    def subscribed(self, session: str, filter: str) -> None:
        self._tail.filters.add((session, filter))

    def committed(self, entries: Iterable[Entry]) -> None:
        """A commit has returned."""
        for session, pos, data in entries:
            known = self._entries.setdefault(session, {})
            if pos in known and known[pos] != data:
                self.fail(f"I5: position {pos} of {session} has {known[pos]!r} and {data!r}")
            if pos not in known:
                known[pos] = data
                self._tail.entries.add((session, pos))
                self._tail.publications.add(data)
                self._queued(session, pos, data)

    def _queued(self, session: str, pos: int, data: bytes) -> None:
        is_excused = self._excuses_publication(data)
        if is_excused:
            self.publications[data].expected.discard(session)
            self.publications[data].queued[session] = 0
        self.queued(session, pos, data)

    def read(
        self, entries: Iterable[Entry], filters: dict[str, set[str]], clients: Iterable[str]
    ) -> None:
        """The next owner of a shard has read these queue entries and filters of its clients, or an
        earlier one, which a fail-over has brought back, has them."""
        found = {(session, pos): data for session, pos, data in entries}
        for client in clients:
            known = self._entries.setdefault(client, {})
            for pos in [pos for pos in known if found.get((client, pos)) != known[pos]]:
                self._missing(client, pos, known.pop(pos))
            self._positions[client] = max(known, default=0)
            lacking = self.subscriptions.get(client, set()) - filters[client]
            for filter in lacking:
                self._lost_filter(client, filter)
        self.committed(entries)

    def inbound(self, publisher: "LeasePublisher", ids: Iterable[int]) -> None:
        """The next owner has read the packet ids of QoS 2 messages of a publisher."""
        there, name = set(ids), publisher.name
        free = there - set(publisher.outstanding)
        doubts = [each for each in self._doubts if each.is_excused()]
        if free and not doubts:
            self.fail(f"I3: {name} has released the packet ids {free}")
        known = self.released.get(name, set()).union(*(each.free[name] for each in doubts))
        self.released[name] = free | (known & there)

    def taken_for_another(self, publication: Publication) -> None:
        self.counts["QoS 2 messages taken for another, after a lost tail"] += 1
        self._taken_for_another.add(publication.data)

    def _missing(self, session: str, pos: int, data: bytes) -> None:
        doubts = [doubt for doubt in self._doubts if (session, pos) in doubt.entries]
        if not any(doubt.is_excused() for doubt in doubts):
            self.fail(f"I1: {data!r} was committed, and is not in the queue of {session}")
        self.counts["committed entries lost with a tail"] += 1
        each = self.publications[data]
        each.queued[session] -= 1
        each.expected.discard(session)

    def _lost_filter(self, session: str, filter: str) -> None:
        doubts = [doubt for doubt in self._doubts if (session, filter) in doubt.filters]
        if not any(doubt.is_excused() for doubt in doubts):
            self.fail(f"I1: {filter!r} has a SUBACK, and {session} has it not")
        self.unsubscribing(session, filter)
        for each in self.publications.values():
            if not self._matches(session, each.topic):
                each.expected.discard(session)

    # --- fail-over -------------------------------------------------------------------------------

    def snapshot(self) -> None:
        self._tail = Marked()

    def lost_tail(
        self,
        is_excused: Callable[[], bool],
        under_way: set[tuple[str, int]],
        asked: set[tuple[str, str]],
        publishers: Iterable[Publisher],
    ) -> None:
        """`under_way` are entries, and `asked` filters, whose answers may be on their way, as may
        be those of messages."""
        tail, self._tail = self._tail, Marked()
        tail.entries |= under_way
        tail.filters |= asked
        pending = {each.data for each in self.publications.values() if not each.is_acknowledged}
        publications = tail.publications | pending
        free = {each.name: set(range(1, 99)) - set(each.outstanding) for each in publishers}
        self._doubts.append(Doubt(tail.entries, publications, tail.filters, free, is_excused))

    def _excuses_publication(self, data: bytes) -> bool:
        return data in self._taken_for_another or any(
            data in each.publications and each.is_excused() for each in self._doubts
        )

    def _check(self, publication: Publication) -> None:
        if not self._excuses_publication(publication.data):
            super()._check(publication)


class LeasePublisher(Publisher):
    """A publisher whose session may go back to an older state."""

    _ledger: LeaseLedger

    def receive(self, packet: Packet) -> None:
        kind, packet_id, _ = packet
        released = self._ledger.released.get(self.name, set())
        if kind == "pubrec" and packet_id in released:
            self._ledger.taken_for_another(self.outstanding[packet_id])
        elif kind == "pubcomp":
            released.discard(packet_id)
        super().receive(packet)
