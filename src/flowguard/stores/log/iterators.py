"""Streams of the log, and positions in them.

A stream is read in passes. A pass has a span of stamps that was complete when it began. Messages
that are written meanwhile belong to the next pass, wherever their key is. So no late message is
skipped, and an idle shard delays no reader.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from flowguard.stores.log.logged import LoggedMessage


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
    """End of the present pass, which may have read some above `after`; 0 between passes."""
    place: bytes = b""
    """The key at which this pass continues, empty for its beginning."""


class Ahead(IntEnum):
    """The part of a stream ahead of an iterator."""

    MORE = 0
    """More messages may be available now."""
    TAIL = 1
    """All committed messages were read; more may follow."""
    END = 2
    """All messages were read, and the generation takes no more."""


@dataclass(frozen=True, slots=True)
class LogPage:
    messages: Sequence[LoggedMessage]
    iterator: LogIterator
    ahead: Ahead
    lost_count: int = 0
    """Number of messages, of any topic, that retention has dropped before they were read."""
