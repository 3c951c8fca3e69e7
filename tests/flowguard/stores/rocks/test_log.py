"""The durable log in RocksDB: the contract's promises for rows on a disk."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from flowguard.config import MIB, StoreSettings
from flowguard.errors import CorruptionError, NoSpaceError, StallError, StoreError
from flowguard.records import (
    NEVER_S,
    Append,
    AppendToLog,
    Delivery,
    PutLogPlace,
    PutSession,
    StoreOp,
)
from flowguard.routing.filters import matches
from flowguard.stores import MemoryStore
from flowguard.stores.log.generations import LAYOUTS
from flowguard.stores.log.iterators import Ahead, LogIterator
from flowguard.stores.log.logged import LoggedMessage
from flowguard.stores.log.message_log import MessageLog
from flowguard.stores.log.rows import ReadBounds, Sieve, sift
from flowguard.stores.rocks import RocksStore
from flowguard.stores.rocks.database.engine import RocksEngine, families_in
from flowguard.stores.rocks.layouts.keys import FORMAT_KEY
from flowguard.types import Publish
from store_tools.rocks import merge, verification
from store_tools.rocks.reader import StoreReader
from tests.flowguard.stores.rocks.limits import file_size_limit

NOW_S = 1_700_000_000.0


class Wall:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def opened(folder: Path, wall: Callable[[], float] = lambda: NOW_S, **more: object) -> RocksStore:
    options = StoreSettings(durability="os", disk_reserve_bytes=0, write_buffer_bytes=MIB, **more)
    return RocksStore(
        folder, options, wall_s=wall, random_node=lambda: 7, free_bytes=lambda _: 2**40
    )


def logged(topic: str, payload: bytes = b"", publisher: str = "p") -> AppendToLog:
    return AppendToLog(publisher, Publish(topic, payload, 1), NEVER_S)


def read(log: MessageLog, iterator: LogIterator) -> tuple[list[LoggedMessage], LogIterator]:
    found: list[LoggedMessage] = []
    while True:
        page = log.next(iterator, 7, MIB)
        found += page.messages
        iterator = page.iterator
        if page.ahead is not Ahead.MORE:
            return found, iterator


def replay(log: MessageLog, *filters: str, start: int = 0) -> list[str]:
    """Topics and payloads."""
    return [
        f"{each.message.topic} {each.message.payload.decode()}"
        for stream in log.get_streams(start)
        for each in read(log, log.make_iterator(stream, filters, start))[0]
    ]


def test_a_log_and_queues_are_one_commit(tmp_path: Path) -> None:
    """A batch that is not written leaves nothing, neither in a queue nor in the log."""
    store = opened(tmp_path / "s")
    store.commit([PutSession("c", 9, None), logged("t", b"1")])
    write = store._engine.write

    def stalled(*_: object, **__: object) -> None:
        raise StallError("for once")

    batch: list[StoreOp] = [
        logged("t", b"2"),
        Append("c", 1, Delivery(Publish("t", b"2", 1), 1, False, (), NEVER_S)),
    ]
    store._engine.write = stalled
    with pytest.raises(StallError):
        store.commit(batch)
    assert replay(store.log, "#") == ["t 1"]
    assert store.fetch("c", 0, 9) == []
    store._engine.write = write
    store.commit(batch)
    assert replay(store.log, "#") == ["t 1", "t 2"]
    assert store.log.generations[0].count == 2
    assert [each.pos for each in store.fetch("c", 0, 9)] == [1]
    store.close()


def test_what_a_batch_learned_that_was_not_written_is_stored_with_the_next(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", log_layout="skipstream")
    store.commit([logged("a/b")])
    write = store._engine.write

    def stalled(*_: object, **__: object) -> None:
        raise StallError("for once")

    store._engine.write = stalled
    with pytest.raises(StallError):
        store.commit([logged("c/d")])
    store._engine.write = write
    store.commit([logged("c/d", b"2")])
    store.close()
    store = opened(tmp_path / "s")
    assert replay(store.log, "c/+") == ["c/d 2"]
    assert sorted(replay(store.log, "#")) == ["a/b ", "c/d 2"]
    store.close()


def test_who_has_missed_the_same_is_given_one_page(tmp_path: Path) -> None:
    """A page is read and decoded once, whatever else happened between their disconnections."""
    store = opened(tmp_path / "s")
    store.commit([*(PutSession(name, 9, None) for name in "abc"), logged("t", b"0")])
    message = Delivery(Publish("t", b"", 1), 1, False, (), NEVER_S)
    store.commit([PutLogPlace("a", None), Append("c", 1, message)])
    store.commit([Append("c", 2, message)])
    store.commit([PutLogPlace("b", None)])
    store.commit([logged("t", b"1"), logged("u", b"2")])
    one = store.read_log("a", ["t"], 9, MIB)
    assert [each.message.payload for each in one.messages] == [b"1"]
    assert store.read_log("b", ["t"], 9, MIB) is one
    assert store.read_log("b", ["#"], 9, MIB) is not one
    store.commit([logged("t", b"3"), PutLogPlace("a", one.place)])
    assert store.read_log("b", ["t"], 9, MIB) is one, "it reads on from there"
    more = store.read_log("a", ["t"], 9, MIB)
    assert [each.message.payload for each in more.messages] == [b"3"]
    store.close()


def test_a_commit_of_the_log_is_synced(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    store.commit([logged("t")])
    synced: list[bool] = []
    write = store._engine.write
    store._engine.write = lambda batch, *, sync=True, wait=False: (  # type: ignore[method-assign]
        synced.append(sync),
        write(batch, sync=sync, wait=wait),
    )[1]
    store.commit([logged("t"), logged("t")])
    assert synced == [True]
    store.close()


def test_what_was_logged_is_there_after_a_restart(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    store.commit([logged(f"a/{n % 3}", b"%d" % n) for n in range(30)])
    (first, *_) = [
        store.log.make_iterator(s, ["a/+"])
        for s in store.log.get_streams()
        if store.log.next(store.log.make_iterator(s, ["a/+"]), 1, MIB).messages
    ]
    page = store.log.next(first, 4, MIB)
    store.close()
    store = opened(tmp_path / "s")
    rest, iterator = read(store.log, page.iterator)
    numbers = [int(each.message.payload) for each in [*page.messages, *rest]]
    assert sorted(numbers) == list(range(30))
    store.commit([logged("a/0", b"30"), logged("$a/0", b"31")])
    more, _ = read(store.log, iterator)
    assert [each.message.payload for each in more] == [b"30"]
    store.close()


def test_a_clock_that_is_set_back_hides_nothing(tmp_path: Path) -> None:
    wall = Wall()
    store = opened(tmp_path / "s", wall)
    store.commit([logged("t", b"1")])
    store.log.roll()
    wall.now_s += 3_600
    store.commit([])
    store.close()
    wall.now_s -= 7_200
    store = opened(tmp_path / "s", wall)
    store.commit([logged("t", b"2")])
    assert replay(store.log, "t") == ["t 1", "t 2"]
    store.close()


def test_retention_deletes_families(tmp_path: Path) -> None:
    wall = Wall()
    store = opened(tmp_path / "s", wall, log_retention_s=80)
    for n in range(30):
        store.commit([logged("t", b"%d" % n)])
        wall.now_s += 5
        while store.maintain():
            pass
    kept = replay(store.log, "t")
    assert kept[-1] == "t 29"
    assert 16 <= len(kept) <= 22
    names = [name for name in families_in(tmp_path / "s") if name.startswith("log.")]
    assert len(names) == len(store.log.generations) <= 10
    store.close()
    store = opened(tmp_path / "s", wall, log_retention_s=80)
    assert replay(store.log, "t") == kept
    assert store.log.lost_count(0) == 30 - len(kept)
    store.close()


def test_of_a_burst_between_two_slices_of_upkeep_as_much_is_kept_as_asked_for(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path / "s", log_bytes_max=MIB)
    for _ in range(40):
        store.commit([logged("t", bytes(32 * 1024))])
    while store.maintain():
        pass
    kept = sum(each.size_bytes for each in store.log.generations)
    assert MIB * 3 // 4 < kept <= MIB
    store.close()


@pytest.mark.parametrize("by_upkeep", [False, True])
def test_a_generation_for_which_there_is_no_space_begins_when_there_is(
    tmp_path: Path, by_upkeep: bool
) -> None:
    store = opened(tmp_path / "s", log_bytes_max=MIB)
    store.commit([logged("t", bytes(MIB // 8))])
    with file_size_limit(tmp_path / "s", 0):
        if by_upkeep:
            assert not store.maintain()
        else:
            with pytest.raises(NoSpaceError):
                store.commit([logged("t", b"x")])
        assert store.load().read_only
    store.commit([logged("t", b"x")])
    assert [each.count for each in store.log.generations] == [1, 1]
    store.close()
    store = opened(tmp_path / "s")
    assert replay(store.log, "t")[1:] == ["t x"]
    store.close()


def test_rows_that_retention_could_not_delete_are_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "s", log_bytes_max=MIB)
    for _ in range(10):
        store.commit([logged("t", bytes(MIB // 8))])
    store.log.roll()

    def fail(name: str) -> None:
        raise NoSpaceError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RocksEngine, "_open_db", lambda engine: Failing(engine._db, fail))
        assert not store.maintain()
    assert store.load().read_only
    while store.maintain():
        pass
    kept = {f"log.{each.number:08x}" for each in store.log.generations}
    store.close()
    assert {name for name in families_in(tmp_path / "s") if name.startswith("log.")} == kept


class Failing:
    """A database that cannot drop families."""

    def __init__(self, db: object, drop_column_family: Callable[[str], None]) -> None:
        self._db = db
        self.drop_column_family = drop_column_family

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


def test_an_unfinished_creation_is_cleared_away(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    store.commit([logged("t")])
    store._engine.add_slice(9)
    store.close()
    store = opened(tmp_path / "s")
    assert "log.00000009" not in families_in(tmp_path / "s")
    assert replay(store.log, "t") == ["t "]
    store.close()


def test_a_directory_with_a_log_says_so_to_versions_without_one(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    record = store._engine.meta.get(FORMAT_KEY)
    assert record is not None
    assert record.endswith(b" ")
    store.commit([logged("t")])
    store.close()
    store = opened(tmp_path / "s")
    assert store._engine.meta.get(FORMAT_KEY) == record + b"log"
    store.close()


def test_tools_read_a_directory_with_a_log(tmp_path: Path) -> None:
    """Verification and backups include it; merging reports that it does not."""
    store = opened(tmp_path / "s")
    store.commit([PutSession("c", 9, None), logged("t", b"x")])
    store.backup(tmp_path / "copy")
    store.close()
    copy = opened(tmp_path / "copy")
    assert replay(copy.log, "t") == ["t x"]
    copy.close()
    with StoreReader(tmp_path / "s") as reader:
        assert verification.verify(reader, lambda *_: None).problems == []
    with pytest.raises(StoreError, match="durable log"):
        merge.merge(tmp_path / "s", tmp_path / "copy", tmp_path / "out", random_node=lambda: 8)


class Step(Sieve):
    """Every row, or each other one."""

    def __init__(self, odd: bool) -> None:
        self._odd = odd

    def stamp(self, key: bytes) -> int:
        return key[3] if key[3] & 1 or not self._odd else -1

    def goal(self, key: bytes) -> bytes:
        return (int.from_bytes(key) + 1).to_bytes(4)


def test_the_options_of_a_look_live_as_long_as_its_cursors(tmp_path: Path) -> None:
    """A bound that is read from freed memory ends a scan anywhere, without an error."""
    engine = RocksEngine(tmp_path / "e", StoreSettings(disk_reserve_bytes=0))
    family = engine.add_slice(1)
    batch = engine.batch()
    for number in range(8_000):
        batch.put(number.to_bytes(4, "big"), b"v" * 50, family.handle)
    engine.write(batch)
    end = (7_000).to_bytes(4, "big")
    found, place = sift(family, Step(odd=False), b"", end, ReadBounds(2**40, 2**40, 2**40))
    assert len(found) == 7_000
    assert place == b""
    odd, _ = sift(family, Step(odd=True), b"", end, ReadBounds(99, 2**40, 999))
    assert [number for number, _ in odd] == list(range(1, 199, 2))
    engine.close()


class Broken(Step):
    def stamp(self, key: bytes) -> int:
        raise CorruptionError("what it is")


def test_an_error_that_somebody_keeps_keeps_no_cursor(tmp_path: Path) -> None:
    """It would keep the directory locked."""
    engine = RocksEngine(tmp_path / "e", StoreSettings(disk_reserve_bytes=0))
    family = engine.add_slice(1)
    batch = engine.batch()
    batch.put(b"0001", b"v", family.handle)
    engine.write(batch)
    with pytest.raises(CorruptionError) as caught:
        sift(family, Broken(odd=False), b"", b"9", ReadBounds(9, 9, 9))
    engine.close()
    RocksEngine(tmp_path / "e", StoreSettings(disk_reserve_bytes=0)).close()
    assert caught.tb is not None


class AgainstMemory(RuleBasedStateMachine):
    """RocksDB against the log in memory: batches, crashes, generations, pages."""

    @initialize(layout=st.sampled_from(LAYOUTS))
    def start(self, layout: str) -> None:
        self.layout = layout
        self.root = Path(tempfile.mkdtemp(prefix="flowguard-log-"))
        self.copies = 0
        self.memory = MemoryStore(lambda: NOW_S)
        self.store = opened(self.root / "0", log_layout=layout)

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.says_what_the_memory_says()
            self.store.close()
            shutil.rmtree(self.root)

    @rule(
        publisher=st.sampled_from("pqr"),
        topics=st.lists(st.sampled_from(["a", "a/b", "b/b", "$s"]), min_size=1, max_size=5),
        payload=st.sampled_from([b"", b"x" * 5_000]),
    )
    def append(self, publisher: str, topics: list[str], payload: bytes) -> None:
        ops: list[StoreOp] = [logged(topic, payload, publisher) for topic in topics]
        self.memory.commit(ops)
        self.store.commit(ops)

    @rule()
    def roll(self) -> None:
        self.store.log.roll()

    @rule()
    def crash(self) -> None:
        self.store._engine._db.cancel_all_background(True)
        self.copies += 1
        old, new = self.store._folder, self.root / str(self.copies)
        shutil.copytree(old, new)
        self.store.close()
        shutil.rmtree(old)
        self.store = opened(new, log_layout=self.layout)
        self.says_what_the_memory_says()

    @rule()
    def says_what_the_memory_says(self) -> None:
        for filter in ("#", "+/b", "$s"):
            expected = replay(self.memory.log, filter)
            found = replay(self.store.log, filter)
            assert sorted(found) == sorted(expected)
            assert all(matches(filter, each.split(" ")[0]) for each in found)


def test_rocksdb_says_what_the_memory_says() -> None:
    half = max(1, settings.default.max_examples // 2)
    machine = settings(max_examples=half, stateful_step_count=20)
    run_state_machine_as_test(AgainstMemory, settings=machine)
