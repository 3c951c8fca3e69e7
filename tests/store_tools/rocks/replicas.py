"""Replicas of a store that live on separately, each beside a model of what it must know.

Every put happens in a millisecond of its own, its token: so tokens are in the order of uids, and a
row that is read says which put it is. A model knows which puts it has received; merging two is one
rule for all of them (`stays`), without any vector.
"""

import shutil
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from flowguard.config import StoreSettings
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    DropInbound,
    DropRetained,
    DropSession,
    DropSubscription,
    PutInbound,
    PutRetained,
    PutSession,
    PutSubscription,
    PutWill,
    Release,
    Sent,
    Settle,
    StoreOp,
    WillRecord,
    packet_id_of,
)
from flowguard.stores.rocks import RocksStore
from flowguard.stores.rocks.clock import COUNTER_BITS, EPOCH_S
from flowguard.stores.rocks.layouts.codec import entry_uid
from flowguard.stores.rocks.layouts.keys import pos_of
from flowguard.stores.rocks.layouts.session_codec import row_uid
from flowguard.stores.rocks.layouts.window import WindowQueue
from flowguard.types import Publish, SubscriptionOptions
from store_tools.rocks.merge import MergeReport, merge
from store_tools.rocks.reader import StoreReader

SETTINGS = StoreSettings(durability="os", disk_reserve_bytes=0)
K = TypeVar("K")


@dataclass
class Model:
    """Rows by what they are about; the value begins with the token of the put."""

    known: set[int] = field(default_factory=set)
    sessions: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Expiry, end, will."""
    entries: dict[tuple[str, int], tuple[Any, ...]] = field(default_factory=dict)
    """By client and token; whether it is released."""
    rows: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    """Subscriptions, inbound ids, retained messages."""

    def merged(self, other: "Model") -> "Model":
        entries = self.stays(other, self.entries, other.entries)
        for key in entries:
            released = any(key in each and each[key][1] for each in (self.entries, other.entries))
            entries[key] = (entries[key][0], released)
        sessions = self.stays(other, self.sessions, other.sessions)
        for client_id, _ in entries:
            mine, others = self.sessions.get(client_id), other.sessions.get(client_id)
            sessions[client_id] = max(each for each in (mine, others) if each is not None)
        rows = self.stays(other, self.rows, other.rows)
        rows = {key: row for key, row in rows.items() if key[0] == "" or key[0] in sessions}
        return Model(self.known | other.known, sessions, entries, rows)

    def stays(
        self, other: "Model", mine: dict[K, tuple[Any, ...]], others: dict[K, tuple[Any, ...]]
    ) -> dict[K, tuple[Any, ...]]:
        """The rule."""
        found = {key: max(mine[key], others[key]) for key in mine.keys() & others.keys()}
        for here, there, received in ((mine, others, other.known), (others, mine, self.known)):
            for key in here.keys() - there.keys():
                if here[key][0] not in received:
                    found[key] = here[key]
        return found


class World:
    """One clock, and a folder for all replicas."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_ms = 1_000_000
        self.names = count()
        self.nodes = count(1)

    def folder(self) -> Path:
        return self.root / f"store-{next(self.names)}"

    def open(self, folder: Path) -> RocksStore:
        return RocksStore(
            folder,
            SETTINGS,
            wall_s=lambda: EPOCH_S + (self.now_ms + 0.5) / 1_000,
            random_node=lambda: next(self.nodes),
        )


