"""ApplicationQueue: the queue of one application, in a topic of its own.

A record is u8 version, u64 position, u64 size of all records so far, u64 highest owed position so
far (`records.Forward`), the entry (`stores.entries`). So the last record has the totals of the
session. Offsets follow positions without a gap, unless a producer had to repeat a batch; so a few
pairs are enough to compute one from the other.
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
    """Size of all records up to this one."""
    owed_pos: int
    """The highest owed position that was forwarded up to this record."""
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
        """True if a record after `until_pos` was seen."""

    @property
    def is_full(self) -> bool:
        return self.has_passed or self.count_left <= 0 or self.bytes_left <= 0


@final
class ApplicationQueue:
    """The state of one topic in memory."""

    def __init__(self, topic: str, window: AckWindow) -> None:
        self.topic = topic
        self.window = window
        self.total_bytes = window.floor_bytes
        """Size of all records that were ever appended."""
        self.owed_pos = 0
        """The highest owed position that was forwarded."""
        self.unsaved_count = 0
        """Number of changes of the window since its last commit."""
        self.sizes: dict[int, int] = {}
        """Sizes of unsettled records that were read, in bytes, by offset."""
        self._positions: list[int] = []
        self._offsets: list[int] = []
        """First offset of each run of positions without a gap; `_positions` has its position."""

    @property
    def next_pos(self) -> int:
        return self.window.next_pos

    def appended(self, pos: int, offset: int, size_bytes: int) -> bool:
        """Note the record at `offset` as the last one. Return True if there are records of a failed
        attempt between it and the one before; they become settled."""
        window = self.window
        first, window.end = window.end, offset + 1
        for each in range(first, offset):
            window.settle(each, 0)
        self.note(pos, offset)
        window.next_pos = max(window.next_pos, pos + 1)
        self.total_bytes += size_bytes
        return offset > first

    def start_over(self, offset: int) -> int:
        """Restart at `offset`, as all records are deleted. Return the number of unsettled ones."""
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
        """Note the position of a record. Calls are in ascending order."""
        if not self._positions or pos - self._positions[-1] != offset - self._offsets[-1]:
            self._positions.append(pos)
            self._offsets.append(offset)

    def forget_positions(self) -> None:
        self._positions.clear()
        self._offsets.clear()

    def offset_after(self, pos: int) -> int:
        """Return the offset of the first record with a higher position, or the end."""
        index = bisect_right(self._positions, pos)
        following = self._offsets[index] if index < len(self._offsets) else self.window.end
        if not index:
            return max(following, self.window.floor)
        inside = self._offsets[index - 1] + pos - self._positions[index - 1] + 1
        return max(min(inside, following), self.window.floor)

    def offset_of(self, pos: int) -> int | None:
        """Return the offset of the record at a position, or None if there is no such record."""
        index = bisect_right(self._positions, pos)
        if not index:
            return None
        offset = self._offsets[index - 1] + pos - self._positions[index - 1]
        following = self._offsets[index] if index < len(self._offsets) else self.window.end
        return offset if offset < following else None

    def size_of(self, offset: int) -> int | None:
        """Return the size in bytes of a record that was read or released, or None if unknown."""
        released = self.window.released.get(offset)
        return self.sizes.get(offset) if released is None else released

    def settle(self, offset: int, size_bytes: int) -> None:
        self.window.settle(offset, size_bytes)
        self.sizes.pop(offset, None)

    def fill(self, page: QueuePage, records: Iterable[tuple[int, bytes]]) -> None:
        """Add the unsettled ones of `records` to a page, in order. Raises CorruptionError."""
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
        """Restore positions and sizes from records, which ascend from the floor.

        If several records have the same position, the first unsettled one counts, else the first.
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
