"""Outgoing: bytes to send on one socket, in the pieces in which they came."""

from typing import Final, final

from flowguard.config import KIB

OUT_BYTES: Final = 256 * KIB
"""Pending bytes at which no more is read for a socket that takes nothing."""


@final
class Outgoing:
    """Bytes to send, which are not copied while the socket takes them all."""

    __slots__ = ("_pieces", "size_bytes")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size_bytes = 0

    def put(self, data: bytes) -> None:
        """Append bytes."""
        if data:
            self._pieces.append(data)
            self.size_bytes += len(data)

    def take(self) -> bytes:
        """Return and remove all bytes."""
        pieces = self._pieces
        self._pieces = []
        self.size_bytes = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def put_back(self, rest: bytes) -> None:
        """Put back the end of the bytes just taken, which the socket did not take."""
        assert not self._pieces
        self.put(rest)

    def clear(self) -> None:
        """Drop all bytes, because their receiver has disconnected."""
        self._pieces = []
        self.size_bytes = 0
