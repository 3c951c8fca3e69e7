"""The engine, and rocksdict's traps, each with a test that shows it.

A trap's test also fails when rocksdict is repaired: then the rule that avoids it may go.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict, ReadOptions, WriteBatch

from flowguard.config import MIB, StoreSettings
from flowguard.errors import (
    CorruptionError,
    LockedError,
    NoSpaceError,
    StallError,
    StoreError,
    SyncError,
)
from flowguard.flow.load.signals import StoreState
from flowguard.priority import lowered
from flowguard.stores.rocks.database.engine import FAMILIES, RocksEngine, families_in
from tests.flowguard.stores.rocks.limits import file_size_limit
from tests.support.patience import HANG_S
from tests.support.stalling import built

SETTINGS = StoreSettings(durability="os", write_buffer_bytes=MIB)
STALLS_AFTER = 1_000
"""Batches of 4 MiB with write buffers of 1 MiB, which outrun every disk."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "db"


@pytest.fixture
def engine(folder: Path) -> Iterator[RocksEngine]:
    opened = RocksEngine(folder, SETTINGS)
    yield opened
    opened.close()


def put(engine: RocksEngine, rows: dict[bytes, bytes], family: str = "queues") -> None:
    batch = engine.batch()
    for key, value in rows.items():
        batch.put(key, value, getattr(engine, family).handle)
    engine.write(batch)


def rows_of(engine: RocksEngine) -> list[tuple[bytes, bytes]]:
    return engine.queues.scan(b"", b"\xff")


# --- the engine -----------------------------------------------------------------------------------


def test_a_batch_reaches_all_families_and_survives_opening_again(folder: Path) -> None:
    engine = RocksEngine(folder, SETTINGS)
    families = (engine.meta, engine.queues, engine.payloads, engine.own, engine.retained)
    batch = engine.batch()
    for family in families:
        batch.put(b"k", family.name.encode(), family.handle)
    engine.write(batch)
    engine.close()
    engine.close()
    engine = RocksEngine(folder, SETTINGS)
    families = (engine.meta, engine.queues, engine.payloads, engine.own, engine.retained)
    assert [family.get(b"k") for family in families] == [name.encode() for name in FAMILIES]
    assert sorted(families_in(folder)) == sorted(FAMILIES)
    engine.close()


