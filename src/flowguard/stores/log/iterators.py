"""Streams of the log, and positions in them: values, which survive whatever made them.

A stream is read in passes. A pass has a span of stamps that was complete when it began: what is
written meanwhile belongs to the next pass, wherever its key lies. So nothing is passed over because
it was written late, and a shard in which nothing happens holds nobody up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Final

from flowguard.errors import CorruptionError
from flowguard.stores.log.logged import LoggedMessage

_VERSION: Final = 1
_HEAD: Final = Struct(">BIHQQBH")


@dataclass(frozen=True, slots=True)
class Stream:
    """A part of the log in which messages of one publisher and topic keep their order."""

    generation: int
    shard: int


@dataclass(frozen=True, slots=True)
class LogIterator:
    """A position in a stream, for the messages that match one of `filters`."""

    generation: int
    shard: int
    filters: tuple[str, ...]
    after: int
    """All messages up to this stamp have been read."""
    until: int = 0
    """End of the pass under way, which may have read some above `after`; 0: none is."""
    place: bytes = b""
    """The key from which this pass goes on; empty: from its beginning."""

    def encode(self) -> bytes:
        """A token from which `decode` makes an equal iterator."""
        head = _HEAD.pack(
            _VERSION,
            self.generation,
            self.shard,
            self.after,
            self.until,
            len(self.place),
            len(self.filters),
        )
        texts = [filter.encode() for filter in self.filters]
        return b"".join((head, self.place, *(len(t).to_bytes(2) + t for t in texts)))

    @classmethod
    def decode(cls, token: bytes) -> "LogIterator":
        """The iterator of a token. Raises `CorruptionError`."""
        try:
            version, generation, shard, after, until, place_bytes, count = _HEAD.unpack_from(token)
            if version != _VERSION:
                raise CorruptionError(f"there is no log iterator of version {version}")
            pos = _HEAD.size + place_bytes
            place = token[_HEAD.size : pos]
            filters = []
            for _ in range(count):
                end = pos + 2 + int.from_bytes(token[pos : pos + 2])
                filters.append(token[pos + 2 : end].decode())
                pos = end
        except (StructError, UnicodeDecodeError) as error:
            raise CorruptionError(f"a log iterator is damaged: {error}") from error
        if pos != len(token):
            raise CorruptionError("a log iterator is cut short")
        return cls(generation, shard, tuple(filters), after, until, place)

    def passed(self, place: bytes) -> "LogIterator":
        """The position further on in the same pass."""
        return replace(self, place=place)

    def finished(self) -> "LogIterator":
        """The position after the whole pass."""
        return replace(self, after=self.until, until=0, place=b"")


class Ahead(IntEnum):
    """The part of a stream ahead of an iterator."""

    MORE = 0
    """Ask again: there may be more at once."""
    TAIL = 1
    """Everything that is committed was read; more is to come."""
    END = 2
    """Everything was read, and the generation takes no more."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """The answer of one call of `next`."""

    messages: Sequence[LoggedMessage]
    iterator: LogIterator
    ahead: Ahead
    lost_count: int = 0
    """Messages, of whatever topics, that retention has dropped before this iterator read them."""
