"""GroupWindows: the state of one consumer: offsets that are read, unsettled and settled.

A message's position is made of topic, partition and offset, so it is the same in every process and
never changes. A recreated topic has the same offsets, but another id. So a position has a tag that
is computed from the id, and a commit has the id. Operations on a deleted topic are ignored.
Independent of the driver; the rest of a consumer is in `consumer`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple, final

from flowguard.stores.kafka.groups.capacity import GroupRoom, GroupShare
from flowguard.stores.kafka.window import METADATA_MAX as WINDOW_MAX
from flowguard.stores.kafka.window import AckWindow

STRIDE: Final = 1_009
"""Maximum number of partitions; prime, so that packet identifiers of positions differ."""
OFFSETS: Final = 2**40
"""Maximum offset of a partition."""
TAGS: Final = 2**12
METADATA_MAX: Final = WINDOW_MAX - 33
"""Maximum length of a committed window in characters, without the topic's id and a blank."""
LATE_MAX: Final = 10_000
"""Maximum number of settled positions in memory whose partition is not assigned."""
GAP_MAX: Final = 1_000
"""Maximum gap of offsets that counts as single missing records. A longer gap means that retention
has deleted all records before its end."""
AHEAD_MAX: Final = 100_000
"""Maximum number of records of a partition that are read beyond its first unsettled one. Settled
ones among them need memory, and are in every commit as far as they fit. A subscriber that holds
one message for that long delays all others of the partition."""
SEEN_MAX: Final = 1_000
"""Number of record ids per partition in memory; a repeated batch follows soon."""


class RecordPlace(NamedTuple):
    tag: int
    """Tag of the present incarnation of the topic."""
    partition: int
    offset: int


def pos_of(place: RecordPlace) -> int:
    return (place.tag * OFFSETS + place.offset) * STRIDE + place.partition + 1


def place_of(pos: int) -> RecordPlace:
    where, partition = divmod(pos - 1, STRIDE)
    tag, offset = divmod(where, OFFSETS)
    return RecordPlace(tag, partition, offset)


def tag_of(topic_id: bytes) -> int:
    """Return a number below `TAGS`."""
    return int.from_bytes(blake2b(topic_id, digest_size=4).digest()) % TAGS


class Found(NamedTuple):
    """A newly assigned partition, as Kafka has it."""

    window: AckWindow
    """The window that the last owner has committed."""
    start: int
    """The first offset of the partition."""
    end: int
    """The offset after the last record."""


class RecordId(NamedTuple):
    """The writer of a record and its number there; a repeated record has the same id."""

    writer: bytes
    number: int


@final
@dataclass(slots=True)
class _Part:
    tag: int
    window: AckWindow
    next_offset: int
    """Offset of the record to be read next."""
    until_offset: int
    """End of the partition at its assignment."""
    here: dict[int, int] = field(default_factory=dict)
    """Sizes of records that were read and are not settled, in bytes, by offset."""
    unsaved_count: int = 0
    """Number of changes since the last commit of the window."""
    seen: dict[RecordId, None] = field(default_factory=dict)
    """Ids of the last records that were read. The highest number of each writer is not enough: if
    only the first of two batches of a commit fails, it is repeated after the second."""


