"""WaitingRoom: the CONNECTs that wait for a slot, bounded in count, bytes and time.

First in, first out. One CONNECT per client id: a newer one supersedes it. A CONNECT that has waited
for the connect timeout of clients is late: it is never admitted any more, but keeps its entry and
bytes until there is time to answer it. Every operation costs O(1), amortised: a CONNECT that leaves
early is found by its key, and expiry looks at the first one only. A CONNECT that counts as being in
time although it waited outside for long may stand before one that is late earlier; these are at
most as many as there are slots, or as are served in a tick.
"""

from collections import OrderedDict
from math import inf
from typing import Final, Generic, TypeVar, final

from flowguard.flow.policy import Arrival
from flowguard.flow.verdict import Reason

K = TypeVar("K")


@final
class _Entry:
    __slots__ = ("came_s", "client_id", "held_bytes", "since_s", "size_bytes")

    def __init__(self, arrival: Arrival, since_s: float, came_s: float) -> None:
        self.came_s: Final = came_s
        self.client_id: Final = arrival.client_id
        self.size_bytes: Final = arrival.size_bytes
        self.held_bytes: Final = arrival.size_bytes + arrival.held_bytes
        self.since_s: Final = since_s


@final
class WaitingRoom(Generic[K]):
    """CONNECTs in the order of their admission, keyed by the caller's object (hashable)."""

    def __init__(self, *, entries_max: int, bytes_max: int, patience_s: float) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self.patience_s = patience_s
        """A CONNECT that has waited longer is late."""
        self._hopeful: OrderedDict[K, _Entry] = OrderedDict()
        self._late: OrderedDict[K, _Entry] = OrderedDict()
        self._key_of_client: dict[str, K] = {}
        self._superseded: OrderedDict[K, None] = OrderedDict()
        self.size_bytes = 0
        """Total size of all waiting CONNECTs."""
        self.held_bytes = 0
        """Memory of all waiting CONNECTs and their connections."""

    def bound(self, entries_max: int, bytes_max: int) -> None:
        """Use other bounds from now on; nothing that waits is removed."""
        self._entries_max, self._bytes_max = entries_max, bytes_max

    def __len__(self) -> int:
        """Number of waiting CONNECTs, including the late ones."""
        return len(self._hopeful) + len(self._late)

    def __contains__(self, key: K) -> bool:
        return key in self._hopeful or key in self._late or key in self._superseded

    @property
    def hopeful(self) -> int:
        """CONNECTs that may still be admitted."""
        return len(self._hopeful)

    @property
    def oldest_s(self) -> float:
        """Start of the wait of the CONNECT that is next; `inf` if none waits."""
        return next(iter(self._hopeful.values())).since_s if self._hopeful else inf

    @property
    def has_superseded(self) -> bool:
        return bool(self._superseded)

    def why_not(self, size_bytes: int) -> Reason | None:
        """Return why one more of `size_bytes` does not fit, or None if it does."""
        if len(self) >= self._entries_max:
            return Reason.GATE_BUFFER_FULL
        if self.size_bytes + size_bytes > self._bytes_max:
            return Reason.GATE_BUFFER_BYTES
        return None

    def add(self, key: K, arrival: Arrival, since_s: float, came_s: float) -> None:
        """Add a CONNECT whose time counts since `since_s`, and that arrived at `came_s` or before.

        The caller asked `why_not` and called `supersede`.
        """
        assert self.why_not(arrival.size_bytes) is None
        entry = self._hopeful[key] = _Entry(arrival, since_s, came_s)
        self.size_bytes += entry.size_bytes
        self.held_bytes += entry.held_bytes
        if entry.client_id:
            assert entry.client_id not in self._key_of_client
            self._key_of_client[entry.client_id] = key

    def supersede(self, client_id: str) -> None:
        """The client has sent another CONNECT: the waiting one gives its entry and bytes back."""
        key = self._key_of_client.get(client_id)
        if key is not None:
            self.leave(key)
            self._superseded[key] = None

    def leave(self, key: K) -> float | None:
        """The connection has ended. Return when its CONNECT arrived, or None if it does not
        wait."""
        entry = self._hopeful.pop(key, None) or self._late.pop(key, None)
        if entry is None:
            self._superseded.pop(key, None)
            return None
        self.size_bytes -= entry.size_bytes
        self.held_bytes -= entry.held_bytes
        if entry.client_id:
            del self._key_of_client[entry.client_id]
        return entry.came_s

    def expire(self, now_s: float) -> None:
        """Mark as late all CONNECTs that have waited too long."""
        hopeful = self._hopeful
        while hopeful:
            key, entry = next(iter(hopeful.items()))
            if now_s - entry.since_s < self.patience_s:
                break
            del hopeful[key]
            self._late[key] = entry

    def take_superseded(self) -> K | None:
        """Remove and return a CONNECT that its own client has superseded."""
        return self._superseded.popitem(last=False)[0] if self._superseded else None

    def take_late(self) -> K | None:
        """Remove and return a late CONNECT; call `expire` before."""
        return self._take(self._late)

    def take_next(self) -> K | None:
        """Remove and return the next CONNECT to admit; call `expire` before."""
        return self._take(self._hopeful)

    def take_any(self) -> K | None:
        """Remove and return any CONNECT: late ones first, superseded ones last."""
        key = self.take_late()
        if key is None:
            key = self.take_next()
        return self.take_superseded() if key is None else key

    def _take(self, queue: OrderedDict[K, _Entry]) -> K | None:
        if not queue:
            return None
        key = next(iter(queue))
        self.leave(key)
        return key
