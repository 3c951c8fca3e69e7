"""The layouts of queues in Redis: one stream, or references and a string per message.

`stream`  entries by position, in `<prefix>:{<bucket>}:q:<client id>`; the name of the only field is
          the topic, which a stream stores once for consecutive entries
`zset`    the published schema: there a sorted set of references, `<position>:<size>` by position,
          and the entries in strings that expire with their message
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, final

from flowguard.records import Delivery, QueueEntry, packet_id_of
from flowguard.stores.entries import decode_entry, encode_entry
from flowguard.stores.redis.connection.packing import Words
from flowguard.stores.redis.keys import KeyNames
from flowguard.stores.redis.lua.functions import COMMIT_STREAM, COMMIT_ZSET
from flowguard.types import Publish

Ask = Callable[[Sequence[Words]], list[Any]]


class QueueLayout(Protocol):
    commit: bytes
    """Name of the function that commits."""
    count: bytes
    """Name of the command that counts a queue's entries."""

    def label(self, delivery: Delivery) -> bytes | int:
        """Return the word that the function takes beside the value of an entry."""

    def value(self, delivery: Delivery) -> bytes:
        """Return an entry."""

    def read(
        self, ask: Ask, names: KeyNames, client_id: bytes, after_pos: int, last_pos: int, count: int
    ) -> tuple[list[QueueEntry], list[bytes]]:
        """Return at most `count` entries after a position, ascending, and the released positions
        with their packet identifiers as a flat list."""


@final
class StreamQueues:
    def __init__(self) -> None:
        self.commit = COMMIT_STREAM
        self.count = b"XLEN"

    def label(self, delivery: Delivery) -> bytes | int:
        """Return the topic."""
        return delivery.message.topic.encode()

    def value(self, delivery: Delivery) -> bytes:
        return encode_entry(delivery, False)

    def read(
        self, ask: Ask, names: KeyNames, client_id: bytes, after_pos: int, last_pos: int, count: int
    ) -> tuple[list[QueueEntry], list[bytes]]:
        _, queue, released = names.session(client_id)
        rows, flat = ask(
            [
                (b"XRANGE", queue, after_pos + 1, last_pos, b"COUNT", count),
                (b"HGETALL", released),
            ]
        )
        found = []
        for name, (topic, value) in rows:
            delivery = decode_entry(value, topic.decode())
            pos = int(name.partition(b"-")[0])
            found.append(QueueEntry(pos, packet_id_of(pos, delivery.qos), delivery))
        return found, flat


@final
class ZsetQueues:
    def __init__(self) -> None:
        self.commit = COMMIT_ZSET
        self.count = b"ZCARD"

    def label(self, delivery: Delivery) -> bytes | int:
        """Return the size of a delivery."""
        return delivery.size_bytes

    def value(self, delivery: Delivery) -> bytes:
        return encode_entry(delivery)

    def read(
        self, ask: Ask, names: KeyNames, client_id: bytes, after_pos: int, last_pos: int, count: int
    ) -> tuple[list[QueueEntry], list[bytes]]:
        """See `QueueLayout`. If Redis has deleted an expired message, its entry is returned as
        expired; the broker counts it, and settles the reference."""
        _, queue, released = names.session(client_id)
        limits = (after_pos + 1, last_pos, b"LIMIT", 0, count)
        references, flat = ask([(b"ZRANGEBYSCORE", queue, *limits), (b"HGETALL", released)])
        if not references:
            return [], flat
        found = [tuple(map(int, reference.split(b":"))) for reference in references]
        (values,) = ask([(b"MGET", *(names.message(client_id, pos) for pos, _ in found))])
        entries = [
            _expired(pos, size_bytes) if value is None else _entry(pos, value)
            for (pos, size_bytes), value in zip(found, values, strict=True)
        ]
        return entries, flat


LAYOUTS: Final[dict[str, QueueLayout]] = {"stream": StreamQueues(), "zset": ZsetQueues()}


def _entry(pos: int, value: bytes) -> QueueEntry:
    delivery = decode_entry(value)
    return QueueEntry(pos, packet_id_of(pos, delivery.qos), delivery)


def _expired(pos: int, size_bytes: int) -> QueueEntry:
    """Return an expired entry for a deleted message, with its position and size."""
    delivery = Delivery(Publish("", b"", 1), 1, False, (), 0.0)
    delivery.size_bytes = size_bytes
    return QueueEntry(pos, packet_id_of(pos, 1), delivery)
