"""The contract of layouts: the keys of messages, and for a question the way through them.

A message's stamp is its value of the store's clock (`flowguard.stores.rocks.clock`): unique, and in
the order of commits. A question names a shard, filters, and a span of stamps that is complete: all
that will ever have a stamp in it is there. So an answer may come in any order that keeps that of
equal topics, and nothing can be written behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flowguard.stores.log.rows import Jump

COUNTER_BITS = 16
"""Lowest bits of a stamp: a counter within its millisecond."""
EPOCH_S = 1_577_836_800.0
"""Second of the Unix epoch that stamps count from: 2020-01-01 UTC."""


def stamp_at(at_s: float) -> int:
    """The first stamp of an instant, seconds since the Unix epoch."""
    return max(0, int((at_s - EPOCH_S) * 1_000)) << COUNTER_BITS


def instant_of(stamp: int) -> float:
    """When a message got its stamp, seconds since the Unix epoch; to the millisecond."""
    return (stamp >> COUNTER_BITS) / 1_000 + EPOCH_S


@dataclass(frozen=True, slots=True)
class Way:
    """The keys to look at: from `start` up to `end`, and where `jump` says."""

    start: bytes
    end: bytes
    jump: Jump


class Layout(Protocol):
    """A way to lay messages out in keys; fixed within a generation."""

    name: str

    def key(self, shard: int, stamp: int, topic: str) -> bytes:
        """The key of a message, which begins with the shard (2 bytes); no two have the same."""

    def stamp_of(self, key: bytes) -> int:
        """The stamp in a key."""

    def way(self, shard: int, filters: Sequence[str], after: int, until: int, place: bytes) -> Way:
        """All that may match a filter, with `after` < stamp <= `until`; from `place` on, a key.

        It may meet messages that do not match, and misses none that does. Those of one topic come
        in the order of their stamps.
        """