@final
class GroupWindows:
    def __init__(self, room: GroupRoom) -> None:
        """`room` has the limits of all groups of this broker."""
        self.share = GroupShare(room)
        """The share of the unsettled messages in memory."""
        self.topic_id = b""
        """Id of the topic; empty before the first one."""
        self._tag = -1
        """Tag of the partitions of the topic that were not cut."""
        self._cuts: dict[int, int] = {}
        """Number of times that a partition was found to be shorter than before."""
        self._parts: dict[int, _Part] = {}
        self._late: dict[int, None] = {}
        """Settled positions of partitions that were not assigned."""
        self.lost_count = 0
        """Number of unsettled messages that were deleted by retention or with their topic."""

    # --- partitions come and go --------------------------------------------------------------

    def of_topic(self, topic_id: bytes) -> list[int]:
        """Change to this topic. Return the positions that do not exist any more."""
        if topic_id == self.topic_id:
            return []
        gone: list[int] = []
        for partition in list(self._parts):
            gone += self._drop(partition)
        self.lost_count += len(gone)
        tag = tag_of(topic_id)
        self._tag = tag if tag != self._tag else (tag + 1) % TAGS
        self.topic_id = topic_id
        self._cuts.clear()
        self._late.clear()
        return gone

    def assigned(self, found: Mapping[int, Found]) -> list[int]:
        """Change to these partitions. Return the positions that this consumer does not have any
        more.

        Unsettled messages of a partition that is assigned again stay, unless the committed window
        has them as settled. Messages that this consumer has settled meanwhile stay settled.
        """
        gone: list[int] = []
        for partition in self._parts.keys() - found.keys():
            gone += self._drop(partition)
        for partition, each in found.items():
            if partition in self._parts:
                gone += self._merge(partition, each)
            else:
                self._take(partition, each)
        for pos in [each for each in self._late if place_of(each).partition in self._parts]:
            del self._late[pos]
            self.settle(pos)
        return gone

    def is_beyond(self, partition: int, found: Found) -> bool:
        """Return True if Kafka reports a lower end than known: a new leader, or another topic."""
        part = self._parts.get(partition)
        known = found.window.floor if part is None else max(found.window.floor, part.next_offset)
        return known > found.end

    @property
    def is_behind(self) -> bool:
        """True if some records from before the assignment are still to be read."""
        return any(part.next_offset < part.until_offset for part in self._parts.values())

    def _drop(self, partition: int) -> list[int]:
        part = self._parts.pop(partition)
        gone = [pos_of(RecordPlace(part.tag, partition, offset)) for offset in part.here]
        for offset in list(part.here):
            self._forget(part, offset)
        return gone

    def _take(self, partition: int, found: Found) -> None:
        window, start, end = found
        if window.floor > end:  # Servers have lost records: the new leader lacked them.
            window = AckWindow(start, start)
            self._cuts[partition] = self._cuts.get(partition, 0) + 1
        tag = (self._tag + self._cuts.get(partition, 0)) % TAGS
        part = _Part(tag, window, window.floor, end)
        if window.floor < start:
            self.lost_count += window.skip_to(start, 0)
            part.unsaved_count = 1
        _rise(window)
        part.next_offset = window.floor
        self._parts[partition] = part

    def _merge(self, partition: int, found: Found) -> list[int]:
        part, window = self._parts[partition], found.window
        if part.next_offset > found.end:  # As in `_take`.
            gone = self._drop(partition)
            self.lost_count += len(gone)
            if found.window.floor <= found.end:
                self._cuts[partition] = self._cuts.get(partition, 0) + 1
            self._take(partition, found)
            return gone
        before = part.window
        window.end = max(window.end, before.end)
        if before.floor > window.floor:
            window.skip_to(before.floor, 0)
        for offset in before.settled:
            window.settle(offset, 0)
        part.window = window
        gone = [each for each in part.here if each < window.floor or each in window.settled]
        for offset in gone:
            self._forget(part, offset)
        if found.start > window.floor:
            kept = sum(window.floor <= offset < found.start for offset in part.here)
            self.lost_count += window.skip_to(found.start, 0) - kept
        _rise(window)
        part.next_offset = max(part.next_offset, window.floor)
        part.unsaved_count += 1
        return [pos_of(RecordPlace(part.tag, partition, offset)) for offset in gone]

    def next_offset(self, partition: int) -> int:
        return self._parts[partition].next_offset

    def is_far_ahead(self, partition: int) -> bool:
        """Return True if read records must be settled before more are read (`AHEAD_MAX`)."""
        part = self._parts.get(partition)
        return part is not None and part.next_offset - part.window.floor >= AHEAD_MAX

    # --- messages ----------------------------------------------------------------------------

    def arrived(self, partition: int, offset: int, record: RecordId, size_bytes: int) -> int | None:
        """Add a record that was read, and return its position. Returns None if its partition is not
        assigned, or if the record is settled, repeated or already known."""
        part = self._parts.get(partition)
        if part is None or offset < part.next_offset:
            return None
        window = part.window
        self._reach(part, offset)
        is_repeated = record in part.seen
        part.seen[record] = None
        if len(part.seen) > SEEN_MAX:
            del part.seen[next(iter(part.seen))]
        if offset < window.floor or offset in window.settled:
            return None
        if is_repeated:
            self._settle(part, offset)
            return None
        part.here[offset] = size_bytes
        self.share.add(size_bytes)
        return pos_of(RecordPlace(part.tag, partition, offset))

    def passed_over(self, partition: int, offset: int) -> None:
        """Skip a record that can never be decoded, and count it as lost."""
        part = self._parts.get(partition)
        if part is None or offset < part.next_offset:
            return
        self._reach(part, offset)
        self._lose(part, offset)

    def _reach(self, part: _Part, offset: int) -> None:
        """Advance the next offset past `offset`. Retention has deleted the records in between."""
        window = part.window
        if offset - part.next_offset > GAP_MAX and offset > window.floor:
            kept = sum(each >= window.floor for each in part.here)
            self.lost_count += window.skip_to(offset, 0) - kept
            part.unsaved_count += 1
        window.end = max(window.end, offset + 1)
        for each in range(max(part.next_offset, window.floor), offset):
            self._lose(part, each)
        part.next_offset = offset + 1

    def _lose(self, part: _Part, offset: int) -> None:
        window = part.window
        self.lost_count += offset >= window.floor and offset not in window.settled
        self._settle(part, offset)

    def settle(self, pos: int) -> bool:
        """Settle a position. Return False if its partition is not assigned, as it may be later, or
        if it is of another topic."""
        tag, partition, offset = place_of(pos)
        part = self._parts.get(partition)
        if part is not None:
            if tag == part.tag:
                self._settle(part, offset)
            return tag == part.tag
        self._late[pos] = None
        if len(self._late) > LATE_MAX:
            del self._late[next(iter(self._late))]
        return False

    def _settle(self, part: _Part, offset: int) -> None:
        self._forget(part, offset)
        part.window.end = max(part.window.end, offset + 1)
        part.window.settle(offset, 0)
        part.unsaved_count += 1

    def _forget(self, part: _Part, offset: int) -> None:
        size_bytes = part.here.pop(offset, None)
        if size_bytes is not None:
            self.share.remove(size_bytes)

    # --- commits -----------------------------------------------------------------------------

    @property
    def unsaved_count(self) -> int:
        """Highest number of uncommitted changes of a partition."""
        return max((part.unsaved_count for part in self._parts.values()), default=0)

    def to_commit(self) -> dict[int, tuple[int, str]]:
        """Return floors and metadata of the changed windows, which count as committed."""
        changed = {name: part for name, part in self._parts.items() if part.unsaved_count}
        for part in changed.values():
            part.unsaved_count = 0
        head = self.topic_id.hex()
        return {
            name: (part.window.floor, f"{head} {part.window.encode(METADATA_MAX)}")
            for name, part in changed.items()
        }

    def committed(self, floor: int, metadata: str) -> AckWindow:
        """Return the committed window, empty if it is of another topic. Raises CorruptionError."""
        topic_id, _, said = metadata.partition(" ")
        return AckWindow.decode(floor, said) if topic_id == self.topic_id.hex() else AckWindow()

    def not_committed(self, partitions: Mapping[int, object]) -> None:
        for partition in partitions:
            part = self._parts.get(partition)
            if part is not None:
                part.unsaved_count += 1


def _rise(window: AckWindow) -> None:
    """Raise a floor that was moved, over the settled offsets that follow it."""
    while window.floor in window.settled:
        del window.settled[window.floor]
        window.floor += 1