class Site:
    """A replica: what is done to it is done to its model."""

    def __init__(self, world: World, folder: Path, model: Model | None = None) -> None:
        self.world = world
        self.folder = folder
        self.model = model or Model()
        self.store = world.open(folder)

    def close(self) -> None:
        self.store.close()

    def fork(self, *, by_hand: bool = False) -> "Site":
        """A copy that lives on for itself."""
        copy = self.world.folder()
        if by_hand:
            self.store.close()
            shutil.copytree(self.folder, copy)
            self.store = self.world.open(self.folder)
        else:
            self.store.backup(copy)
        model = self.model
        return Site(
            self.world,
            copy,
            Model(set(model.known), dict(model.sessions), dict(model.entries), dict(model.rows)),
        )

    def _commit(self, *ops: StoreOp) -> int:
        self.world.now_ms += 1
        self.store.commit(ops)
        return self.world.now_ms

    def _put(self, *ops: StoreOp) -> int:
        token = self._commit(*ops)
        self.model.known.add(token)
        return token

    # --- sessions -----------------------------------------------------------------------------

    def connect(self, client_id: str, expiry: int = 9, ends_at_s: float | None = None) -> None:
        will = WillRecord(Publish("w", b"%d" % self.world.now_ms), 3) if expiry % 2 else None
        token = self._put(PutSession(client_id, expiry, ends_at_s), PutWill(client_id, will))
        payload = b"" if will is None else will.message.payload
        self.model.sessions[client_id] = (token, expiry, ends_at_s or 0, payload)

    def drop(self, client_id: str) -> None:
        self._commit(DropSession(client_id))
        model = self.model
        model.sessions.pop(client_id, None)
        for key in [key for key in model.entries if key[0] == client_id]:
            del model.entries[key]
        for row in [row for row in model.rows if row[0] == client_id]:
            del model.rows[row]

    def subscribe(self, client_id: str, filter: str, qos: int) -> None:
        if client_id in self.model.sessions:
            op = PutSubscription(client_id, filter, SubscriptionOptions(qos))
            self.model.rows[client_id, filter] = (self._put(op), qos)

    def unsubscribe(self, client_id: str, filter: str) -> None:
        self._commit(DropSubscription(client_id, filter))
        self.model.rows.pop((client_id, filter), None)

    def receive(self, client_id: str, packet_id: int) -> None:
        if client_id in self.model.sessions:
            self.model.rows[client_id, packet_id] = (self._put(PutInbound(client_id, packet_id)),)

    def complete(self, client_id: str, packet_id: int) -> None:
        self._commit(DropInbound(client_id, packet_id))
        self.model.rows.pop((client_id, packet_id), None)

    def retain(self, topic: str) -> None:
        payload = b"%d" % self.world.now_ms
        token = self._put(PutRetained(Publish(topic, payload, 1, True), NEVER_S))
        self.model.rows["", topic] = (token, payload)

    def unretain(self, topic: str) -> None:
        self._commit(DropRetained(topic))
        self.model.rows.pop(("", topic), None)

    # --- messages -----------------------------------------------------------------------------

    def publish(self, client_ids: list[str], size_bytes: int = 0, qos: int = 2) -> int:
        """Publish one message to all of them; its payload begins with its token."""
        token = self.world.now_ms + 1
        message = Publish("t", b"%d " % token + bytes(size_bytes), qos)
        ops: list[StoreOp] = []
        for record in self.store.sessions():
            if record.client_id in client_ids:
                delivery = Delivery(message, qos, False, (), NEVER_S)
                ops.append(Append(record.client_id, record.next_pos, delivery))
                self.model.entries[record.client_id, token] = (token, False)
        assert self._put(*ops) == token
        return token

    def send(self, client_id: str, messages: int) -> None:
        """Send `messages` messages that were not sent yet."""
        for record in self.store.sessions():
            if record.client_id == client_id:
                waiting = self.store.fetch(client_id, record.sent_pos, messages)
                if waiting:
                    self._commit(Sent(client_id, waiting[-1].pos))

    def _sent(self, client_id: str) -> list[tuple[int, int]]:
        """Position and token of what is in flight or released."""
        for record in self.store.sessions():
            if record.client_id == client_id:
                entries = self.store.fetch(client_id, 0, 1_000, until_pos=record.sent_pos)
                tokens = tokens_of(self.store._engine, client_id, self.store)
                return [(entry.pos, tokens[entry.pos]) for entry in entries]
        return []

    def deliver(self, client_id: str, number: int, released: bool) -> None:
        """A message is sent, and one of those that were is acknowledged, or received."""
        self.publish([client_id])
        self.send(client_id, 1_000)
        (self.release if released else self.settle)(client_id, number)

    def settle(self, client_id: str, number: int) -> None:
        """The one of that number among those in flight."""
        sent = self._sent(client_id)
        if sent:
            pos, token = sent[number % len(sent)]
            self._commit(Settle(client_id, pos))
            del self.model.entries[client_id, token]

    def release(self, client_id: str, number: int) -> None:
        sent = self._sent(client_id)
        if sent:
            pos, token = sent[number % len(sent)]
            self._commit(Release(client_id, pos, packet_id_of(pos, 2)))
            self.model.entries[client_id, token] = (token, True)


