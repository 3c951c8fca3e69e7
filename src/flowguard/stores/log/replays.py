"""Replays: what a session has missed, read from all streams by one position.

The position is a few numbers, whatever the number of streams: all of them are read over the same
span, one after the other, lower generations first. So it says of each stream where it stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from struct import Struct
from struct import error as StructError
from typing import Final

from flowguard.errors import CorruptionError
from flowguard.stores.log.logged import LoggedMessage
from flowguard.stores.log.message_log import MessageLog

_VERSION: Final = 1
_HEAD: Final = Struct(">BQQIH")
MESSAGE_BYTES: Final = 100
"""What a message counts besides its payload."""


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A position in the whole log."""

    after: int
    """All messages up to this stamp have been read."""
    until: int = 0
    """End of the pass under way; 0: none is."""
    generation: int = 0
    shard: int = 0
    """The stream that this pass is in; those before it are done with."""
    key: bytes = b""
    """The key in it from which to go on."""

    def encode(self) -> bytes:
        """A token from which `decode` makes an equal place; never empty."""
        head = _HEAD.pack(_VERSION, self.after, self.until, self.generation, self.shard)
        return head + self.key

    @classmethod
    def decode(cls, token: bytes) -> "LogPlace":
        """The place of a token. Raises `CorruptionError`."""
        try:
            version, after, until, generation, shard = _HEAD.unpack_from(token)
        except StructError as error:
            raise CorruptionError("a place in the log is cut short") from error
        if version != _VERSION:
            raise CorruptionError(f"there is no place in the log of version {version}")
        return cls(after, until, generation, shard, token[_HEAD.size :])


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Messages of a replay, and where it stands after them."""

    messages: list[LoggedMessage]
    place: bytes
    """A token of `LogPlace`."""
    is_done: bool
    """Whether all that was committed is read."""
    appended_count: int
    """Messages that had been logged by then, since the log was opened."""
    lost_count: int = 0
    """Messages, of whatever topics, that retention had dropped before they were read."""


def read_on(
    log: MessageLog, place: LogPlace, filters: Sequence[str], count_max: int, bytes_max: int
) -> LogBatch:
    """Messages that match one of `filters`, from `place` on; there may be none though more come.

    Those of one batch come in the order of their stamps: what is missed within a batch is not
    reordered at all, and of what is more than one, equal topics are not.
    """
    batch = _read_on(log, place, filters, count_max, bytes_max)
    batch.messages.sort(key=attrgetter("stamp"))
    return batch


def _read_on(
    log: MessageLog, place: LogPlace, filters: Sequence[str], count_max: int, bytes_max: int
) -> LogBatch:
    lost_count = 0
    if not place.until:
        if place.after >= log.high or not filters:
            here = LogPlace(max(place.after, log.high))
            return LogBatch([], here.encode(), True, log.appended_count)
        lost_count = log.lost_count(place.after)
        place = replace(place, until=log.high)
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
    is_done = place.until >= log.high
    return LogBatch(messages, here.encode(), is_done, log.appended_count, lost_count)


def _is_over(found: Sequence[LoggedMessage], count_left: int, bytes_left: int) -> bool:
    """Whether a read ends in the middle of a stream: it is full, or has looked at rows in vain."""
    return count_left <= 0 or bytes_left <= 0 or not found
