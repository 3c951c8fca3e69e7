"""Bytes that many owners share, so that a million small queues are as harmless as one large one."""

from typing import final


@final
class Budget:
    """`used_bytes` of at most `limit_bytes`."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Reserve; False (and nothing reserved) when it would not fit."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Return what was taken."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0
