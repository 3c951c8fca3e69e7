"""MovePace: when a node may give its next shard away, without IO.

The clients of a shard reconnect together when it moves, since their sessions move at one moment.
The gates of the nodes that take them admit the CONNECTs. So the next shard moves when these clients
are back, and no gate has CONNECTs that wait.
"""

from collections.abc import Iterable
from typing import Final, final

from flowguard.cluster.shards import NodeRecord

WAIT_MAX_S: Final = 30.0
"""Maximum wait before a move, seconds. Then the shard moves although clients are not back."""
MISSING_SHARE: Final = 0.1
"""Share of the clients of the last move that may stay away."""
MISSING_MIN: Final = 10
"""Number of clients that may stay away in any case."""


@final
class MovePace:
    def __init__(self) -> None:
        self._clients_min = 0
        """Number of clients of all nodes from which on the next move may begin."""
        self._since_s: float | None = None
        """Time since which a move waits, or None if none does."""

    def may_begin(self, holders: Iterable[NodeRecord], now_s: float) -> bool:
        """Return True if a move may begin. `holders` are the living nodes that have shards."""
        nodes = list(holders)
        if self._since_s is None:
            self._since_s = now_s
        is_back = sum(node.clients for node in nodes) >= self._clients_min
        is_calm = is_back and all(node.slots for node in nodes)
        return is_calm or now_s - self._since_s >= WAIT_MAX_S

    def rest(self) -> None:
        """No move of this node is due."""
        self._since_s = None

    def began(self, holders: Iterable[NodeRecord], moved: int) -> None:
        """A move has begun that will disconnect `moved` clients."""
        missing = max(MISSING_MIN, int(moved * MISSING_SHARE))
        self._clients_min = sum(node.clients for node in holders) - missing
        self._since_s = None
