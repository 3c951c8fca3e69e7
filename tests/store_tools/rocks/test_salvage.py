"""All damage of a store is found, and all readable data is saved."""

import shutil
from pathlib import Path

import pytest
from hypothesis import settings

from flowguard.errors import CorruptionError, FormatError
from flowguard.kafka_settings import OWNER_FILE
from store_tools.rocks.reader import StoreReader
from store_tools.rocks.salvage import Salvage, salvage
from store_tools.rocks.verification import Verification, verify
from tests.flowguard.stores.rocks.damage import SETTINGS, build, contents, with_byte_changed

POSITIONS = max(3, settings.default.max_examples // 12)
"""Number of positions in each file, from its first to its last byte."""


@pytest.fixture(scope="module", params=[False, True], ids=["closed", "killed"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("salvage"), killed=request.param)


@pytest.fixture(scope="module")
def whole(made: Path) -> list[object]:
    return contents(shutil.copytree(made, made.with_name("whole")))


def saved(folder: Path, out: Path) -> Salvage:
    return salvage(
        folder,
        out,
        wall_s=lambda: 1.7e9,
        random_node=lambda: 8,
        progress=lambda done, total: None,
    )


def verified(folder: Path) -> Verification:
    with StoreReader(folder, tolerant=True) as reader:
        return verify(reader, lambda done, total: None)


def test_a_store_without_damage_is_saved_as_it_is(
    made: Path, whole: list[object], tmp_path: Path
) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    found = saved(made, tmp_path / "out")
    assert (found.problems, found.lost_entries, found.lost_queues) == ([], 0, 0)
    assert contents(tmp_path / "out") == whole
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before


def test_what_was_saved_says_that_kafka_has_queues(made: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(made, store)
    (store / OWNER_FILE).write_text("its name")
    saved(store, tmp_path / "new")
    assert (tmp_path / "new" / OWNER_FILE).read_text() == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("made", "kind"),
    [
        pytest.param(True, ".sst", id="killed-sst"),  # A closed store has the same two kinds.
        pytest.param(True, ".blob", id="killed-blob"),
        pytest.param(True, ".log", id="killed-log"),
        pytest.param(False, ".log", id="closed-log"),
    ],
    indirect=["made"],
    scope="module",
)
def test_what_can_be_read_is_saved_and_what_cannot_is_told(
    made: Path, whole: list[object], kind: str, tmp_path: Path
) -> None:
    messages = {repr(each) for each in whole}
    paths = sorted(path for path in made.iterdir() if path.suffix == kind)
    assert paths
    for path in paths:
        size_bytes = path.stat().st_size
        for at in {number * (size_bytes - 1) // (POSITIONS - 1) for number in range(POSITIONS)}:
            folder = with_byte_changed(made, tmp_path / "store", path.name, at)
            try:
                problems = verified(folder).problems
            except CorruptionError as error:
                assert kind == ".sst"  # Its footer: RocksDB opens nothing then.
                problems = [str(error)]
            found = saved(folder, tmp_path / "out")
            after = contents(tmp_path / "out")
            lost = [each for each in whole if each not in after]
            where = f"{path.name} at {at}"
            if lost:
                assert problems, where
                assert found.problems, where
            # Nothing is made up; what the log alone knew to be settled comes again.
            kept = [each for each in after if isinstance(each, tuple) and len(each) == 3]
            assert kind == ".log" or {repr(each) for each in kept} <= messages, where
            assert after, where
            shutil.rmtree(folder)
            shutil.rmtree(tmp_path / "out")


def test_one_damaged_blob_costs_one_message(
    made: Path, whole: list[object], tmp_path: Path
) -> None:
    blobs = list(made.glob("*.blob"))
    assert blobs
    for path in blobs:
        folder = with_byte_changed(made, tmp_path / path.stem, path.name, 200)
        found = saved(folder, tmp_path / f"out-{path.stem}")
        after = contents(tmp_path / f"out-{path.stem}")
        lost = [each for each in whole if each not in after]
        assert found.problems_count > 0
        # A queue's session counts one message less.
        assert len(lost) == 1 + found.lost_entries
        assert found.lost_entries <= 1


def test_a_log_that_is_damaged_is_saved_up_to_there(
    made: Path, whole: list[object], tmp_path: Path
) -> None:
    (log,) = made.glob("*.log")
    kinds = (bytes([log.read_bytes()[6] ^ 4]), b"")
    for number, kind in enumerate(kinds):
        folder = shutil.copytree(made, tmp_path / f"{number}")
        data = bytearray(log.read_bytes())
        if kind:
            data[6:7] = kind  # Of a record that RocksDB would read for ever.
        else:
            data[len(data) // 2] ^= 1
        (folder / log.name).write_bytes(data)
        assert verified(folder).problems
        found = saved(folder, tmp_path / f"out-{number}")
        assert any("log" in problem for problem in found.problems)
        assert 0 < len(contents(tmp_path / f"out-{number}")) < len(whole)


@pytest.mark.parametrize("how", ["changed", "empty", "missing"])
@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST"])
def test_without_the_list_of_tables_all_that_are_there_are_read(
    made: Path, whole: list[object], name: str, how: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(made, tmp_path / "store")
    (path,) = folder.glob(f"{name}*")
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content if how == "changed" else b"")
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    found = saved(folder, tmp_path / "out")
    assert found.problems
    after = contents(tmp_path / "out")
    if name == "CURRENT":
        assert after == whole
    else:  # It alone says where large messages are.
        lost = [each for each in whole if isinstance(each, tuple) and each not in after]
        messages = [each for each in lost if isinstance(each[0], int)]
        assert len(messages) == found.lost_entries > 0
        assert min(len(each[2]) for each in messages) >= SETTINGS.blob_bytes_min
        assert found.sessions == sum(isinstance(e, tuple) and len(e) == 5 for e in whole)
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before


def test_a_table_that_cannot_be_opened_is_left_out_and_named(
    made: Path, whole: list[object], tmp_path: Path
) -> None:
    table = max(made.glob("*.sst"), key=lambda path: path.stat().st_size)
    folder = shutil.copytree(made, tmp_path / "store")
    (folder / table.name).write_bytes(table.read_bytes()[:-53])
    found = saved(folder, tmp_path / "out")
    assert f"{table.name} is left out: it cannot be read" in found.problems
    assert contents(tmp_path / "out")


def test_what_is_no_store_is_not_made_one(tmp_path: Path) -> None:
    (tmp_path / "000001.sst").write_bytes(b"no table")
    with pytest.raises(FormatError, match="is no store"):
        saved(tmp_path, tmp_path.with_name("out"))
