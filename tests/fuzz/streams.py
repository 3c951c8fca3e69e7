"""The form of an input for both targets: options, a seed of the splits, the stream."""

from collections.abc import Iterator
from typing import Final

VERSIONS: Final = (0, 3, 4, 5)
HEAD_BYTES: Final = 2
"""Size of options and seed; shorter inputs are ignored."""
ANOTHER: Final = b"\xff\xff"
"""Behind it another connection goes on; no packet begins so."""


def pieces(stream: bytes, seed: int) -> Iterator[bytes]:
    """`stream` in pieces of up to 64 bytes, or whole; which is up to `seed`, 0 to 255."""
    if not seed:
        yield stream
        return
    at = 0
    while at < len(stream):
        seed = (seed * 73 + 41) & 0xFF
        size = 1 + (seed & 63)
        yield stream[at : at + size]
        at += size
