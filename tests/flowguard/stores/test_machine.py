"""A durable store against the one in memory: random batches, clean ends, crashes, power failures.

A crash is a copy of the directory while the store is open, as the death of the process leaves it. A
power failure also removes an unsynced end of the log, cut anywhere.

At any moment, and after opening again, the store equals the memory. After a crash:

1. All appended, released or put data exists unchanged; dropped data does not.
2. Only Sent and Settle may be missing. A settled message comes again as it was.
3. The sent mark covers all sent positions, as far as there are positions.
4. `next_pos` is unchanged.
5. The counters are those of the existing entries.
6. When no work is left, no unreferenced data is left.

Messages that come again are then settled again, so that the next crash is compared with the same
memory.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from flowguard.config import MIB, StoreSettings
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
    SessionRecord,
    Settle,
    StoreOp,
    WillRecord,
    packet_id_of,
)
from flowguard.stores import MemoryStore
from flowguard.stores.rocks import RocksStore, pending, sweep
from flowguard.stores.rocks.database.rows import EngineBatch
from flowguard.stores.rocks.layouts import payloads, window
from flowguard.stores.rocks.layouts.codec import INLINE
from flowguard.types import Properties, Publish, SubscriptionOptions
from tests.flowguard.stores.test_contract import described, entry, queue_of, values

CLIENT_IDS = ["a", "ab", "a\0b"]
CLIENTS = st.sampled_from(CLIENT_IDS)
NOW = st.booleans()
"""Whether the batch ends here."""
FILTERS = st.sampled_from(["t", "t/#"])
IDS = st.integers(1, 3)
NEAR = st.integers(0, 12)
"""Index of an unsettled position, or, from 9 on, a distance after the last."""
PAYLOADS = st.sampled_from([b"", b"small", b"x" * 600, b"y" * 5_000])
PROPERTIES = st.sampled_from(
    [None, Properties(content_type="\u00e9"), Properties(user_properties=(("k", "v"),))]
)
QOS = st.integers(1, 2)
KNOWN = st.sampled_from(["as appended", "as fetched", "by value", "unknown"])
"""Possible kinds of `Settle.delivery` and `Release.delivery`."""


@st.composite
def messages(draw: st.DrawFn) -> Publish:
    properties = draw(PROPERTIES)
    more = {} if properties is None else {"properties": properties}
    return Publish(
        draw(st.sampled_from(["t", "t/\u20ac"])),
        draw(PAYLOADS),
        draw(QOS),
        draw(st.booleans()),
        **more,
    )


@st.composite
def deliveries(draw: st.DrawFn, message: Publish) -> Delivery:
    expires_at_s = draw(st.sampled_from([NEVER_S, NEVER_S, 1_700_000_000.5]))
    identifiers = draw(st.sampled_from([(), (1,), (5, 300_000)]))
    return Delivery(message, draw(QOS), draw(st.booleans()), identifiers, expires_at_s)


class AgainstMemory(RuleBasedStateMachine):
    """The machine of the module; subclasses set `layout`."""

    layout: str

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="flowguard-store-"))
        self.folder = self.root / "0"
        self.generation = 0
        self.memory = MemoryStore()
        self.appended: dict[tuple[str, int], Delivery] = {}
        """Everything each session ever got, by client and position."""
        self.clients: set[str] = set()
        """Every identifier each session ever had."""
        self.synced_bytes: dict[str, int] = {}
        self.store = self._open()
        self.batch: list[StoreOp] = [PutSession(client_id, 9, None) for client_id in CLIENT_IDS]
        self.commit()

    def _open(self) -> RocksStore:
        options = StoreSettings(
            layout=self.layout, durability="os", disk_reserve_bytes=0, write_buffer_bytes=MIB
        )
        store = RocksStore(
            self.folder, options, wall_s=lambda: 1_700_000_000.0, random_node=lambda: 7
        )
        store._engine.write = partial(self._write, store._engine.write)
        return store

    def _write(
        self,
        write: Callable[..., None],
        batch: EngineBatch,
        *,
        sync: bool = True,
        wait: bool = False,
    ) -> None:
        """Write; this test takes all data as synced that would be."""
        write(batch, wait=wait)
        if sync:
            self.synced_bytes = self._log_bytes()

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.store.close()
            shutil.rmtree(self.root)

    # --- what is written ----------------------------------------------------------------------

    @rule(
        now=NOW,
        client_id=CLIENTS,
        expiry=IDS,
        ends_at_s=st.none() | st.just(5.5),
        drop=st.sampled_from(["no", "no", "before", "after"]),
    )
    def put_session(
        self, now: bool, client_id: str, expiry: int, ends_at_s: float | None, drop: str
    ) -> None:
        if drop == "before":
            self._add(False, DropSession(client_id))
        self._add(False, PutSession(client_id, expiry, ends_at_s))
        if drop == "after":
            self._add(False, DropSession(client_id))
        self._add(now)

    @rule(
        now=NOW,
        data=st.data(),
        message=messages(),
        client_ids=st.lists(CLIENTS, min_size=1, max_size=7),
        same=st.booleans(),
        skipped=st.sampled_from([0, 0, 0, 0, 1, 3]),
    )
    def publish(
        self,
        now: bool,
        data: st.DataObject,
        message: Publish,
        client_ids: list[str],
        same: bool,
        skipped: int,
    ) -> None:
        """To some queues, as one delivery or as several of the same message."""
        delivery = data.draw(deliveries(message))
        for client_id in client_ids:
            if not same:
                delivery = data.draw(deliveries(message))
            self._add(False, Append(client_id, self._next_pos(client_id) + skipped, delivery))
        self._add(now)

    @rule(now=NOW, which=st.integers(0, 99), client_ids=st.lists(CLIENTS, min_size=1, max_size=4))
    def publish_again(self, now: bool, which: int, client_ids: list[str]) -> None:
        """A delivery that was appended before."""
        if self.appended:
            delivery = list(self.appended.values())[which % len(self.appended)]
            for client_id in client_ids:
                self._add(False, Append(client_id, self._next_pos(client_id), delivery))
            self._add(now)

    @rule(now=NOW, client_id=CLIENTS, ahead=NEAR, message=messages())
    def append_anywhere(self, now: bool, client_id: str, ahead: int, message: Publish) -> None:
        """Where something is, was, or will be."""
        delivery = Delivery(message, 1, False, (), NEVER_S)
        self._add(now, Append(client_id, self._position(client_id, ahead) or 1, delivery))

    @rule(now=NOW, client_id=CLIENTS, ahead=NEAR)
    def send(self, now: bool, client_id: str, ahead: int) -> None:
        self._add(now, Sent(client_id, self._position(client_id, ahead)))

    @rule(now=NOW, client_id=CLIENTS, ahead=NEAR, known=KNOWN)
    def settle(self, now: bool, client_id: str, ahead: int, known: str) -> None:
        pos = self._position(client_id, ahead)
        self._add(now, Settle(client_id, pos, self._known(client_id, pos, known)))

    @rule(now=NOW, client_id=CLIENTS, count=st.integers(1, 9))
    def settle_in_order(self, now: bool, client_id: str, count: int) -> None:
        for pos in [each.pos for each in self.memory.fetch(client_id, 0, count)]:
            self._add(False, Settle(client_id, pos, self._known(client_id, pos, "as appended")))
        self._add(now)

    @rule(now=NOW, client_id=CLIENTS, ahead=NEAR, known=KNOWN)
    def release(self, now: bool, client_id: str, ahead: int, known: str) -> None:
        pos = self._position(client_id, ahead)
        delivery = self._known(client_id, pos, known)
        self._add(now, Release(client_id, pos, packet_id_of(pos, 2), delivery))

    @rule(
        now=NOW,
        client_id=CLIENTS,
        put=st.booleans(),
        what=st.sampled_from(["inbound", "subscription", "will", "retained"]),
        packet_id=IDS,
        filter=FILTERS,
        message=messages(),
    )
    def put_more(
        self,
        now: bool,
        client_id: str,
        put: bool,
        what: str,
        packet_id: int,
        filter: str,
        message: Publish,
    ) -> None:
        """State of a session besides its queue, and state without an owner."""
        options = SubscriptionOptions(packet_id - 1, put, put, packet_id, packet_id)
        ops: dict[str, tuple[StoreOp, StoreOp]] = {
            "inbound": (PutInbound(client_id, packet_id), DropInbound(client_id, packet_id)),
            "subscription": (
                PutSubscription(client_id, filter, options),
                DropSubscription(client_id, filter),
            ),
            "will": (PutWill(client_id, WillRecord(message, 3)), PutWill(client_id, None)),
            "retained": (PutRetained(message, 5.5), DropRetained(message.topic)),
        }
        self._add(now, ops[what][0 if put else 1])

    def _add(self, now: bool, *ops: StoreOp) -> None:
        self.batch += ops
        if now:
            self.commit()

    def commit(self) -> None:
        batch, self.batch = self.batch, []
        self.memory.commit(batch)
        self.store.commit(batch)
        self._remember(batch)

    @rule(slices=st.sampled_from([1, 1, 5]))
    def maintain(self, slices: int) -> None:
        while slices and self.store.maintain():
            slices -= 1

    @rule()
    def maintain_all(self) -> None:
        """Until nothing is left to do."""
        for _ in range(1_000):
            if not self.store.maintain():
                break
        else:
            pytest.fail("there is always something left to do")
        engine = self.store._engine
        rows = engine.queues.scan(b"", b"\xff" * 8, 2**40, 2**40)
        entries = [
            each
            for record in self.memory.sessions()
            for each in self.store.fetch(record.client_id, 0, 1_000)
        ]
        assert sum(len(key) > 9 for key, _ in rows) <= len(entries) + len(self._settled_above())
        places = {
            each.delivery.place
            for each in entries
            if each.delivery is not None and each.delivery.place != INLINE
        }
        stored = engine.payloads.scan(b"", b"\xff" * 16, 2**40, 2**40)
        assert {key for key, _ in stored} == places

    # --- what may happen ----------------------------------------------------------------------

    @rule(
        how=st.sampled_from(["closed", "crash", "crash", "power", "power", "backup"]),
        kept=st.floats(0, 1),
    )
    def restart(self, how: str, kept: float) -> None:
        """`kept` is the share of the unsynced log that survives the power failure."""
        if how == "closed":
            self.store.close()
            self.store = self._open()
        elif how == "backup":
            self.generation += 1
            copy = self.root / str(self.generation)
            self.store.backup(copy)
            self._continue_with(copy)
        else:
            copy = self._copy()
            if how == "power":
                newest = max(copy.glob("*.log"))
                synced_bytes = self.synced_bytes.get(newest.name, 0)
                more_bytes = newest.stat().st_size - synced_bytes
                os.truncate(newest, synced_bytes + int(kept * more_bytes))
            self._continue_with(copy)

    def _copy(self) -> Path:
        self.generation += 1
        # RocksDB's threads end as with the process, so that no file changes while it is copied.
        self.store._engine._db.cancel_all_background(True)
        return shutil.copytree(self.folder, self.root / str(self.generation))

    def _continue_with(self, copy: Path) -> None:
        old = self.folder
        self.store.close()
        self.folder = copy
        self.store = self._open()
        shutil.rmtree(old)
        self._check_after_crash()
        self.synced_bytes = self._log_bytes()

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def says_what_the_memory_says(self) -> None:
        if not hasattr(self, "root"):
            return
        expected = {record.client_id: record for record in self.memory.sessions()}
        found = {record.client_id: record for record in self.store.sessions()}
        assert list(found) == list(expected)
        for client_id, record in expected.items():
            assert values(found[client_id]) == values(record)
            assert queue_of(self.store, client_id, 3) == queue_of(self.memory, client_id)
        assert list(self.store.retained()) == list(self.memory.retained())

    def _check_after_crash(self) -> None:
        expected = {record.client_id: record for record in self.memory.sessions()}
        found = {record.client_id: record for record in self.store.sessions()}
        assert list(found) == list(expected)
        for client_id, record in found.items():
            self._check_session(record, expected[client_id])
            self._check_queue(record, expected[client_id])

    def _check_session(self, found: SessionRecord, expected: SessionRecord) -> None:
        put = (
            "expiry_interval_s",
            "ends_at_s",
            "subscriptions",
            "inbound_ids",
            "will",
            "next_pos",
        )
        for name in put:
            assert getattr(found, name) == getattr(expected, name)
        assert found.sent_pos >= min(expected.sent_pos, expected.next_pos - 1)
        self.memory.commit([Sent(found.client_id, found.sent_pos)])
        self.store.commit([Sent(found.client_id, expected.sent_pos)])

    def _check_queue(self, found: SessionRecord, expected: SessionRecord) -> None:
        client_id = found.client_id
        there = {each.pos: each for each in self.store.fetch(client_id, 0, 1_000)}
        assert found.unsettled_count == len(there)
        assert found.unsettled_bytes == sum(
            each.delivery.size_bytes for each in there.values() if each.delivery is not None
        )
        owed = {each.pos: each for each in self.memory.fetch(client_id, 0, 1_000)}
        assert owed.keys() <= there.keys()
        again = there.keys() - owed.keys()
        for pos, expected_entry in owed.items():
            assert described(there[pos]) == described(expected_entry)
        for pos in again:
            if there[pos].delivery is not None:
                assert described(there[pos]) == entry(pos, self.appended[client_id, pos])
        self.store.commit([Settle(client_id, pos, there[pos].delivery) for pos in again])

    def _settled_above(self) -> list[int]:
        """Positions that are settled, with an unsettled one before them."""
        found: list[int] = []
        for record in self.memory.sessions():
            unsettled = {each.pos for each in self.memory.fetch(record.client_id, 0, 1_000)}
            if unsettled:
                taken = range(min(unsettled), record.next_pos)
                found += [pos for pos in taken if pos not in unsettled]
        return found

    # --- the other side of the rules ----------------------------------------------------------

    def _session(self, client_id: str) -> SessionRecord | None:
        found = [each for each in self.memory.sessions() if each.client_id == client_id]
        return found[0] if found else None

    def _next_pos(self, client_id: str) -> int:
        """Return the position after all existing ones, and all that this batch appends."""
        record = self._session(client_id)
        for op in reversed(self.batch):
            if isinstance(op, Append) and op.client_id == client_id:
                return op.pos + 1
            if isinstance(op, DropSession) and op.client_id == client_id:
                return 1
        return 1 if record is None else record.next_pos

    def _position(self, client_id: str, ahead: int) -> int:
        unsettled = self.memory.fetch(client_id, 0, 100)
        if unsettled and ahead < 9:
            return unsettled[ahead % len(unsettled)].pos
        return max(self._next_pos(client_id) - 1 + ahead - 9, 0)

    def _known(self, client_id: str, pos: int, known: str) -> Delivery | None:
        appended = self.appended.get((client_id, pos))
        for op in self.batch:
            if isinstance(op, Append) and (op.client_id, op.pos) == (client_id, pos):
                return None  # Whether it will be taken is not known yet.
            if isinstance(op, DropSession) and op.client_id == client_id:
                return None
        if known == "as fetched":
            entries = self.store.fetch(client_id, pos - 1, 1, until_pos=pos) if pos else []
            return entries[0].delivery if entries else None
        if appended is None or known == "unknown":
            return None
        if known == "by value":
            message, qos, retain = appended.message, appended.qos, appended.retain
            return Delivery(message, qos, retain, appended.identifiers, appended.expires_at_s)
        return appended

    def _remember(self, batch: list[StoreOp]) -> None:
        for op in batch:
            if isinstance(op, PutSession):
                self.clients.add(op.client_id)
            elif isinstance(op, DropSession):
                self.clients.discard(op.client_id)
                self.appended = {
                    key: value for key, value in self.appended.items() if key[0] != op.client_id
                }
            elif isinstance(op, Append) and op.client_id in self.clients:
                self.appended.setdefault((op.client_id, op.pos), op.delivery)

    def _log_bytes(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self.folder.glob("*.log")}


NUMBERS = {
    (window, "STRIDE_MAX"): 6,
    (window, "STRIDE_MIN"): 2,
    (window, "STRIDE_BYTES"): 800,
    (window, "TRIM_SINGLY_MAX"): 2,
    (pending, "TURNS"): 4,
    (pending, "QUIET_STEPS"): 8,
    (sweep, "SINGLY_MAX"): 2,
    (sweep, "QUEUES_MAX"): 1,
    (payloads, "SHARED_QUEUES_MIN"): 3,
}
"""So small that everything happens within a few steps."""


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["window", "status"])
def test_a_store_is_the_memory_made_durable(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for (module, name), number in NUMBERS.items():
        monkeypatch.setattr(module, name, number)

    class Machine(AgainstMemory):
        pass

    Machine.layout = layout
    run_state_machine_as_test(Machine)
