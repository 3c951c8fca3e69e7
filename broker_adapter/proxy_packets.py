"""Packets of a client on their way through the proxy: those that wait, and those in process."""

from typing import final

from mypy_extensions import mypyc_attr

from broker_adapter.proxy_frames import FrameHead


@final
class HeldPacket:
    """A packet that waits, as far as it has come."""

    __slots__ = ("data", "head")

    def __init__(self, head: FrameHead) -> None:
        self.head = head
        self.data = bytearray()

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come."""
        return len(self.data) == self.head.size_bytes


@final
@mypyc_attr(acyclic=True)
class Outstanding:
    """A packet in process: the upstream has not acknowledged it, or its socket not taken it."""

    __slots__ = ("cost", "since_s", "size_bytes")

    def __init__(self, cost: int, size_bytes: int, since_s: float) -> None:
        self.cost = cost
        self.size_bytes = size_bytes
        self.since_s = since_s
