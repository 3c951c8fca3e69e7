"""ApplicationQueue: the queue of one application, in a topic of its own.

A record is u8 version, u64 position, u64 sizes of all records so far, u64 the highest owed position
so far (`records.Forward`), the entry (`stores.entries`): the last one says what the record of the
session has to. Offsets follow positions without a gap, but where a producer had to repeat itself;
so a few pairs tell one from the other.
"""

from bisect import bisect_right
from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple, final

from flowguard.errors import CorruptionError
from flowguard.records import Delivery, QueueEntry, packet_id_of
from flowguard.stores.entries import decode_entry, encode_entry
from flowguard.stores.kafka.window import AckWindow

_HEAD: Final = Struct(">BQQQ")
_VERSION: Final = 2


class QueueRecord(NamedTuple):
    pos: int
    total_bytes: int
    """Sizes of all records up to this one."""
    owed_pos: int
    """The highest that was forwarded up to this one."""
    delivery: Delivery


def encode_record(pos: int, total_bytes: int, owed_pos: int, delivery: Delivery) -> bytes:
    return _HEAD.pack(_VERSION, pos, total_bytes, owed_pos) + encode_entry(delivery)


def decode_record(value: bytes) -> QueueRecord:
    """Raises CorruptionError."""
    try:
        version, pos, total_bytes, owed_pos = _HEAD.unpack_from(value)
    except StructError as error:
        raise CorruptionError("a record of a topic is cut short") from error
    if version != _VERSION:
        raise CorruptionError(f"there is no record of version {version}")
    return QueueRecord(pos, total_bytes, owed_pos, decode_entry(value[_HEAD.size :]))


@final
class QueuePage:
    """The next messages of a client, bounded by number, by bytes and by position."""

    def __init__(self, count_max: int, bytes_max: int, until_pos: int) -> None:
        self.entries: list[QueueEntry] = []
        self.count_left = count_max
        self.bytes_left = bytes_max
        self.until_pos = until_pos
        self.has_passed = False
        """Whether a record behind that position was seen."""

    @property
    def is_full(self) -> bool:
        return self.has_passed or self.count_left <= 0 or self.bytes_left <= 0


@final
class ApplicationQueue:
    """Everything the store knows of one topic."""

    def __init__(self, topic: str, window: AckWindow) -> None:
        self.topic = topic
        self.window = window
        self.total_bytes = window.floor_bytes
        """Sizes of all that was ever appended."""
        self.owed_pos = 0
        """The highest owed position that was forwarded."""
        self.unsaved_count = 0
        """Changes of the window since it was committed."""
        self.sizes: dict[int, int] = {}
        """Sizes of records that were read and not settled, by offset, bytes."""
        self._positions: list[int] = []
        self._offsets: list[int] = []
        """Where a run of positions without a gap begins."""

    @property
    def next_pos(self) -> int:
        return self.window.next_pos

    def appended(self, pos: int, offset: int, size_bytes: int) -> bool:
        """The record at `offset` is at the end; whether there are others between it and the one
        before it, of an attempt that failed: they are settled."""
        window = self.window
        first, window.end = window.end, offset + 1
        for each in range(first, offset):
            window.settle(each, 0)
        self.note(pos, offset)
        window.next_pos = max(window.next_pos, pos + 1)
        self.total_bytes += size_bytes
        return offset > first

    def start_over(self, offset: int) -> int:
        """Begin again at `offset`, as all records are gone; return how many were unsettled."""
        window = self.window
        lost = window.unsettled_count
        window.floor = window.end = offset
        window.floor_bytes = self.total_bytes
        window.settled.clear()
        window.released.clear()
        self.sizes.clear()
        self.forget_positions()
        self.unsaved_count += 1
        return lost

    def note(self, pos: int, offset: int) -> None:
        """The position of a record; in ascending order."""
        if not self._positions or pos - self._positions[-1] != offset - self._offsets[-1]:
            self._positions.append(pos)
            self._offsets.append(offset)

    def forget_positions(self) -> None:
        self._positions.clear()
        self._offsets.clear()

    def offset_after(self, pos: int) -> int:
        """The offset of the first record with a higher position, or the end."""
        index = bisect_right(self._positions, pos)
        following = self._offsets[index] if index < len(self._offsets) else self.window.end
        if not index:
            return max(following, self.window.floor)
        inside = self._offsets[index - 1] + pos - self._positions[index - 1] + 1
        return max(min(inside, following), self.window.floor)

    def offset_of(self, pos: int) -> int | None:
        """The offset of the record at a position; None: there is none."""
        index = bisect_right(self._positions, pos)
        if not index:
            return None
        offset = self._offsets[index - 1] + pos - self._positions[index - 1]
        following = self._offsets[index] if index < len(self._offsets) else self.window.end
        return offset if offset < following else None

    def size_of(self, offset: int) -> int | None:
        """The size of a record that was read or released, bytes; None: it is not known."""
        released = self.window.released.get(offset)
        return self.sizes.get(offset) if released is None else released

    def settle(self, offset: int, size_bytes: int) -> None:
        self.window.settle(offset, size_bytes)
        self.sizes.pop(offset, None)

    def fill(self, page: QueuePage, records: Iterable[tuple[int, bytes]]) -> None:
        """Add the unsettled ones of `records`, ascending by offset. Raises CorruptionError."""
        window = self.window
        for offset, value in records:
            if page.is_full:
                return
            if offset >= window.end or offset in window.settled:
                continue
            record = decode_record(value)
            if record.pos > page.until_pos:
                page.has_passed = True
                return
            delivery = record.delivery
            self.sizes[offset] = delivery.size_bytes
            page.count_left -= 1
            if offset in window.released:
                page.entries.append(QueueEntry(record.pos, packet_id_of(record.pos, 2), None))
                continue
            packet_id = packet_id_of(record.pos, delivery.qos)
            page.entries.append(QueueEntry(record.pos, packet_id, delivery))
            page.bytes_left -= delivery.size_bytes

    def restore(self, records: Iterable[tuple[int, QueueRecord]]) -> None:
        """Positions and sizes from records, ascending from the floor.

        Of several with the same position the first that is not settled counts, or else the first.
        """
        window = self.window
        self.forget_positions()
        counted: dict[int, int] = {}
        """Offsets by position."""
        for offset, record in records:
            before = counted.get(record.pos)
            is_settled = offset in window.settled
            if before is not None and (is_settled or before not in window.settled):
                window.settle(offset, 0)
                continue
            if before is not None:
                window.settled[before] = 0
            counted[record.pos] = offset
            if is_settled:
                window.settled[offset] = record.delivery.size_bytes
                continue
            self.note(record.pos, offset)
            if offset in window.released:
                window.released[offset] = record.delivery.size_bytes
