"""Peer: another node of the cluster, as the messages that are forwarded to it need it.

The store keeps one queue for each peer (`SinkKind.PEER`): the QoS 2 messages that this node owes to
it. The row of this queue has the epoch of its positions, and the mark: the highest address that was
taken from the peer. The epoch is the incarnation that made the queue. So (epoch, position) only
grows, also if a node restarts, loses its store, or runs on an older copy of it.
"""

from collections.abc import Iterator
from typing import Final, final

from flowguard.cluster import IncomingStream, OutgoingStream, OwedAddress
from flowguard.flow.windows.window import UNBOUNDED
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    PutSession,
    SessionRecord,
    SinkKind,
    key_of,
)
from flowguard.stores import Store
from flowguard.types import SESSION_NEVER_EXPIRES, Publish

PAGE: Final = 1_000
"""Number of owed messages that are read together."""
POSITION_BITS: Final = 10
"""Binary digits that the positions of a millisecond take; an incarnation is its start in these.

So positions have 53 binary digits until the year 2248. Redis calculates with no more: its functions
and its sorted sets have numbers of type double."""


@final
class Peer:
    __slots__ = (
        "epoch",
        "incoming",
        "is_behind",
        "is_known",
        "key",
        "met_incarnation",
        "name",
        "next_pos",
        "outgoing",
        "seen",
        "topics",
        "unordered",
        "unseen",
        "window",
    )

    def __init__(
        self, name: str, incarnation: int, outgoing: OutgoingStream, incoming: IncomingStream
    ) -> None:
        """`incarnation` is that of this node."""
        self.name = name
        self.key = key_of(SinkKind.PEER, name)
        self.outgoing = outgoing
        self.incoming = incoming
        self.epoch = incarnation
        self.next_pos = 1
        """Position of the next message that is owed."""
        self.is_known = False
        """True if the filters of the peer are known."""
        self.met_incarnation = 0
        """The incarnation to which all retained messages were sent last."""
        self.is_behind = False
        """True if it must get all retained messages of topics that this node owns."""
        self.topics: list[str] | None = None
        """Topics that remain to be sent to it, or None."""
        self.seen: set[str] | None = None
        """Topics that it has sent since it began to send all of its own."""
        self.unseen: list[str] | None = None
        """Topics that are still to be compared with those it has sent, or None."""
        self.unordered: dict[str, None] = {}
        """Topics of the peer whose retained messages it did not get, as its link was full."""
        self.window = UNBOUNDED
        """Cost units that a client may have in process with a message for it, or `UNBOUNDED` if
        they are not fewer than this node allows."""

    def put(self, mark: OwedAddress) -> PutSession:
        """Return the operation that stores the epoch and a mark."""
        row = f"{self.epoch} {mark[0]} {mark[1]}"
        return PutSession(self.key, SESSION_NEVER_EXPIRES, None, False, row)

    def owe(self, data: bytes) -> Append:
        """Return the operation by which this node owes a message."""
        pos = self.next_pos
        self.next_pos = pos + 1
        self.outgoing.reserve(len(data))
        return Append(self.key, pos, Delivery(Publish("", data, 2), 2, False, (), NEVER_S))

    def restore(self, record: SessionRecord) -> None:
        """Take over the epoch and the mark that the store has."""
        epoch, incarnation, position = map(int, record.user.split())
        # Peers may have taken more than this store knows, if it is an older copy.
        self.next_pos = max(record.next_pos, self.epoch << POSITION_BITS)
        self.epoch = epoch
        self.incoming.mark = (incarnation, position)

    def recover(self, store: Store) -> None:
        """Send again what is owed."""
        self.outgoing.recover(self._owed(store))

    def _owed(self, store: Store) -> Iterator[tuple[OwedAddress, bytes]]:
        after_pos = 0
        while entries := store.fetch(self.key, after_pos, PAGE):
            for entry in entries:
                after_pos = entry.pos
                assert entry.delivery is not None
                yield (self.epoch, after_pos), entry.delivery.message.payload
