"""One byte of a store has changed: all data still exists, or an error names the damage.

No loss is silent: an iterator that fails looks like one at its end, and the log of writes is read
up to the first damaged record.
"""

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from flowguard.errors import CorruptionError, DescriptorsError, StoreError
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    DropSession,
    PutSession,
    Release,
    Settle,
)
from flowguard.stores.rocks import RocksStore
from flowguard.stores.rocks.database.synced import SYNCED
from flowguard.types import Publish
from store_tools.rocks.reader import StoreReader
from tests.flowguard.stores.rocks.damage import (
    build,
    change_byte,
    contents,
    contents_of,
    fill,
    open_store,
    queue_of,
    with_byte_changed,
)

POSITIONS = max(2, settings.default.max_examples // 5)
"""Number of positions in each file, spread evenly, with its last bytes."""
LAST = 8
KINDS = (".sst", ".blob", ".log", "MANIFEST", "CURRENT", SYNCED)


def positions_of(size_bytes: int) -> list[int]:
    step = max(1, size_bytes // POSITIONS)
    return sorted({*range(0, size_bytes, step), *range(max(0, size_bytes - LAST), size_bytes)})


@pytest.fixture(scope="module", params=[False, True], ids=["closed", "killed"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("damage"), killed=request.param)


@pytest.fixture(scope="module")
def whole(made: Path) -> list[object]:
    copy = shutil.copytree(made, made.with_name("whole"))
    return contents(copy)


def test_the_store_has_every_kind_of_file(made: Path, whole: list[object]) -> None:
    names = [path.name for path in made.iterdir()]
    for kind in KINDS:
        assert any(kind in name for name in names), kind
    assert len(whole) > 500


@pytest.mark.once  # A checksum of RocksDB finds the byte before compiled code reads it.
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_byte_that_changed_is_told_or_matters_to_nothing(
    made: Path, whole: list[object], kind: str, tmp_path: Path
) -> None:
    told = 0
    for path in sorted(made.iterdir()):
        if kind not in path.name:
            continue
        for at in positions_of(path.stat().st_size):
            folder = with_byte_changed(made, tmp_path / "store", path.name, at)
            try:
                assert contents(folder) == whole, f"{path.name} at {at}"
            except StoreError:
                told += 1
            shutil.rmtree(folder)
    assert told > 0 or kind == SYNCED


def test_a_log_that_is_damaged_is_left_as_it_is(made: Path, tmp_path: Path) -> None:
    """Opening to write replaces it by what is whole in it: what follows could not be saved."""
    (log,) = (path.name for path in made.glob("*.log"))
    folder = with_byte_changed(made, tmp_path / "store", log, 1_000)
    before = (folder / log).read_bytes()
    for _ in range(2):
        with pytest.raises(CorruptionError, match="log of writes"):
            open_store(folder)
    assert (folder / log).read_bytes() == before


@pytest.mark.parametrize("kind", [5, 6, 7, 8, 11])
@pytest.mark.parametrize("file", ["*.log", "MANIFEST-*"])
def test_a_record_that_the_engine_would_read_for_ever_is_damage(
    made: Path, tmp_path: Path, file: str, kind: int
) -> None:
    """One bit of the type of a record; RocksDB alone does not come to an end there."""
    folder = shutil.copytree(made, tmp_path / "store")
    (log,) = folder.glob(file)
    data = bytearray(log.read_bytes())
    data[6] = kind
    log.write_bytes(data)
    with pytest.raises(CorruptionError, match="is damaged at byte 0"):
        open_store(folder)
    with pytest.raises(CorruptionError, match="is damaged at byte 0"):
        StoreReader(folder)


def test_the_torn_end_of_a_write_that_was_never_answered_is_no_damage(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path / "store")
    store.commit([PutSession("c", 9, None)])
    copy = shutil.copytree(tmp_path / "store", tmp_path / "copy")
    before = contents_of(store)
    store.close()
    (log,) = copy.glob("*.log")
    for end in (b"\x01", bytes(40), b"\xff" * 50, b"\x01\x02\x03\x04\x20\x00\x01" + b"x" * 32):
        again = shutil.copytree(copy, tmp_path / "again")
        with (again / log.name).open("ab") as file:
            file.write(end)
        assert contents(again) == before
        shutil.rmtree(again)


# --- while it is in use ---------------------------------------------------------------------------

DAMAGED, WHOLE = "client-00000", "client-00001"


@pytest.fixture
def damaged(made: Path, tmp_path: Path) -> Iterator[RocksStore]:
    """Open, and the first large message of one queue is damaged since."""
    folder = shutil.copytree(made, tmp_path / "store")
    store = open_store(folder)
    for path in folder.glob("*.blob"):
        change_byte(path, 100)
    yield store
    store._engine.close()


def test_a_page_that_cannot_be_read_is_no_end_and_other_queues_are_read(
    damaged: RocksStore,
) -> None:
    for _ in range(2):
        with pytest.raises(CorruptionError, match="queued messages cannot be read"):
            damaged.fetch(DAMAGED, 0, 250)
    assert [entry.pos for entry in damaged.fetch(DAMAGED, 0, 5)] == [1, 3, 4, 6, 7]
    assert len(queue_of(damaged, WHOLE)) == 1


def test_what_is_damaged_can_be_settled_released_and_dropped(damaged: RocksStore) -> None:
    count = damaged._sessions.queues[DAMAGED].count
    damaged.commit([Settle(DAMAGED, 15), Release(DAMAGED, 30, 30)])
    assert damaged._sessions.queues[DAMAGED].count == count - 1
    damaged.commit([DropSession(DAMAGED)])
    while damaged.maintain():
        pass
    damaged.commit([PutSession(DAMAGED, 9, None)])
    assert queue_of(damaged, DAMAGED) == []
    assert len(queue_of(damaged, WHOLE)) == 1


def test_maintenance_goes_on_beside_what_cannot_be_read(damaged: RocksStore) -> None:
    for path in damaged._folder.glob("*.sst"):
        for at in range(0, path.stat().st_size // 2, 64):
            change_byte(path, at)
    slices = 0
    while damaged.maintain():
        slices += 1
        assert slices < 10_000
    damaged.commit([PutSession("new", 9, None)])


# --- no descriptor left ---------------------------------------------------------------------------


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """As in a process in which clients have taken all of them."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_table_that_cannot_be_opened_is_no_end(made: Path, tmp_path: Path) -> None:
    store = open_store(shutil.copytree(made, tmp_path / "store"))
    before = contents_of(open_store(shutil.copytree(made, tmp_path / "other")))
    with no_descriptor_left():
        for _ in range(2):
            with pytest.raises(DescriptorsError, match="Too many open files"):
                contents_of(store)
    assert contents_of(store) == before


def large_deliveries(count: int) -> list[Delivery]:
    messages = [Publish("t", bytes([number]) * 3_000, 1) for number in range(count)]
    return [Delivery(message, 1, False, (), NEVER_S) for message in messages]


def test_without_descriptors_batches_are_refused_and_the_same_succeed_later(
    tmp_path: Path,
) -> None:
    """When its buffer is full RocksDB opens files; what it fails to write it would never write."""
    store = open_store(tmp_path / "store")
    fill(store, 0, 10)
    before = contents_of(store)
    batches = [
        [PutSession(f"more-{number}", 9, None)]
        + [
            Append(f"more-{number}", pos, delivery)
            for pos, delivery in enumerate(large_deliveries(20), 1)
        ]
        for number in range(60)
    ]
    refused = 0
    with no_descriptor_left():
        for batch in batches[:30]:
            try:
                store.commit(batch)
            except DescriptorsError:
                refused += 1
                break
        assert not store.maintain() or not refused
    assert refused, "its buffer was never full"
    for batch in batches:
        store.commit(batch)
    store.close()
    after = contents(tmp_path / "store")
    assert [each for each in before if each not in after] == []
    assert sum(each[0].startswith("more-") for each in after if isinstance(each[0], str)) == 60
