"""The record of a queue in layout `window`, besides its entries.

u8 version, u8 flags (0 the mark is exact, 1 unordered), u64 next_pos, u64 sent mark, u64 lo, u64
trimmed, u32 count, u64 bytes; varint number of settled runs above lo, each varint gap and varint
length; varint number of released positions, each varint gap and u16 packet id
"""

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import Final, final

from flowguard.errors import CorruptionError
from flowguard.stores.rocks.layouts.codec import decode_varint, encode_varint

Runs = tuple[tuple[int, int], ...]
"""The first and last position of each run, ascending, with gaps between runs."""
NO_RELEASED: Final[dict[int, int]] = {}
_VERSION: Final = 1
_EXACT: Final = 1
_UNORDERED: Final = 2
_HEAD: Final = Struct(">BBQQQQIQ")


@final
class WindowRecord:
    """The state of a queue as of one batch; the fields are those of `WindowQueue`."""

    def __init__(
        self,
        next_pos: int,
        mark: int,
        is_exact: bool,
        lo: int,
        trimmed: int,
        count: int,
        size_bytes: int,
    ) -> None:
        self.next_pos = next_pos
        self.mark = mark
        self.is_exact = is_exact
        self.lo = lo
        self.trimmed = trimmed
        self.count = count
        self.size_bytes = size_bytes
        self.runs: Runs = ()
        self.released: dict[int, int] | None = None
        self.unordered = False


def encode_record(record: WindowRecord) -> bytes:
    flags = (_EXACT if record.is_exact else 0) | (_UNORDERED if record.unordered else 0)
    head = _HEAD.pack(
        _VERSION,
        flags,
        record.next_pos,
        record.mark,
        record.lo,
        record.trimmed,
        record.count,
        record.size_bytes,
    )
    runs, released = record.runs, record.released
    if not runs and not released:
        return head + b"\0\0"
    parts = [head, encode_varint(len(runs))]
    last = record.lo
    for first, end in runs:
        parts += (encode_varint(first - last), encode_varint(end - first))
        last = end
    released = released or NO_RELEASED
    parts.append(encode_varint(len(released)))
    last = record.lo
    for pos in sorted(released):
        parts += (encode_varint(pos - last), released[pos].to_bytes(2, "big"))
        last = pos
    return b"".join(parts)


def decode_record(data: bytes) -> WindowRecord:
    """Return the record in `data`. Raises `CorruptionError`."""
    try:
        version, flags, next_pos, mark, lo, trimmed, count, size_bytes = _HEAD.unpack_from(data)
    except StructError as error:
        raise CorruptionError("the record of a queue is cut short") from error
    if version != _VERSION:
        raise CorruptionError(f"there is no record of a queue of version {version}")
    record = WindowRecord(next_pos, mark, bool(flags & _EXACT), lo, trimmed, count, size_bytes)
    record.unordered = bool(flags & _UNORDERED)
    number, at = decode_varint(data, _HEAD.size)
    last = lo
    runs: list[tuple[int, int]] = []
    for _ in range(number):
        gap, at = decode_varint(data, at)
        length, at = decode_varint(data, at)
        runs.append((last + gap, last + gap + length))
        last += gap + length
    record.runs = tuple(runs)
    number, at = decode_varint(data, at)
    last = lo
    released: dict[int, int] = {}
    for _ in range(number):
        gap, at = decode_varint(data, at)
        last += gap
        released[last] = int.from_bytes(data[at : at + 2], "big")
        at += 2
    if at != len(data):
        raise CorruptionError("the record of a queue has another length than it says")
    record.released = released or None
    return record


def merged(runs: Runs, singles: Iterable[int]) -> Runs:
    """Merge runs and single positions, which do not overlap, to the fewest runs."""
    found: list[tuple[int, int]] = []
    for first, last in sorted([*runs, *((pos, pos) for pos in singles)]):
        if found and found[-1][1] + 1 == first:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return tuple(found)