def tokens_of(engine: Any, client_id: str, store: RocksStore) -> dict[int, int]:
    queue = store._sessions.queue_of(client_id)
    rows = engine.queues.scan(queue.entry_key(0), queue.entry_key(2**63), 2**40, 2**40)
    return {pos_of(key): token_of(entry_uid(value)) for key, value in rows}


def token_of(uid: bytes) -> int:
    return int.from_bytes(uid[:8], "big") >> COUNTER_BITS


@dataclass
class Seen:
    """A store as it lies on the disk."""

    sessions: dict[str, tuple[Any, ...]]
    entries: dict[tuple[str, int], bool]
    rows: dict[tuple[Any, ...], tuple[Any, ...]]
    places: dict[tuple[str, int], int]
    """Positions of entries."""
    sent: dict[str, int]
    packet_ids: dict[tuple[str, int], int]
    received: dict[bytes, bytes]


def look(folder: Path) -> Seen:
    """Reads everything, and checks that counters and messages are what they should be."""
    with StoreReader(folder) as reader:
        found = Seen({}, {}, {}, {}, {}, {}, reader.identity.seen)
        for stored in reader.sessions():
            _look_at_session(reader, stored, found)
        for key, row in reader.engine.retained.scan(b"", b"\xff"):
            payload = row.rpartition(key)[2]
            found.rows["", key.decode()] = (token_of(row_uid(row)), payload)
    return found


def _look_at_session(reader: StoreReader, stored: Any, found: Seen) -> None:
    client_id, queue = stored.client_id, stored.queue
    assert isinstance(queue, WindowQueue)
    record = reader.record(stored)
    will = b"" if record.will is None else record.will.message.payload
    token = token_of(row_uid(stored.row))
    found.sessions[client_id] = (token, record.expiry_interval_s, record.ends_at_s or 0, will)
    found.sent[client_id] = queue.sent_pos
    entries = queue.fetch(reader.engine, 0, 2**20, 2**63 - 1, 2**40)
    size_bytes = 0
    for entry in entries:
        value = reader.engine.queues.get(queue.entry_key(entry.pos))
        assert value is not None
        key = client_id, token_of(entry_uid(value))
        assert key not in found.entries, "twice"
        found.entries[key] = entry.delivery is None
        found.places[key] = entry.pos
        found.packet_ids[key] = entry.packet_id
        if entry.delivery is not None:
            size_bytes += entry.delivery.size_bytes
            assert entry.delivery.message.payload.split()[0] == b"%d" % key[1]
    assert (queue.count, queue.size_bytes) == (len(entries), size_bytes)
    own = reader.engine.own.scan(*_own_range(queue.qno), 2**20, 2**40)
    for key_bytes, row in own:
        rest = key_bytes[10:]
        if key_bytes[9] == 1:
            options = record.subscriptions[rest.decode()]
            found.rows[client_id, rest.decode()] = (token_of(row_uid(row)), options.qos)
        elif key_bytes[9] == 2:
            found.rows[client_id, int.from_bytes(rest, "big")] = (token_of(row_uid(row)),)


def _own_range(qno: int) -> tuple[bytes, bytes]:
    return b"\x02" + qno.to_bytes(8, "big"), b"\x02" + (qno + 1).to_bytes(8, "big")


def merged(world: World, first: Path, second: Path) -> Path:
    return merged_with_report(world, first, second)[0]


def merged_with_report(world: World, first: Path, second: Path) -> tuple[Path, MergeReport]:
    out = world.folder()
    return out, merge(first, second, out, random_node=lambda: next(world.nodes))
