"""A node of the model check of links whose store is a real `RedisStore`: one process of a shard."""

from collections.abc import Callable, Iterable, Iterator

from flowguard.cluster import OwedAddress
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    DropInbound,
    DropSubscription,
    PutInbound,
    PutSession,
    PutSubscription,
    QueueEntry,
    Settle,
    SinkKind,
    StoreOp,
    key_of,
    sink_of,
)
from flowguard.stores import Store as RealStore
from flowguard.types import SESSION_NEVER_EXPIRES, Publish, SubscriptionOptions
from tests.flowguard.cluster.node import Node, Store, Then

PAGE = 1_000
Entry = tuple[str, int, bytes]
"""Session, position and data of a queue entry."""


def delivery(data: bytes, qos: int) -> Delivery:
    return Delivery(Publish("t", data, qos), qos, False, (), NEVER_S)


def put_session(key: str, user: str = "") -> PutSession:
    return PutSession(key, SESSION_NEVER_EXPIRES, None, False, user)


class _Ids(set[int]):
    """Packet ids of QoS 2 messages of a publisher; changes become operations."""

    def __init__(self, client: str, ops: list[StoreOp], found: Iterable[int] = ()) -> None:
        super().__init__(found)
        self._client, self._ops = client, ops

    def add(self, packet_id: int) -> None:
        super().add(packet_id)
        self._ops.append(PutInbound(self._client, packet_id))

    def discard(self, packet_id: int) -> None:  # type: ignore[override]
        super().discard(packet_id)
        self._ops.append(DropInbound(self._client, packet_id))


class _Filters(set[str]):
    def __init__(self, client: str, ops: list[StoreOp], found: Iterable[str] = ()) -> None:
        super().__init__(found)
        self._client, self._ops = client, ops

    def add(self, filter: str) -> None:
        super().add(filter)
        self._ops.append(PutSubscription(self._client, filter, SubscriptionOptions(2)))

    def discard(self, filter: str) -> None:  # type: ignore[override]
        super().discard(filter)
        self._ops.append(DropSubscription(self._client, filter))


class _Marks(dict[str, OwedAddress]):
    def __init__(self, ops: list[StoreOp]) -> None:
        super().__init__()
        self._ops = ops

    def __setitem__(self, peer: str, mark: OwedAddress) -> None:
        super().__setitem__(peer, mark)
        self._ops.append(put_session(key_of(SinkKind.PEER, peer), f"{mark[0]} {mark[1]}"))


class _Owed(dict[OwedAddress, bytes]):
    """What is owed to a peer, by address; the store keeps the address with each message."""

    def __init__(self, peer: str, ops: list[StoreOp]) -> None:
        super().__init__()
        self._key, self._ops = key_of(SinkKind.PEER, peer), ops
        self.places: dict[OwedAddress, int] = {}
        self.next_pos = 1

    def __setitem__(self, address: OwedAddress, data: bytes) -> None:
        super().__setitem__(address, data)
        self.places[address] = self.next_pos
        row = b"%d %d|%b" % (*address, data)
        self._ops.append(Append(self._key, self.next_pos, delivery(row, 2)))
        self.next_pos += 1

    def pop(self, address: OwedAddress, default: object = None) -> object:  # type: ignore[override]
        if address in self:
            self._ops.append(Settle(self._key, self.places.pop(address)))
        return super().pop(address, default)

    def restore(self, pos: int, row: bytes) -> None:
        address, _, data = row.partition(b"|")
        incarnation, number = map(int, address.split())
        super().__setitem__((incarnation, number), data)
        self.places[incarnation, number] = pos


class LoadedStore(Store):
    """What Redis has of a shard. Changes are noted in `ops`, which the process commits."""

    def __init__(self, clients: Iterable[str], peers: Iterable[str]) -> None:
        super().__init__()
        self.ops: list[StoreOp] = []
        self.entries: list[Entry] = []
        """Queue entries, those that were read and those of the commit under way."""
        self.clients = list(clients)
        self.inbound = {client: _Ids(client, self.ops) for client in self.clients}
        self.subscriptions = {client: _Filters(client, self.ops) for client in self.clients}
        self.marks = _Marks(self.ops)
        self.queues = {peer: _Owed(peer, self.ops) for peer in peers}
        self.owed.update(self.queues)

    def load(self, store: RealStore) -> list[StoreOp]:
        """Read everything. Return operations that make the sessions which are missing."""
        lacking = {*self.clients, *(key_of(SinkKind.PEER, peer) for peer in self.owed)}
        for record in store.sessions():
            key = record.client_id
            lacking.discard(key)
            kind, name = sink_of(key)
            rows = [
                (entry.pos, entry.delivery.message.payload)
                for entry in _entries(store, key)
                if entry.delivery is not None
            ]
            if kind is SinkKind.PEER:
                if record.user:
                    incarnation, number = map(int, record.user.split())
                    dict.__setitem__(self.marks, name, (incarnation, number))
                self.queues[name].next_pos = record.next_pos
                for pos, row in rows:
                    self.queues[name].restore(pos, row)
            else:
                self.positions[key] = record.next_pos - 1
                self.inbound[key] = _Ids(key, self.ops, record.inbound_ids)
                self.subscriptions[key] = _Filters(key, self.ops, record.subscriptions)
                self.entries += [(key, pos, data) for pos, data in rows]
        return [put_session(key) for key in sorted(lacking)]


def _entries(store: RealStore, key: str) -> Iterator[QueueEntry]:
    after_pos = 0
    while page := store.fetch(key, after_pos, PAGE):
        yield from page
        after_pos = page[-1].pos


class ShardNode(Node):
    """Sessions, routes and links of one process of a shard."""

    is_stopped: Callable[[], bool]
    """True while its process or its machine stands still."""
    store: LoadedStore

    @property
    def runs(self) -> bool:
        return not (self.has_crashed or self.is_paused or self.is_stopped())

    @property
    def has_work(self) -> bool:
        return bool(self._journal)

    def begin_commit(self) -> tuple[list[StoreOp], list[Entry], list[Then]]:
        """Return the oldest work of the journal: operations, queue entries, continuations."""
        thens: list[Then] = []
        for _ in range(min(2, len(self._journal))):
            ops, then = self._journal.popleft()
            for op in ops:
                op()
            if then is not None:
                thens.append(then)
        taken, entries = list(self.store.ops), list(self.store.entries)
        self.store.ops.clear()
        self.store.entries.clear()
        return taken, entries, thens

    def _append(self, session: str, position: int, data: bytes) -> None:
        self.store.ops.append(Append(session, position, delivery(data, int(data.split()[3]))))
        self.store.entries.append((session, position, data))
        self.store.positions[session] = position

    def commit(self, now_s: float) -> bool:
        return False  # The fibre of the process commits.
