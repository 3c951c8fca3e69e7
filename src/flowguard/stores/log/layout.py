"""The interface of layouts: the rows of messages, and reads of those that may match a question.

A message's stamp is its value of the store's clock (`flowguard.stores.rocks.clock`): unique, and in
the order of commits. A question has a shard, filters, and a complete span of stamps: no message
with a stamp in it will be added. So an answer may be in any order that keeps the order of equal
topics, and never becomes incomplete.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flowguard.stores.log.rows import Found, LogRows, ReadBounds

COUNTER_BITS = 16
"""Number of the lowest bits of a stamp: a counter within its millisecond."""
EPOCH_S = 1_577_836_800.0
"""Start of stamps in seconds of the Unix epoch: 2020-01-01 UTC."""

Row = tuple[bytes, bytes]
"""Key and value."""


def stamp_at(at_s: float) -> int:
    """Return the first stamp of an instant, in seconds since the Unix epoch."""
    return max(0, int((at_s - EPOCH_S) * 1_000)) << COUNTER_BITS


def instant_of(stamp: int) -> float:
    """Return the time of a stamp in seconds since the Unix epoch, to the millisecond."""
    return (stamp >> COUNTER_BITS) / 1_000 + EPOCH_S


@dataclass(frozen=True, slots=True)
class LogQuestion:
    shard: int
    filters: tuple[str, ...]
    after: int
    """The stamp before the span."""
    until: int
    """The last stamp of the span."""


class Layout(Protocol):
    """A mapping of messages to rows, fixed within a generation."""

    def rows_of(self, shard: int, stamp: int, topic: str, value: bytes) -> Sequence[Row]:
        """Return the rows of a message; keys are unique and begin with the shard (2 bytes)."""

    def learned(self) -> Sequence[Row]:
        """Return rows besides those of messages, for the batch of the messages that caused them."""

    def stored(self) -> None:
        """Note that the learned rows are stored."""

    def is_message(self, key: bytes) -> bool:
        """Return True if a key is that of a message; each message has one."""

    def read(self, rows: LogRows, question: LogQuestion, place: bytes, bounds: ReadBounds) -> Found:
        """Return messages that may match a filter, from the key `place` on, empty for the first.

        All matching messages are included; others may be. Those of one topic are in the order of
        their stamps.
        """


class NothingToLearn:
    """Methods of layouts with exactly one row per message and no other rows."""

    def learned(self) -> Sequence[Row]:
        return ()

    def stored(self) -> None:
        pass

    def is_message(self, key: bytes) -> bool:
        return True