def test_the_threads_of_rocksdb_leave_the_processor_to_the_loop_and_no_other_does(
    folder: Path,
) -> None:
    def niceness() -> dict[int, tuple[str, int]]:
        found = {}
        for one in Path("/proc/self/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # Threads end meanwhile.
                name = (one / "comm").read_text()
                found[int(one.name)] = name, os.getpriority(os.PRIO_PROCESS, int(one.name))
        return found

    before = niceness()
    RocksEngine(folder, SETTINGS.model_copy(update={"background_jobs": 8})).close()
    after = niceness()
    background = {one for one, (name, _) in after.items() if name.startswith("rocksdb:")}
    assert {after[one][0] for one in background} == {"rocksdb:low\n", "rocksdb:high\n"}
    assert len(background) >= 8
    assert {after[one][1] for one in background} == {lowered()}
    others = (before.keys() & after.keys()) - background
    assert threading.get_native_id() in others
    assert {one: after[one][1] for one in others} == {one: before[one][1] for one in others}


def test_a_scan_stays_within_its_bounds_its_rows_and_its_bytes(engine: RocksEngine) -> None:
    put(engine, {bytes((number,)): b"x" * 10 for number in range(10)})
    scan = engine.queues.scan
    assert [key[0] for key, _ in scan(b"\x02", b"\x05")] == [2, 3, 4]
    assert [key[0] for key, _ in scan(b"\x02", b"\x09", 2)] == [2, 3]
    assert [key[0] for key, _ in scan(b"\x02", b"\x09", 9, 20)] == [2, 3]
    assert [key[0] for key, _ in scan(b"\x02", b"\x09", 9, 11)] == [2, 3]
    assert scan(b"\x02", b"\x09", 0) == scan(b"\x05", b"\x05") == []


def test_many_keys_are_read_in_their_order_with_gaps(engine: RocksEngine) -> None:
    put(engine, {b"a": b"1", b"c": b"", b"b": b"2"})
    assert engine.queues.get_many([b"b", b"x", b"c", b"b"]) == [b"2", None, b"", b"2"]
    assert engine.queues.get_many([]) == []


def test_a_range_is_deleted_in_the_order_of_its_batch(engine: RocksEngine) -> None:
    handle = engine.queues.handle
    put(engine, {b"a": b"1", b"b": b"1", b"c": b"1"})
    batch = engine.batch()
    batch.put(b"aa", b"2", handle)
    batch.delete_range(b"a", b"c", handle)
    batch.put(b"b", b"2", handle)
    engine.write(batch)
    assert rows_of(engine) == [(b"b", b"2"), (b"c", b"1")]


def test_it_is_empty_until_any_family_holds_something(engine: RocksEngine) -> None:
    assert engine.is_empty
    put(engine, {b"\xff\xff": b""}, "own")
    assert not engine.is_empty


def test_a_second_one_is_told_that_the_directory_is_locked(
    folder: Path, engine: RocksEngine
) -> None:
    with pytest.raises(LockedError):
        RocksEngine(folder, SETTINGS)
    engine.close()
    RocksEngine(folder, SETTINGS).close()


def test_damaged_tables_are_corruption(folder: Path, engine: RocksEngine) -> None:
    put(engine, {b"k": b"v" * 1_000})
    engine.queues.flush()
    engine.close()
    for table in folder.glob("*.sst"):
        content = bytearray(table.read_bytes())
        content[10:200] = bytes(190)
        table.write_bytes(content)
    with pytest.raises(CorruptionError):
        RocksEngine(folder, SETTINGS).queues.get(b"k")


def test_a_torn_log_ends_with_its_last_whole_batch(tmp_path: Path, engine: RocksEngine) -> None:
    put(engine, {b"a": b"1"})
    (log,) = (tmp_path / "db").glob("*.log")
    whole_bytes = log.stat().st_size
    put(engine, {b"b": b"1", b"c": b"1"})
    torn = tmp_path / "torn"
    shutil.copytree(tmp_path / "db", torn)
    os.truncate(torn / log.name, (whole_bytes + log.stat().st_size) // 2)
    opened = RocksEngine(torn, SETTINGS)
    assert rows_of(opened) == [(b"a", b"1")]
    opened.close()


def test_a_stall_is_an_error_at_once_that_has_changed_nothing(engine: RocksEngine) -> None:
    """No write waits: rocksdict would keep the GIL, and so stop the whole process."""
    written = 0
    try:
        for written in range(STALLS_AFTER):
            put(engine, {b"%d" % written: bytes(4 * MIB)})
        pytest.fail("it never stalled")
    except StallError:
        pass
    assert engine.queues.get(b"%d" % written) is None
    assert engine.queues.get(b"%d" % (written - 1)) is not None
    batch = engine.batch()
    batch.put(b"patient", b"", engine.queues.handle)
    engine.write(batch, wait=True)
    while engine.state() is StoreState.STOPPED:
        threading.Event().wait(0.001)
    put(engine, {b"later": b""})


def test_no_room_is_an_error_that_sticks_until_it_is_opened_again(
    folder: Path, engine: RocksEngine
) -> None:
    put(engine, {b"a": b"1"})
    with file_size_limit(folder):
        for _ in range(2):
            with pytest.raises(NoSpaceError):
                put(engine, {b"b": bytes(MIB)})
    with pytest.raises(NoSpaceError):
        put(engine, {b"b": b"1"})
    engine.reopen()
    assert rows_of(engine) == [(b"a", b"1")]
    put(engine, {b"b": b"1"})
    assert rows_of(engine) == [(b"a", b"1"), (b"b", b"1")]


FROZEN = """
import sys
import threading
from pathlib import Path
from flowguard.stores.rocks.database.engine import RocksEngine
from tests.flowguard.stores.rocks.test_engine import SETTINGS

engine = RocksEngine(Path(sys.argv[1]), SETTINGS)
batch = engine.batch()
batch.put(b"key", b"value", engine.meta.handle)
print("open", flush=True)
sys.stdin.readline()
thread = threading.Thread(target=engine.write, args=(batch,))
thread.start()
for _ in range(100):
    thread.join(0.01)  # A thread that waits with the GIL would never let this one go on.
print("waits" if thread.is_alive() else "has ended", flush=True)
thread.join()
print(engine.meta.get(b"key"), flush=True)
engine.close()
"""


def test_other_threads_go_on_while_the_file_system_is_frozen(tmp_path: Path) -> None:
    stalled = tmp_path / "stalled"
    try:
        environment = {"LD_PRELOAD": str(built(tmp_path)), "STALLED": str(stalled)}
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no C compiler")
    with subprocess.Popen(
        [sys.executable, "-c", FROZEN, str(tmp_path / "store")],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "open\n"
            stalled.touch()
            process.stdin.write("go\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], HANG_S)
            assert ready
            assert process.stdout.readline() == "waits\n"
            stalled.unlink()
            assert process.stdout.readline() == "b'value'\n"
        finally:
            process.kill()


def test_after_close_there_is_an_error_not_a_crash(engine: RocksEngine) -> None:
    engine.close()
    with pytest.raises(StoreError):
        engine.queues.get(b"k")
    with pytest.raises(StoreError):
        engine.queues.scan(b"", b"x")
    with pytest.raises(StoreError):
        engine.write(WriteBatch(raw_mode=True))
    with pytest.raises(SyncError):
        engine.sync()


def test_any_thread_may_use_it_one_at_a_time(folder: Path) -> None:
    found: list[Any] = []

    def in_thread(work: Any) -> None:
        thread = threading.Thread(target=lambda: found.append(work()))
        thread.start()
        thread.join()

    in_thread(lambda: RocksEngine(folder, SETTINGS))
    engine = found.pop()
    in_thread(lambda: put(engine, {b"k": b"v"}))
    in_thread(lambda: engine.queues.scan(b"", b"x"))
    assert found == [None, [(b"k", b"v")]]
    in_thread(engine.close)
    RocksEngine(folder, SETTINGS).close()


def test_a_checkpoint_is_a_database_of_what_was_written(
    tmp_path: Path, engine: RocksEngine
) -> None:
    put(engine, {b"a": b"1"})
    engine.checkpoint(tmp_path / "copy")
    put(engine, {b"b": b"1"})
    copy = RocksEngine(tmp_path / "copy", SETTINGS)
    assert rows_of(copy) == [(b"a", b"1")]
    copy.close()
    with pytest.raises(StoreError):
        engine.checkpoint(tmp_path / "copy")


WRITER = """
import sys
from pathlib import Path
from flowguard.config import StoreSettings
from flowguard.stores.rocks.database.engine import RocksEngine

engine = RocksEngine(Path(sys.argv[1]), StoreSettings(durability=sys.argv[2]))
number = 0
while True:
    batch = engine.batch()
    for key in (b"a%d" % number, b"b%d" % number):
        batch.put(key, b"", engine.queues.handle)
    engine.write(batch)
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_what_was_written_survives_the_death_of_the_process(folder: Path, durability: str) -> None:
    command = [sys.executable, "-c", WRITER, str(folder), durability]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = -1
        while acknowledged < 300:
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
    engine = RocksEngine(folder, SETTINGS)
    keys = {key for key, _ in engine.queues.scan(b"", b"x", 2**40)}
    engine.close()
    assert {
        b"%c%d" % (name, number) for name in b"ab" for number in range(acknowledged + 1)
    } <= keys
    assert {key[1:] for key in keys if key[:1] == b"a"} == {
        key[1:] for key in keys if key[:1] == b"b"
    }, "half a batch"


# --- traps of rocksdict ---------------------------------------------------------------------------


@pytest.fixture
def raw(tmp_path: Path) -> Rdict:
    db = Rdict(str(tmp_path / "raw"), Options(raw_mode=True))
    for key in (b"a", b"b", b"c"):
        db[key] = b""
    return db


def test_trap_the_lower_bound_is_the_upper_one(raw: Rdict) -> None:
    options = ReadOptions()
    options.set_iterate_upper_bound(b"z")
    options.set_iterate_lower_bound(b"b")
    assert list(raw.keys(read_opt=options)) == [b"a"]


def test_trap_what_is_read_through_a_snapshot_is_not_its_iterator(raw: Rdict) -> None:
    snapshot = raw.snapshot()
    raw[b"d"] = b""
    with pytest.raises(Exception, match="key not found"):
        snapshot[b"d"]
    assert list(snapshot.keys()) == [b"a", b"b", b"c", b"d"]


def test_an_iterator_sees_what_there_was_when_it_was_made(raw: Rdict) -> None:
    rows = raw.keys(from_key=b"a")
    raw[b"d"] = b""
    assert list(rows) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("child", ["iterator", "snapshot", "handle", "family"])
def test_trap_a_child_keeps_the_directory_locked(raw: Rdict, child: str) -> None:
    kept: Any = {
        "iterator": raw.iter,
        "snapshot": raw.snapshot,
        "handle": lambda: raw.get_column_family_handle("default"),
        "family": lambda: raw.get_column_family("default"),
    }[child]()
    path = raw.path()
    raw.close()
    with pytest.raises(Exception, match="LOCK"):
        Rdict(path, Options(raw_mode=True))
    del kept
    Rdict(path, Options(raw_mode=True)).close()


def test_trap_a_batch_is_gone_once_it_was_written(raw: Rdict) -> None:
    batch = WriteBatch(raw_mode=True)
    batch.put(b"k", b"v")
    raw.write(batch)
    with pytest.raises(Exception, match="consumed"):
        raw.write(batch)


def test_trap_raw_mode_must_be_said_everywhere(raw: Rdict) -> None:
    """Else a key or value gets a type in front, and pickle is at hand for whatever is no bytes."""
    batch = WriteBatch()
    batch.put(b"k", b"v")
    with pytest.raises(Exception, match="raw_mode"):
        raw.write(batch)
    with pytest.raises(Exception, match="raw"):
        raw["k"] = "v"
