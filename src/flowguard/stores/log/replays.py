"""Replays: the messages that a session has missed, read from all streams by one position.

The position has a few numbers for any number of streams. All streams are read over the same span,
one after the other, lower generations first. So the position determines the place in each stream.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from struct import Struct
from struct import error as StructError
from typing import Final

from flowguard.errors import CorruptionError
from flowguard.records import NEVER_S
from flowguard.stores.log.layout import instant_of, stamp_at
from flowguard.stores.log.logged import LoggedMessage
from flowguard.stores.log.message_log import MessageLog

_VERSION: Final = 1
_HEAD: Final = Struct(">BQQIH")
_END_BYTES: Final = 8
STAMP_MAX: Final = 2**64 - 1
MESSAGE_BYTES: Final = 100
"""Size that a message counts besides its payload."""


@dataclass(frozen=True, slots=True)
class LogPlace:
    after: int
    """All messages up to this stamp have been read."""
    until: int = 0
    """End of the present pass; 0 between passes."""
    generation: int = 0
    shard: int = 0
    """Shard of the stream that this pass reads; the streams before it are complete."""
    key: bytes = b""
    """The key in the stream at which to continue."""

    def encode(self) -> bytes:
        """Return a token that `decode` converts back; never empty."""
        head = _HEAD.pack(_VERSION, self.after, self.until, self.generation, self.shard)
        return head + self.key

    @classmethod
    def decode(cls, token: bytes) -> "LogPlace":
        """Return the place of a token. Raises `CorruptionError`."""
        try:
            version, after, until, generation, shard = _HEAD.unpack_from(token)
        except StructError as error:
            raise CorruptionError("a place in the log is cut short") from error
        if version != _VERSION:
            raise CorruptionError(f"there is no place in the log of version {version}")
        return cls(after, until, generation, shard, token[_HEAD.size :])


@dataclass(frozen=True, slots=True)
class LogStart:
    """The position of a subscription that starts in the past, among the messages logged before it
    was made. Later messages are read together with the session's other subscriptions."""

    place: LogPlace
    end: int
    """The last stamp that is read for this subscription alone."""

    @classmethod
    def new(cls, log: MessageLog, since_s: float, last: int) -> "LogStart":
        """Return the position of a new subscription at `since_s` (Unix epoch), or at the start of
        the log if that is later; NEVER_S for the end. `last` is the last stamp in the log."""
        after = last
        if since_s != NEVER_S:
            after = min(last, max(stamp_at(since_s) - 1, log.dropped_until))
        return cls(LogPlace(after), last)

    @property
    def is_done(self) -> bool:
        return self.place.after >= self.end

    def encode(self) -> bytes:
        """Return a token that `decode` converts back; never empty."""
        return self.end.to_bytes(_END_BYTES) + self.place.encode()

    @classmethod
    def decode(cls, token: bytes) -> "LogStart":
        """Return the position of a token. Raises `CorruptionError`."""
        return cls(LogPlace.decode(token[_END_BYTES:]), int.from_bytes(token[:_END_BYTES]))


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Messages of a replay, and the place after them."""

    messages: list[LoggedMessage]
    place: bytes
    """A token of `LogPlace`; with a `filter`, of `LogStart`."""
    is_done: bool
    """True if all committed messages are read."""
    appended_count: int
    """Number of messages that had been logged by then, since the log was opened."""
    lost_count: int = 0
    """Number of messages, of any topic, that retention had dropped before they were read."""
    filter: str = ""
    """The only subscription that gets the messages, which started in the past; "" for all."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """Last stamps by filter that were read for this filter alone; it gets no message up to it."""
    read_until_s: float = 0.0
    """Time up to which all messages for the subscriptions are read, Unix epoch."""


def read_next(
    log: MessageLog,
    place: bytes,
    starts: Mapping[str, bytes],
    filters: Sequence[str],
    count_max: int,
    bytes_max: int,
) -> LogBatch:
    """Return the next messages of a session: first those of each subscription that starts in the
    past (`starts`, tokens of `LogStart`), then those from its own `place` on.

    If `place` is empty, the session has none, and only `starts` are read.
    """
    ends = {}
    for filter, token in starts.items():
        start = LogStart.decode(token)
        ends[filter] = start.end
        if not start.is_done:
            batch = read_on(log, start.place, [filter], count_max, bytes_max, start.end)
            on = LogStart(LogPlace.decode(batch.place), start.end)
            until_s = instant_of(on.place.after)
            return replace(
                batch, place=on.encode(), filter=filter, is_done=False, read_until_s=until_s
            )
    own = LogPlace.decode(place) if place else LogPlace(log.high)
    batch = read_on(log, own, filters, count_max, bytes_max)
    until_s = instant_of(LogPlace.decode(batch.place).after)
    return replace(batch, ends=ends, read_until_s=until_s)


def read_on(
    log: MessageLog,
    place: LogPlace,
    filters: Sequence[str],
    count_max: int,
    bytes_max: int,
    end: int = STAMP_MAX,
) -> LogBatch:
    """Return messages that match one of `filters`, from `place` on up to the stamp `end`. A batch
    may be empty although more follow.

    The messages of one batch are in the order of their stamps. Across batches, only messages of
    equal topics are.
    """
    batch = _read_on(log, place, filters, count_max, bytes_max, min(end, log.high))
    batch.messages.sort(key=attrgetter("stamp"))
    return batch


def _read_on(
    log: MessageLog,
    place: LogPlace,
    filters: Sequence[str],
    count_max: int,
    bytes_max: int,
    end: int,
) -> LogBatch:
    lost_count = 0
    if not place.until:
        if place.after >= end or not filters:
            here = LogPlace(max(place.after, end))
            return LogBatch([], here.encode(), True, log.appended_count)
        lost_count = log.lost_count(place.after)
        place = replace(place, until=end)
    messages: list[LoggedMessage] = []
    for stream in log.get_streams(place.after + 1):
        at = stream.generation, stream.shard
        if at < (place.generation, place.shard):
            continue
        iterator = log.make_iterator(stream, filters, place.after + 1)
        if iterator.after >= place.until:
            break
        key = place.key if at == (place.generation, place.shard) else b""
        iterator = replace(iterator, until=place.until, place=key)
        while iterator.until:
            page = log.next(iterator, count_max - len(messages), bytes_max)
            messages += page.messages
            bytes_max -= sum(MESSAGE_BYTES + len(each.message.payload) for each in page.messages)
            iterator = page.iterator
            if iterator.until and _is_over(page.messages, count_max - len(messages), bytes_max):
                on = LogPlace(place.after, place.until, *at, iterator.place)
                return LogBatch(messages, on.encode(), False, log.appended_count, lost_count)
        if len(messages) >= count_max or bytes_max <= 0:
            on = LogPlace(place.after, place.until, stream.generation, stream.shard + 1)
            return LogBatch(messages, on.encode(), False, log.appended_count, lost_count)
    here = LogPlace(place.until)
    is_done = place.until >= end
    return LogBatch(messages, here.encode(), is_done, log.appended_count, lost_count)


def _is_over(found: Sequence[LoggedMessage], count_left: int, bytes_left: int) -> bool:
    """Return True if a read ends in the middle of a stream: it is full, or no row matched."""
    return count_left <= 0 or bytes_left <= 0 or not found
