"""PacketHeads: splits one direction of a connection into packets.

Only the first `HEAD_MAX` bytes of a packet are kept, so that a large message takes no more memory.
"""

from typing import Final, NamedTuple, final

from flowguard.codec.primitives import remaining_length

HEAD_MAX: Final = 8 * 1024
"""Bytes that are kept of each packet."""


class Head(NamedTuple):
    """The beginning of a packet."""

    data: bytes
    start: int
    """Index at which the body begins."""
    size_bytes: int
    """Size of the whole packet."""


@final
class PacketHeads:
    def __init__(self, version: int) -> None:
        self._version = version
        self._held = b""
        """The beginning of a packet whose head is not complete."""
        self._skip_bytes = 0
        """Bytes of the last packet that are still to come."""

    def feed(self, data: bytes) -> list[Head]:
        """Return the heads that are complete now. Raises MalformedPacket."""
        if self._held:
            data = self._held + data
        pos, end = self._skip_bytes, len(data)
        heads: list[Head] = []
        while pos < end:
            try:
                size_bytes, start = remaining_length(data, pos, self._version)
            except IndexError:
                break
            after = start + size_bytes
            kept = min(after, pos + HEAD_MAX)
            if kept > end:
                break
            heads.append(Head(data[pos:kept], start - pos, after - pos))
            pos = after
        self._held = data[pos:]
        self._skip_bytes = max(0, pos - end)
        return heads
