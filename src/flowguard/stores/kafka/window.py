"""AckWindow: the settled records of a topic, stored in the metadata of a committed offset.

The committed offset is the lower bound (`floor`): all records below it are settled. One bitmap
marks the settled offsets above it, another the released ones (PUBREL is still to be sent). The next
position and the sizes are stored too, because retention may delete the records that have them.

    u8 version, u64 next_pos, u64 sent_pos, u64 end offset, u64 floor_bytes, u32 bytes of a bitmap,
    the bitmap of settled offsets, the bitmap of released offsets; compressed, then base64
"""

import base64
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import Final, final

from flowguard.errors import CorruptionError

METADATA_MAX: Final = 4_000
"""Characters; a server takes 4,096."""
_VERSION: Final = 1
_HEAD: Final = Struct(">BQQQQI")


@final
@dataclass(slots=True)
class AckWindow:
    floor: int = 0
    """Offset below which all records are settled."""
    end: int = 0
    """Offset after the last record."""
    next_pos: int = 1
    sent_pos: int = 0
    floor_bytes: int = 0
    """Sum of `Delivery.size_bytes` of all records that were ever below `floor`."""
    settled: dict[int, int] = field(default_factory=dict)
    """Sizes of settled records in bytes, by offset; only offsets from `floor` on."""
    released: dict[int, int] = field(default_factory=dict)
    """Sizes of released records in bytes, by offset."""

    @property
    def unsettled_count(self) -> int:
        return self.end - self.floor - len(self.settled)

    def unsettled_bytes(self, total_bytes: int) -> int:
        """Size of all unsettled records. `total_bytes` is that of all records ever appended."""
        done = sum(self.settled.values()) + sum(self.released.values())
        return total_bytes - self.floor_bytes - done

    def settle(self, offset: int, size_bytes: int) -> None:
        """Settle a record, and raise `floor` to the first unsettled one."""
        if not self.floor <= offset < self.end or offset in self.settled:
            return
        self.released.pop(offset, None)
        self.settled[offset] = size_bytes
        while self.floor in self.settled:
            self.floor_bytes += self.settled.pop(self.floor)
            self.floor += 1

    def release(self, offset: int, size_bytes: int) -> None:
        if self.floor <= offset < self.end and offset not in self.settled:
            self.released[offset] = size_bytes

    def skip_to(self, offset: int, floor_bytes: int) -> int:
        """Raise `floor` over deleted records. Return the number of unsettled ones among them."""
        settled = [each for each in self.settled if each < offset]
        lost = max(offset - self.floor, 0) - len(settled)
        for each in settled:
            del self.settled[each]
        for each in [each for each in self.released if each < offset]:
            del self.released[each]
        self.floor, self.floor_bytes = offset, floor_bytes
        return lost

    # --- metadata ----------------------------------------------------------------------------

    def encode(self, length_max: int = METADATA_MAX) -> str:
        """Return the metadata, of at most `length_max` characters. The highest offsets are left out
        if the metadata would be longer; after a crash their messages are sent again."""
        bits = max((*self.settled, *self.released), default=self.floor - 1) + 1 - self.floor
        while len(text := self._encode(bits)) > length_max and bits:
            bits //= 2
        return text

    def _encode(self, bits: int) -> str:
        size = (bits + 7) // 8
        head = _HEAD.pack(_VERSION, self.next_pos, self.sent_pos, self.end, self.floor_bytes, size)
        both = self._bitmap(self.settled, size) + self._bitmap(self.released, size)
        return base64.b64encode(zlib.compress(head + both)).decode()

    def _bitmap(self, offsets: Iterable[int], size_bytes: int) -> bytes:
        bitmap = bytearray(size_bytes)
        for offset in offsets:
            above = offset - self.floor
            if above < 8 * size_bytes:
                bitmap[above >> 3] |= 1 << (above & 7)
        return bytes(bitmap)

    @classmethod
    def decode(cls, floor: int, metadata: str) -> "AckWindow":
        """Return the window as committed. Sizes of records from `floor` on are not known: 0."""
        try:
            data = zlib.decompress(base64.b64decode(metadata, validate=True))
            version, next_pos, sent_pos, end, floor_bytes, size = _HEAD.unpack_from(data)
        except (ValueError, zlib.error, StructError) as error:
            raise CorruptionError(f"a committed offset's metadata is damaged: {error}") from error
        if version != _VERSION or len(data) != _HEAD.size + 2 * size:
            raise CorruptionError(f"a committed offset's metadata of version {version} is damaged")
        settled, released = data[_HEAD.size :][:size], data[_HEAD.size :][size:]
        found = cls(floor, end, next_pos, sent_pos, floor_bytes)
        found.settled = dict.fromkeys(_set_bits(settled, floor), 0)
        found.released = dict.fromkeys(_set_bits(released, floor), 0)
        return found


def _set_bits(bitmap: bytes, first: int) -> Iterator[int]:
    for index, byte in enumerate(bitmap):
        for bit in range(8):
            if byte >> bit & 1:
                yield first + 8 * index + bit
