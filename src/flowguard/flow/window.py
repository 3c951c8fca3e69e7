"""In-flight windows: how many PUBLISH, SUBSCRIBE and UNSUBSCRIBE of one client are in process.

A packet is in process from its decoding until the durable work for it is done. The limit is the
node's (`NodeWindow`, moved by the `LoadMeter`), the count is the client's (`InflightWindow`).
Shrinking never cancels admitted work: a client above a shrunken limit just admits nothing until
enough of its packets are done. (Source 004; design/overload.md 6.4, invariants 1 and 2.)
"""

from typing import final

WINDOW_MAX = 100
WINDOW_MIN = 1


@final
class NodeWindow:
    """The window every client of this node has right now: `limit` packets, 1 to `limit_max`."""

    __slots__ = ("closed", "limit", "limit_max")

    def __init__(self, limit_max: int = WINDOW_MAX) -> None:
        assert limit_max >= WINDOW_MIN
        self.limit_max = limit_max
        self.limit = limit_max
        self.closed = False
        """True while the node admits nothing at all: its journal is full, or it drains."""

    def resize(self, limit: int) -> None:
        """Move the limit, clamped to [1, `limit_max`]."""
        self.limit = min(self.limit_max, max(WINDOW_MIN, limit))


@final
class InflightWindow:
    """The packets of one client in process, against the node's limit."""

    __slots__ = ("_node", "in_process")

    def __init__(self, node: NodeWindow) -> None:
        self._node = node
        self.in_process = 0

    def room(self) -> int:
        """How many packets may still be admitted now; never negative."""
        node = self._node
        room = node.limit - self.in_process
        return room if room > 0 and not node.closed else 0

    def admit(self) -> None:
        """Count one packet. The caller asked `room()` in the same synchronous stretch."""
        assert self.in_process < self._node.limit
        self.in_process += 1

    def settle(self) -> None:
        """One admitted packet is done, or abandoned with its connection."""
        assert self.in_process > 0
        self.in_process -= 1
