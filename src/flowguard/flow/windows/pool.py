"""FairPool: the order of clients once all together have as much in process as the node may.

Tenants take turns, and inside a tenant its clients. The cost they were served counts, by weight,
not the number of turns. A turn is taken before its cost is known: it is charged as one unit, and
the rest when its client wants the next one. A client that has waited `PROGRESS_S` goes first, at
any cost served before, so no client starves.

This is start-time fair queueing: each member has a tag, the cost it was served by its weight, and
the smallest is next. Deficit round robin serves the same shares, but a client that owes a hundred
units would make it walk a hundred rounds over all others; the smallest tag is found in O(log n).
Idle clients cost nothing, and `forget` ends all debts.
"""

from collections import OrderedDict
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar, final

K = TypeVar("K")

PROGRESS_S: Final = 5.0
"""Wait after which a client goes first, seconds."""


@final
class _Turns(Generic[K]):
    """Members of one level by the cost they were served; some of them wait."""

    __slots__ = ("_heap", "_serial", "_tags", "_virtual", "_waiting")

    def __init__(self) -> None:
        self._virtual = 0.0
        """Tag of the member served last. A new member gets at least this tag, so idling saves
        nothing up."""
        self._tags: dict[K, float] = {}
        self._waiting: dict[K, int] = {}
        """Serial numbers of valid entries of the heap."""
        self._heap: list[tuple[float, int, K]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_forgotten(self) -> bool:
        """True if it has no members any more."""
        return not self._tags

    def join(self, key: K) -> None:
        """Wait; equal tags go first come, first served. Does nothing if the member waits
        already."""
        if key not in self._waiting:
            self._tags[key] = max(self._virtual, self._tags.get(key, 0.0))
            self._push(key)

    def charge(self, key: K, amount: float) -> None:
        """`key` was served `amount`, cost by weight."""
        if amount and key in self._tags:
            self._tags[key] += amount
            if key in self._waiting:
                self._push(key)

    def first(self) -> K:
        """Return the member that is next; at least one waits."""
        heap = self._heap
        while self._waiting.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        return heap[0][2]

    def serve(self, key: K) -> None:
        """`key` waits no more, and owes nothing yet."""
        del self._waiting[key]
        self._virtual = max(self._virtual, self._tags[key])

    def rest(self, key: K) -> None:
        """`key` waits no more without having been served."""
        self._waiting.pop(key, None)

    def leave(self, key: K) -> None:
        """Forget `key`, in any state."""
        self._waiting.pop(key, None)
        self._tags.pop(key, None)

    def _push(self, key: K) -> None:
        self._serial += 1
        self._waiting[key] = self._serial
        heappush(self._heap, (self._tags[key], self._serial, key))
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = sorted(
                (self._tags[member], serial, member) for member, serial in self._waiting.items()
            )


@final
class FairPool(Generic[K]):
    """Clients that wait for a turn, keyed by the caller's object (hashable)."""

    def __init__(self) -> None:
        self._tenants: _Turns[str] = _Turns()
        self._turns: dict[str, _Turns[K]] = {}
        self._clients: dict[K, tuple[str, float]] = {}
        """Tenant and weight of all clients that were served, or wait."""
        self._since_s: OrderedDict[K, float] = OrderedDict()
        """Start of each client's wait, oldest first."""

    def __len__(self) -> int:
        """Number of clients that wait."""
        return len(self._since_s)

    def wait(self, key: K, tenant: str, weight: float, cost: int, now_s: float) -> None:
        """Want a turn; `cost` is that of the last one. Tenants and weights do not change."""
        assert weight > 0
        turns = self._turns.get(tenant)
        if turns is None:
            turns = self._turns[tenant] = _Turns()
        self._clients.setdefault(key, (tenant, weight))
        if cost > 1:
            turns.charge(key, (cost - 1) / weight)
            self._tenants.charge(tenant, cost - 1)
        if key not in self._since_s:
            self._since_s[key] = now_s
        turns.join(key)
        self._tenants.join(tenant)

    def next(self, now_s: float) -> K | None:
        """Return the next client, or None if none waits."""
        if not self._since_s:
            return None
        key, since_s = next(iter(self._since_s.items()))
        if now_s - since_s < PROGRESS_S:
            key = self._turns[self._tenants.first()].first()
        del self._since_s[key]
        tenant, weight = self._clients[key]
        turns = self._turns[tenant]
        turns.serve(key)
        turns.charge(key, 1 / weight)
        self._tenants.serve(tenant)
        self._tenants.charge(tenant, 1)
        if len(turns):
            self._tenants.join(tenant)
        return key

    def leave(self, key: K) -> None:
        """The client has ended, whether or not it waited."""
        client = self._clients.pop(key, None)
        if client is None:
            return
        tenant, _ = client
        self._since_s.pop(key, None)
        turns = self._turns[tenant]
        turns.leave(key)
        if turns.is_forgotten:
            del self._turns[tenant]
            self._tenants.leave(tenant)
        elif not len(turns):
            self._tenants.rest(tenant)

    def forget(self) -> None:
        """All clients have capacity again: forget all members and debts."""
        assert not self._since_s
        self._tenants = _Turns()
        self._turns.clear()
        self._clients.clear()
