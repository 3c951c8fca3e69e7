"""Outgoing: bytes on their way to one socket, in the pieces in which they came."""

from typing import Final, final

from flowguard.config import KIB

OUT_BYTES: Final = 256 * KIB
"""From here on nothing more is read for a socket that takes nothing."""


@final
class Outgoing:
    """Bytes to be sent, which are not copied as long as the socket takes them all."""

    __slots__ = ("_pieces", "size_bytes")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size_bytes = 0

    def put(self, data: bytes) -> None:
        """Send this behind all else."""
        if data:
            self._pieces.append(data)
            self.size_bytes += len(data)

    def take(self) -> bytes:
        """Return all of it, and keep nothing."""
        pieces = self._pieces
        self._pieces = []
        self.size_bytes = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def put_back(self, rest: bytes) -> None:
        """The socket has not taken this end of what was just taken from here."""
        assert not self._pieces
        self.put(rest)

    def clear(self) -> None:
        """Nobody is there any more to whom it could be sent."""
        self._pieces = []
        self.size_bytes = 0
