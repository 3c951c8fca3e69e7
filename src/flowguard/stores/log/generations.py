"""Generations: slices of the log's time, each with rows and a layout of its own.

Messages are written to the newest (current) generation; the others are sealed and only read.
Retention drops the oldest generation as a whole, which only deletes files. A generation ends after
an eighth of the retention's time or bytes, so at most an eighth of the kept messages is older than
necessary.
"""

from dataclasses import dataclass, replace
from struct import Struct
from struct import error as StructError
from typing import Final

from flowguard.errors import CorruptionError
from flowguard.stores.log.bitmask import EPOCH_BITS, BitmaskLayout
from flowguard.stores.log.layout import Layout, instant_of
from flowguard.stores.log.reference import ReferenceLayout
from flowguard.stores.log.rows import LogRows
from flowguard.stores.log.skipstream import SkipstreamLayout

SHARDS: Final = 4
PARTS: Final = 8
"""Number of generations of a retention period."""
DROPPED_KEPT: Final = 1_000
"""Maximum number of dropped generations whose record is kept."""
_VERSION: Final = 1
_RECORD: Final = Struct(">BBBBHQQQQQQ")
_DROPPED: Final = 1
LAYOUTS: Final = ("reference", "bitmask", "skipstream")
"""Layouts by their number in records."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The record of one generation, without its rows."""

    number: int
    layout: str
    shards: int
    """Number of streams, among which publishers are divided."""
    since: int
    """The lowest stamp that its messages may have."""
    until: int = 0
    """The highest stamp that its messages may have; 0 for the current generation."""
    first: int = 0
    """The stamp of its first message; 0 if it has none."""
    last: int = 0
    """The stamp of its last message; 0 if it has none."""
    count: int = 0
    """Number of messages."""
    size_bytes: int = 0
    """Size of keys and values of its rows, before compression."""
    is_dropped: bool = False
    epoch_bits: int = EPOCH_BITS
    """Parameter of the layout `bitmask`."""

    @property
    def is_sealed(self) -> bool:
        """True if it takes no more messages."""
        return self.until > 0

    def with_more(self, first: int, last: int, count: int, size_bytes: int) -> "Generation":
        return replace(
            self,
            first=self.first or first,
            last=last,
            count=self.count + count,
            size_bytes=self.size_bytes + size_bytes,
        )

    def make_layout(self, rows: LogRows, before: Layout | None = None) -> Layout:
        """Return the layout of its rows. `before` is the previous generation's, if this is new."""
        if self.layout == "reference":
            return ReferenceLayout()
        if self.layout == "bitmask":
            return BitmaskLayout(self.epoch_bits)
        return SkipstreamLayout(rows, before if isinstance(before, SkipstreamLayout) else None)

    def encode(self) -> bytes:
        return _RECORD.pack(
            _VERSION,
            LAYOUTS.index(self.layout),
            self.epoch_bits,
            _DROPPED if self.is_dropped else 0,
            self.shards,
            self.since,
            self.until,
            self.first,
            self.last,
            self.count,
            self.size_bytes,
        )

    @classmethod
    def decode(cls, number: int, record: bytes) -> "Generation":
        """Return the generation of a record. Raises `CorruptionError`."""
        try:
            version, layout, epoch_bits, flags, shards, *numbers = _RECORD.unpack(record)
            if version != _VERSION:
                raise CorruptionError(f"there is no log generation of version {version}")
            name = LAYOUTS[layout]
        except (StructError, IndexError) as error:
            raise CorruptionError(f"the record of log generation {number} is damaged") from error
        since, until, first, last, count, size_bytes = numbers
        found = cls(number, name, shards, since, until, first, last, count, size_bytes)
        return replace(found, is_dropped=bool(flags & _DROPPED), epoch_bits=epoch_bits)


@dataclass(frozen=True, slots=True)
class Retention:
    """The age and the size up to which the log keeps messages."""

    period_s: float
    bytes_max: int

    def is_over(self, current: Generation, now_s: float) -> bool:
        """Return True if the current generation should end; it must have messages."""
        if not current.count:
            return False
        age_s = now_s - instant_of(current.first)
        return age_s >= self.period_s / PARTS or self.is_full(current)

    def is_full(self, current: Generation) -> bool:
        """Return True if the next message must go to a new generation."""
        return current.count > 0 and current.size_bytes >= self.bytes_max // PARTS

    def is_due(self, oldest: Generation, size_bytes: int, now_s: float) -> bool:
        """Return True if the oldest generation should be dropped. `size_bytes` is that of all."""
        if not oldest.is_sealed:
            return False
        return now_s - instant_of(oldest.until) >= self.period_s or size_bytes > self.bytes_max
