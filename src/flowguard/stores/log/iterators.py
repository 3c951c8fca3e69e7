"""Streams of the log, and positions in them.

A stream is read in passes. A pass has a span of stamps that was complete when it began: what is
written meanwhile belongs to the next pass, wherever its key lies. So nothing is passed over because
it was written late, and a shard in which nothing happens holds nobody up.
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
    """End of the pass under way, which may have read some above `after`; 0: none is."""
    place: bytes = b""
    """The key from which this pass goes on; empty: from its beginning."""


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
    messages: Sequence[LoggedMessage]
    iterator: LogIterator
    ahead: Ahead
    lost_count: int = 0
    """Messages, of whatever topics, that retention has dropped before this iterator read them."""
