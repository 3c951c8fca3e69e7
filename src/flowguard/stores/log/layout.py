"""The contract of layouts: the rows of messages, and for a question those that may answer it.

A message's stamp is its value of the store's clock (`flowguard.stores.rocks.clock`): unique, and in
the order of commits. A question names a shard, filters, and a span of stamps that is complete: all
that will ever have a stamp in it is there. So an answer may come in any order that keeps that of
equal topics, and nothing can be written behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flowguard.stores.log.rows import Found, LogRows, ReadBounds

COUNTER_BITS = 16
"""Lowest bits of a stamp: a counter within its millisecond."""
EPOCH_S = 1_577_836_800.0
"""Second of the Unix epoch that stamps count from: 2020-01-01 UTC."""

Row = tuple[bytes, bytes]
"""Key and value."""


def stamp_at(at_s: float) -> int:
    """The first stamp of an instant, seconds since the Unix epoch."""
    return max(0, int((at_s - EPOCH_S) * 1_000)) << COUNTER_BITS


def instant_of(stamp: int) -> float:
    """When a message got its stamp, seconds since the Unix epoch; to the millisecond."""
    return (stamp >> COUNTER_BITS) / 1_000 + EPOCH_S


@dataclass(frozen=True, slots=True)
class LogQuestion:
    shard: int
    filters: tuple[str, ...]
    after: int
    """Their stamps are later."""
    until: int
    """The last stamp."""


class Layout(Protocol):
    """A way to lay messages out in rows; fixed within a generation."""

    def rows_of(self, shard: int, stamp: int, topic: str, value: bytes) -> Sequence[Row]:
        """The rows of a message; keys are unique and begin with the shard (2 bytes)."""

    def learned(self) -> Sequence[Row]:
        """Rows besides those of messages, for the batch of the messages that caused them."""

    def stored(self) -> None:
        """Note that what was learned is stored."""

    def is_message(self, key: bytes) -> bool:
        """Whether a key is that of a message, which each has one of."""

    def read(self, rows: LogRows, question: LogQuestion, place: bytes, bounds: ReadBounds) -> Found:
        """All that may match a filter, from `place` on, a key; empty: from the first.

        There may be messages that do not match, and none is missed that does. Those of one topic
        come in the order of their stamps.
        """


class NothingToLearn:
    """The part of layouts that every message has one row in, and nothing else."""

    def learned(self) -> Sequence[Row]:
        return ()

    def stored(self) -> None:
        pass

    def is_message(self, key: bytes) -> bool:
        return True
