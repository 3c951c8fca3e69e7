"""GroupWindows: what one consumer has of a group's topic: what is read, waits, and is settled.

A message's position says where it is, in every process and for ever: topic, partition and offset.
A topic that somebody has deleted and made again has the same offsets, but another id: so a position
has a tag that follows from the id, and what is committed says of which topic it is. Words about a
topic that is gone change nothing. Knows no driver; the rest of a consumer is in `consumer`.
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
"""Records that a partition may ever have."""
TAGS: Final = 2**12
METADATA_MAX: Final = WINDOW_MAX - 33
"""Characters of what is committed, without the topic's id and a blank."""
LATE_MAX: Final = 10_000
"""Positions that are remembered though their partition is not here."""
GAP_MAX: Final = 1_000
"""Records that may be missing in a partition one by one. Where more are, retention has taken them,
and it takes all that lies before them, too."""
AHEAD_MAX: Final = 100_000
"""Records of a partition that are read beyond the first one that is not settled: what is settled
among them is kept in mind, and goes into every commit, as far as it has room there. Whoever holds
one message for so long has all others of its partition wait."""
SEEN_MAX: Final = 1_000
"""Records of a partition that are remembered: a batch that is repeated comes soon."""


class RecordPlace(NamedTuple):
    tag: int
    """Of the topic, in this incarnation."""
    partition: int
    offset: int


def pos_of(place: RecordPlace) -> int:
    return (place.tag * OFFSETS + place.offset) * STRIDE + place.partition + 1


def place_of(pos: int) -> RecordPlace:
    where, partition = divmod(pos - 1, STRIDE)
    tag, offset = divmod(where, OFFSETS)
    return RecordPlace(tag, partition, offset)


def tag_of(topic_id: bytes) -> int:
    """A number below `TAGS`."""
    return int.from_bytes(blake2b(topic_id, digest_size=4).digest()) % TAGS


class Found(NamedTuple):
    """A partition that is ours from now on, as Kafka has it."""

    window: AckWindow
    """As its last owner has committed it."""
    start: int
    """The first offset that is there."""
    end: int
    """The one after the last."""


class RecordId(NamedTuple):
    """The name of a record: its writer, and a number of that one's; a repeated one has the same."""

    writer: bytes
    number: int


@final
@dataclass(slots=True)
class _Part:
    tag: int
    window: AckWindow
    next_offset: int
    """Of the record to be read next."""
    until_offset: int
    """What lies before this one was there when we came."""
    here: dict[int, int] = field(default_factory=dict)
    """Offsets that were read and are not settled, and their sizes, bytes."""
    unsaved_count: int = 0
    """Changes since the window was committed."""
    seen: dict[RecordId, None] = field(default_factory=dict)
    """The last ones that were read. Not the highest number of a writer: of two batches of one
    commit the first may have failed alone, and comes again behind the second."""


@final
class GroupWindows:
    def __init__(self, room: GroupRoom) -> None:
        """`room`: of all groups of this broker."""
        self.share = GroupShare(room)
        """What is here and not settled."""
        self.topic_id = b""
        """Of the topic that all of this is about; empty: none has been seen."""
        self._tag = -1
        """Of the partitions of that topic, but for those that were cut."""
        self._cuts: dict[int, int] = {}
        """How often a partition was found to have less than it had."""
        self._parts: dict[int, _Part] = {}
        self._late: dict[int, None] = {}
        """Settled positions of partitions that were not here."""
        self.lost_count = 0
        """Messages that were not settled, and are gone: with retention, or with their topic."""

    # --- partitions come and go --------------------------------------------------------------

    def of_topic(self, topic_id: bytes) -> list[int]:
        """Begin with this topic; return the positions that are gone."""
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
        """Have these partitions, and no others; positions that are here no longer.

        What is here of a partition that was ours before stays: nobody else has it, unless the
        committed window says so. What we have settled meanwhile stays settled.
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
        """Whether Kafka reports less than is known: a new leader, or another topic."""
        part = self._parts.get(partition)
        known = found.window.floor if part is None else max(found.window.floor, part.next_offset)
        return known > found.end

    @property
    def is_behind(self) -> bool:
        """Whether something that was there when we came is still to be read."""
        return any(part.next_offset < part.until_offset for part in self._parts.values())

    def _drop(self, partition: int) -> list[int]:
        part = self._parts.pop(partition)
        gone = [pos_of(RecordPlace(part.tag, partition, offset)) for offset in part.here]
        for offset in list(part.here):
            self._forget(part, offset)
        return gone

    def _take(self, partition: int, found: Found) -> None:
        window, start, end = found
        if window.floor > end:  # Servers have lost what they had: a leader that knew less.
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
        """Whether no more is to be read before what was read is settled (`AHEAD_MAX`)."""
        part = self._parts.get(partition)
        return part is not None and part.next_offset - part.window.floor >= AHEAD_MAX

    # --- messages ----------------------------------------------------------------------------

    def arrived(self, partition: int, offset: int, record: RecordId, size_bytes: int) -> int | None:
        """A record was read; its position. None: it is not ours, settled, or here already."""
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
        """Nobody can read this record, now or later: the next one is read, and this one is lost."""
        part = self._parts.get(partition)
        if part is None or offset < part.next_offset:
            return
        self._reach(part, offset)
        self._lose(part, offset)

    def _reach(self, part: _Part, offset: int) -> None:
        """Reading has come so far; what is not there, retention has taken before."""
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
        """Settle a position of this topic; False if its partition is not here: it may come."""
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
        """Changes since windows were committed, of the partition that has most."""
        return max((part.unsaved_count for part in self._parts.values()), default=0)

    def to_commit(self) -> dict[int, tuple[int, str]]:
        """Floors and metadata of the windows that have changed; they count as committed."""
        changed = {name: part for name, part in self._parts.items() if part.unsaved_count}
        for part in changed.values():
            part.unsaved_count = 0
        head = self.topic_id.hex()
        return {
            name: (part.window.floor, f"{head} {part.window.encode(METADATA_MAX)}")
            for name, part in changed.items()
        }

    def committed(self, floor: int, metadata: str) -> AckWindow:
        """The committed window, empty if it is of another topic. Raises CorruptionError."""
        topic_id, _, said = metadata.partition(" ")
        return AckWindow.decode(floor, said) if topic_id == self.topic_id.hex() else AckWindow()

    def not_committed(self, partitions: Mapping[int, object]) -> None:
        for partition in partitions:
            part = self._parts.get(partition)
            if part is not None:
                part.unsaved_count += 1


def _rise(window: AckWindow) -> None:
    """Raise a floor that was moved over what is settled above it."""
    while window.floor in window.settled:
        del window.settled[window.floor]
        window.floor += 1
