"""The whole log: append, streams and positions, retention.

The store passes the time of its clock. It writes the rows of messages with its own batches
(`rows_of`, `appended`): once for any number of subscribers, and with the same sync.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, final
from zlib import crc32

from flowguard.errors import StoreError
from flowguard.stores.log.bitmask import EPOCH_BITS
from flowguard.stores.log.generations import (
    DROPPED_KEPT,
    LAYOUTS,
    SHARDS,
    Generation,
    Retention,
)
from flowguard.stores.log.homes import LogHome
from flowguard.stores.log.iterators import Ahead, LogIterator, LogPage, Stream
from flowguard.stores.log.keymapper import matcher_of
from flowguard.stores.log.layout import Layout, LogQuestion, Row
from flowguard.stores.log.logged import LoggedMessage, decode_logged, encode_logged
from flowguard.stores.log.rows import LogRows, ReadBounds, Sieve, sift
from flowguard.types import Publish

VISITS_MAX: Final = 4_096
"""Maximum number of rows that one call of `next` examines, matching or not."""


def shard_of(publisher: str, shards: int) -> int:
    return crc32(publisher.encode()) % shards


@final
class _Space:
    __slots__ = ("generation", "layout", "rows")

    def __init__(
        self, generation: Generation, rows: LogRows, before: "_Space | None" = None
    ) -> None:
        """`before` is the space of the previous generation, if this one is new."""
        self.generation = generation
        self.rows = rows
        self.layout: Layout = generation.make_layout(rows, before and before.layout)


@final
class MessageLog:
    """Generations; messages are written to the last one."""

    def __init__(
        self,
        home: LogHome,
        *,
        high: int,
        layout: str = "bitmask",
        shards: int = SHARDS,
        retention: Retention | None = None,
        epoch_bits: int = EPOCH_BITS,
    ) -> None:
        """`high` is the last used stamp; layout, shards and bits are those of new generations.

        Raises `CorruptionError`, `StoreError`.
        """
        assert layout in LAYOUTS, layout
        self._home = home
        self._new: Callable[[int, int], Generation] = lambda number, since: Generation(
            number, layout, shards, since, epoch_bits=epoch_bits
        )
        self._retention = retention or Retention(86_400.0, 2**62)
        self.high = high
        """All messages up to this stamp are committed; the store advances it."""
        self.appended_count = 0
        """Number of messages logged since the log was opened."""
        self._spaces: dict[int, _Space] = {}
        self._dropped: dict[int, Generation] = {}
        self._unwanted: list[int] = []
        """Dropped generations whose rows are still to be deleted."""
        for number, record in sorted(home.load().items()):
            generation = Generation.decode(number, record)
            if generation.is_dropped:
                home.drop(number)
                self._dropped[number] = generation
            else:
                self._spaces[number] = _Space(generation, home.rows(number))

    # --- writing ------------------------------------------------------------------------------

    @property
    def current(self) -> Generation | None:
        """The generation for new messages, or None before the first message."""
        if not self._spaces:
            return None
        last = self._spaces[max(self._spaces)].generation
        return None if last.is_sealed else last

    def begin(self) -> Generation:
        """Return the current generation, or a new one if there is none or it is full."""
        current = self.current
        if current is None or self._retention.is_full(current):
            return self.roll()
        return current

    def roll(self) -> Generation:
        """Seal the current generation and begin the next. Raises `StoreError` with no change."""
        old = self.current
        number = max((*self._spaces, *self._dropped), default=0) + 1
        rows = self._home.create(number)
        generation = self._new(number, self.high + 1)
        records: dict[int, bytes | None] = {number: generation.encode()}
        if old is not None:
            old = replace(old, until=self.high)
            records[old.number] = old.encode()
        self._home.write(records)
        if old is not None:
            self._spaces[old.number].generation = old
        before = None if old is None else self._spaces[old.number]
        self._spaces[number] = _Space(generation, rows, before)
        return generation

    def rows_of(
        self, stamp: int, publisher: str, message: Publish, expires_at_s: float
    ) -> Sequence[Row]:
        """Return keys and values of a message in the current generation."""
        space = self._spaces[max(self._spaces)]
        shard = shard_of(publisher, space.generation.shards)
        value = encode_logged(publisher, message, expires_at_s)
        return space.layout.rows_of(shard, stamp, message.topic, value)

    def learned(self) -> Sequence[Row]:
        """Return the current generation's rows besides those of messages, for the same batch."""
        return self._spaces[max(self._spaces)].layout.learned()

    def appended(self, generation: Generation) -> None:
        """Note that rows and record of the current generation are written."""
        space = self._spaces[generation.number]
        self.appended_count += generation.count - space.generation.count
        space.generation = generation
        space.layout.stored()

    # --- reading ------------------------------------------------------------------------------

    def get_streams(self, start: int = 0) -> list[Stream]:
        """Return streams that may have messages with the stamp `start` or a later one.

        They are in the order of generations; read those of a lower one to their end first.
        """
        return [
            Stream(number, shard)
            for number, space in sorted(self._spaces.items())
            if not space.generation.is_sealed or space.generation.until >= start
            for shard in range(space.generation.shards)
        ]

    def make_iterator(self, stream: Stream, filters: Sequence[str], start: int = 0) -> LogIterator:
        """Return a position before the first message with the stamp `start` or a later one."""
        since = self._spaces[stream.generation].generation.since
        return LogIterator(
            stream.generation, stream.shard, tuple(filters), after=max(start, since, 1) - 1
        )

    def next(self, iterator: LogIterator, count_max: int, bytes_max: int) -> LogPage:
        """Messages from the iterator on, and the position after them.

        At most `count_max`, none further when their rows add up to `bytes_max`; there may be none
        although there is more, where rows that do not match had to be looked at. Those of one
        publisher and topic come in the order of publishing.
        """
        space = self._spaces.get(iterator.generation)
        if space is None:
            dropped = self._dropped.get(iterator.generation)
            lost = dropped.count if dropped and iterator.after < dropped.last else 0
            return LogPage([], iterator, Ahead.END, lost)
        sealed = space.generation.is_sealed
        complete = space.generation.until or self.high
        if not iterator.until:
            if iterator.after >= complete or not iterator.filters:
                return LogPage([], iterator, Ahead.END if sealed else Ahead.TAIL)
            iterator = replace(iterator, until=complete)
        messages, place = self._read(space, iterator, count_max, bytes_max)
        if place:
            return LogPage(messages, replace(iterator, place=place), Ahead.MORE)
        iterator = replace(iterator, after=iterator.until, until=0, place=b"")
        if iterator.after < complete:
            return LogPage(messages, iterator, Ahead.MORE)
        return LogPage(messages, iterator, Ahead.END if sealed else Ahead.TAIL)

    def _read(
        self, space: _Space, at: LogIterator, count_max: int, bytes_max: int
    ) -> tuple[list[LoggedMessage], bytes]:
        question = LogQuestion(at.shard, at.filters, at.after, at.until)
        bounds = ReadBounds(count_max, bytes_max, VISITS_MAX)
        found, place = space.layout.read(space.rows, question, at.place, bounds)
        matches, known = matcher_of(at.filters), dict[str, bool]()
        messages = []
        for stamp, value in found:
            logged = decode_logged(stamp, value)
            topic = logged.message.topic
            fits = known.get(topic)
            if fits is None:
                fits = known[topic] = matches(topic)
            if fits:
                messages.append(logged)
        return messages, place

    # --- retention ----------------------------------------------------------------------------

    @property
    def generations(self) -> list[Generation]:
        """Generations with rows, ascending; the last one may be the current one."""
        return [space.generation for _, space in sorted(self._spaces.items())]

    def lost_count(self, after: int) -> int:
        """Return the number of messages in dropped generations that end after the stamp `after`;
        only the last 1,000 generations count."""
        return sum(each.count for each in self._dropped.values() if each.last > after)

    @property
    def last(self) -> int:
        """The stamp of the last logged message, 0 if there is none."""
        spaces = [space.generation.last for space in self._spaces.values()]
        return max(*spaces, self.dropped_until, 0)

    @property
    def dropped_until(self) -> int:
        """The stamp of the last dropped message, 0 if there is none."""
        return max((each.last for each in self._dropped.values()), default=0)

    def count_after(self, after: int) -> int:
        """Return the number of messages in generations that end after the stamp `after`."""
        kept = sum(
            space.generation.count
            for space in self._spaces.values()
            if space.generation.last > after
        )
        return kept + self.lost_count(after)

    def count_in(self, stream: Stream) -> int:
        """Return the number of messages of a stream; reads all its rows."""
        space, count = self._spaces[stream.generation], 0
        place, end = stream.shard.to_bytes(2), (stream.shard + 1).to_bytes(2)
        bounds, messages = ReadBounds(VISITS_MAX, 2**40, VISITS_MAX), _Messages(space.layout)
        while place:
            found, place = sift(space.rows, messages, place, end, bounds)
            count += len(found)
        return count

    def maintain(self, now_s: float) -> bool:
        """End or drop one generation that is due. Return False if none is due."""
        self._delete_unwanted()
        current, generations = self.current, self.generations
        if current is not None and self._retention.is_over(current, now_s):
            self.roll()
            return True
        size_bytes = sum(each.size_bytes for each in generations)
        if generations and self._retention.is_due(generations[0], size_bytes, now_s):
            self.drop(generations[0].number)
            return True
        return False

    def drop(self, number: int) -> None:
        """Drop a sealed generation. This marks its record first, so that no part of it stays.

        Raises `StoreError`, also if there is no such generation.
        """
        space = self._spaces.get(number)
        if space is None or not space.generation.is_sealed:
            raise StoreError(
                f"generation {number} cannot be dropped: it is not there, or not sealed"
            )
        dropped = replace(space.generation, is_dropped=True)
        records: dict[int, bytes | None] = {number: dropped.encode()}
        forgotten = sorted(self._dropped)[: max(0, len(self._dropped) + 1 - DROPPED_KEPT)]
        records.update(dict.fromkeys(forgotten))
        self._home.write(records)
        for old in forgotten:
            del self._dropped[old]
        self._dropped[number] = dropped
        del self._spaces[number], space
        self._unwanted.append(number)
        self._delete_unwanted()

    def _delete_unwanted(self) -> None:
        """Delete rows of dropped generations; the next call retries a failed deletion."""
        while self._unwanted:
            self._home.drop(self._unwanted[0])
            del self._unwanted[0]


@final
class _Messages(Sieve):
    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def stamp(self, key: bytes) -> int:
        return 0 if self._layout.is_message(key) else -1

    def goal(self, key: bytes) -> bytes:
        return key + b"\0"
