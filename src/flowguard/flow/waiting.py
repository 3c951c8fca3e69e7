"""WaitingRoom: the CONNECTs that wait for a place, bounded in count, bytes and patience.

Three queues, first in first out, one per `Resumption`; the head that has waited longest goes next,
where a class further back counts as having come 2 s later. So resumptions go before new clients,
and a new client that waited 4 s before a resumption that came just now.

One CONNECT per client id: a newer one supersedes it. Who has waited out its patience is late: it is
never admitted any more, but keeps its entry and bytes until somebody has the time to answer it.
Every operation costs O(1), amortised: who leaves early is found by its key, and expiry looks at
heads only. Who is taken to be in time though it waited outside for long may stand before one that
is late earlier; these are at most as many as there are places, or as are served in a tick.
"""

from collections import OrderedDict
from math import inf
from typing import Final, Generic, TypeVar, final

from flowguard.flow.policy import Arrival, Resumption
from flowguard.flow.verdict import Reason

AGEING_S: Final = 2.0
"""Waiting that is worth one class, seconds."""

K = TypeVar("K")


@final
class _Entry(Generic[K]):
    """One CONNECT that waits, and the queue it stands in."""

    __slots__ = ("came_s", "client_id", "held_bytes", "queue", "rank_s", "since_s", "size_bytes")

    def __init__(
        self, arrival: Arrival, since_s: float, came_s: float, queue: "OrderedDict[K, _Entry[K]]"
    ) -> None:
        self.came_s = came_s
        self.client_id = arrival.client_id
        self.size_bytes = arrival.size_bytes
        self.held_bytes = arrival.size_bytes + arrival.held_bytes
        self.since_s = since_s
        self.rank_s = since_s + AGEING_S * arrival.resumption
        """The smallest goes first; two entries keep their order, however long they wait."""
        self.queue = queue


@final
class WaitingRoom(Generic[K]):
    """CONNECTs in the order in which they may go in, keyed by the caller's object (hashable)."""

    def __init__(self, *, entries_max: int, bytes_max: int, patience_s: float) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self.patience_s = patience_s
        """Who has waited longer is late."""
        self._entries: dict[K, _Entry[K]] = {}
        self._queues: list[OrderedDict[K, _Entry[K]]] = [OrderedDict() for _ in Resumption]
        self._late: OrderedDict[K, _Entry[K]] = OrderedDict()
        self._key_of_client: dict[str, K] = {}
        self._superseded: OrderedDict[K, None] = OrderedDict()
        self.size_bytes = 0
        self.held_bytes = 0
        """With the memory of their connections."""

    def __len__(self) -> int:
        """Entries taken, those of the late included."""
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries or key in self._superseded

    @property
    def hopeful(self) -> int:
        """CONNECTs that may still be admitted."""
        return len(self._entries) - len(self._late)

    @property
    def oldest_s(self) -> float:
        """Since when the one of them waits that came first; `inf`: there is none."""
        heads = [next(iter(queue.values())).since_s for queue in self._queues if queue]
        return min(heads, default=inf)

    @property
    def has_superseded(self) -> bool:
        """Whether `take_superseded` would return somebody."""
        return bool(self._superseded)

    def why_not(self, size_bytes: int) -> Reason | None:
        """Why there is no room for one more of `size_bytes`; None: there is."""
        if len(self._entries) >= self._entries_max:
            return Reason.GATE_BUFFER_FULL
        if self.size_bytes + size_bytes > self._bytes_max:
            return Reason.GATE_BUFFER_BYTES
        return None

    def add(self, key: K, arrival: Arrival, since_s: float, came_s: float) -> None:
        """Its patience counts since then, and it came then, which may be before that; the caller
        asked `why_not` and called `supersede`."""
        assert self.why_not(arrival.size_bytes) is None
        queue = self._queues[arrival.resumption]
        entry = _Entry(arrival, since_s, came_s, queue)
        queue[key] = self._entries[key] = entry
        self.size_bytes += entry.size_bytes
        self.held_bytes += entry.held_bytes
        if entry.client_id:
            assert entry.client_id not in self._key_of_client
            self._key_of_client[entry.client_id] = key

    def supersede(self, client_id: str) -> None:
        """This client asks again: its CONNECT that waits gives its entry and bytes back."""
        key = self._key_of_client.get(client_id)
        if key is not None:
            self._remove(key)
            self._superseded[key] = None

    def leave(self, key: K) -> float | None:
        """Its connection is gone; returns when it came, None: it is not here."""
        entry = self._entries.get(key)
        if entry is None:
            self._superseded.pop(key, None)
            return None
        self._remove(key)
        return entry.came_s

    def expire(self, now_s: float) -> None:
        """Mark as late whoever has waited out its patience."""
        for queue in self._queues:
            while queue:
                key, entry = next(iter(queue.items()))
                if now_s - entry.since_s < self.patience_s:
                    break
                del queue[key]
                self._late[key] = entry
                entry.queue = self._late

    def take_superseded(self) -> K | None:
        """One that its own client has superseded, removed."""
        return self._superseded.popitem(last=False)[0] if self._superseded else None

    def take_late(self) -> K | None:
        """One that is late, removed; call `expire` before."""
        if not self._late:
            return None
        key = next(iter(self._late))
        self._remove(key)
        return key

    def take_next(self) -> K | None:
        """The entry that goes in next, removed; call `expire` before."""
        best: _Entry[K] | None = None
        best_key: K | None = None
        for queue in self._queues:
            if queue:
                key, entry = next(iter(queue.items()))
                # At the same rank who came first goes first: it is of the class further back.
                if best is None or entry.rank_s <= best.rank_s:
                    best, best_key = entry, key
        if best_key is not None:
            self._remove(best_key)
        return best_key

    def take_any(self) -> K | None:
        """One of all that are here, the late first, the superseded last, removed."""
        key = self.take_late()
        if key is None:
            key = self.take_next()
        return self.take_superseded() if key is None else key

    def _remove(self, key: K) -> None:
        entry = self._entries.pop(key)
        del entry.queue[key]
        self.size_bytes -= entry.size_bytes
        self.held_bytes -= entry.held_bytes
        if entry.client_id:
            del self._key_of_client[entry.client_id]
