from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowguard.telemetry.schema import SAMPLES, TABLE_KEY, VERSION_KEY
from spark_analysis.runs.examination import (
    UNFINISHED,
    began_between,
    examine,
    examine_directory,
    find_runs,
    read_through,
)
from tests.spark_analysis.hand import Row
from tests.spark_analysis.recorded import record
from tests.support.damage import damage_silently, noise


def sample(t_s: float, node: int = 0) -> Row:
    return {"t_s": t_s, "node": node, "is_alive": True}


def reason(directory: Path) -> str:
    """Why it is left out."""
    run, left_out = examine_directory(directory)
    assert run is None
    (only,) = left_out
    assert only.path == str(directory)
    return only.reason


def rewrite(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return record(tmp_path / "run", "crowd-1", samples=[sample(0.1), sample(0.2)])


def test_a_run_that_is_complete_is_read_with_its_first_and_its_last_row(directory: Path) -> None:
    run, left_out = examine_directory(directory)
    assert run is not None
    assert left_out == []
    assert (run.run_id, run.run["command"]) == ("crowd-1", "simulate crowd-1")
    assert run.end["ended_by"] == "duration"
    assert run.files["samples"] == (str(directory / "samples-00000.parquet"),)


def test_runs_are_found_at_any_depth_and_once(tmp_path: Path) -> None:
    for name in ("b", "a/deeper/x", "a/deeper/y"):
        record(tmp_path / name, name)
    (tmp_path / "empty").mkdir()
    found = find_runs([tmp_path, tmp_path / "a", tmp_path / "b"])
    assert [path.relative_to(tmp_path).as_posix() for path in found] == [
        "a/deeper/x",
        "a/deeper/y",
        "b",
    ]


def test_a_run_without_end_is_left_out(tmp_path: Path) -> None:
    directory = record(tmp_path, "r", is_finished=False, samples=[sample(0.1)])
    assert reason(directory) == "it has no end record: not finished, or still recorded"


def test_a_killed_broker_s_run_is_read_up_to_its_last_sample(tmp_path: Path) -> None:
    samples = [sample(0.1), sample(7.5)]
    live = {"source": "broker", "scenario": "live"}
    directory = record(tmp_path, "r", is_finished=False, run=live, samples=samples)
    run, left_out = examine_directory(directory)
    assert run is not None
    assert (run.end["ended_s"], run.end["ended_by"], left_out) == (7.5, UNFINISHED, [])


def test_a_run_of_which_no_file_is_complete_is_named(tmp_path: Path) -> None:
    (tmp_path / ".samples-00000.parquet.part").write_bytes(b"PAR1")
    assert find_runs([tmp_path]) == [tmp_path]
    assert reason(tmp_path) == "it has no table run"


def test_a_damaged_footer_is_named(directory: Path) -> None:
    path = directory / "samples-00000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert reason(directory).startswith("samples-00000.parquet cannot be read: ")


def test_an_empty_file_and_one_of_another_kind_are_named(directory: Path) -> None:
    path = directory / "samples-00000.parquet"
    for content in (b"", b"t_s,node\n0.1,0\n" * 10):
        path.write_bytes(content)
        assert reason(directory).startswith("samples-00000.parquet cannot be read: ")


def test_a_damaged_page_is_named(tmp_path: Path) -> None:
    rows = [sample(number / 10) for number in range(10_000)]
    directory = record(tmp_path, "r", samples=rows)
    path = directory / "samples-00000.parquet"
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(2)
    content = bytearray(path.read_bytes())
    start = chunk.data_page_offset + 40
    content[start : start + 200] = bytes(200)
    path.write_bytes(content)
    run, _ = examine_directory(directory)
    assert run is not None
    (damaged,) = read_through([run])[1]
    assert damaged.reason.startswith("samples-00000.parquet cannot be read: ")


def test_a_file_that_somebody_else_wrote_is_named(directory: Path) -> None:
    path = directory / "samples-00000.parquet"
    rewrite(path, pq.read_table(path).replace_schema_metadata({}))
    assert reason(directory) == "samples-00000.parquet was not written by flowguard"


@pytest.mark.parametrize(
    ("version", "words"),
    [("0", "an older schema, version 0"), ("2", "a newer schema, version 2")],
)
def test_one_file_of_another_version_spoils_its_run(
    directory: Path, version: str, words: str
) -> None:
    path = directory / "samples-00000.parquet"
    metadata = {VERSION_KEY: version, TABLE_KEY: "samples"}
    rewrite(path, pq.read_table(path).replace_schema_metadata(metadata))
    assert reason(directory) == f"samples-00000.parquet has {words} instead of 1"


def test_a_run_that_says_it_is_of_another_version_is_left_out(tmp_path: Path) -> None:
    assert reason(record(tmp_path, "r", run={"schema_version": 7})) == "schema_version is 7, not 1"


def test_a_table_under_another_name_is_named(directory: Path) -> None:
    (directory / "samples-00000.parquet").rename(directory / "goodput-00000.parquet")
    assert reason(directory) == "goodput-00000.parquet says it is table samples"


def test_a_missing_file_is_named(directory: Path) -> None:
    path = directory / "samples-00000.parquet"
    (directory / "samples-00002.parquet").write_bytes(path.read_bytes())
    assert reason(directory) == "samples-00001.parquet is missing"


def test_rows_of_another_run_are_named(directory: Path, tmp_path: Path) -> None:
    other = record(tmp_path / "other", "crowd-2", samples=[sample(0.3)])
    (other / "samples-00000.parquet").rename(directory / "samples-00001.parquet")
    assert reason(directory) == "samples-00001.parquet has rows of another run"


def test_a_column_that_must_be_there_and_one_of_another_type_are_named(directory: Path) -> None:
    path = directory / "samples-00000.parquet"
    table = pq.read_table(path)
    rewrite(path, table.drop_columns(["window"]))
    assert reason(directory) == "samples-00000.parquet has no column window"
    index = table.schema.get_field_index("window")
    as_text = pa.field("window", pa.string(), nullable=False)
    rewrite(path, table.set_column(index, as_text, table["window"].cast(pa.string())))
    assert reason(directory) == "samples-00000.parquet: column window is string instead of double"
    maybe = pa.field("window", pa.float64())
    rewrite(path, table.set_column(index, maybe, table["window"]))
    assert reason(directory) == "samples-00000.parquet: column window may be null"


def test_an_optional_column_may_be_missing_and_an_unknown_one_be_there(directory: Path) -> None:
    path = directory / "samples-00000.parquet"
    table = pq.read_table(path).drop_columns(["busy_s"])
    rewrite(path, table.append_column("news", pa.array([1] * table.num_rows)))
    run, _ = examine_directory(directory)
    assert run is not None


def test_a_strange_file_beside_a_run_is_named_and_the_run_read(directory: Path) -> None:
    rewrite(directory / "trades.parquet", pa.table({"price": [1.0]}))
    run, left_out = examine_directory(directory)
    assert run is not None
    assert [(Path(one.path).name, one.reason) for one in left_out] == [
        ("trades.parquet", "its name is of no table of a run")
    ]


def test_of_two_copies_of_a_run_one_is_read(tmp_path: Path) -> None:
    first, second = (record(tmp_path / name, "same") for name in ("a", "b"))
    runs, left_out = examine([second, first])
    assert [run.directory for run in runs] == [str(first)]
    assert [(one.path, one.reason) for one in left_out] == [
        (str(second), f"a run of the same id was read already, from {first}")
    ]


def test_a_file_that_is_there_twice_is_named(directory: Path) -> None:
    path = directory / "samples-00000.parquet"
    (directory / "samples-00001.parquet").write_bytes(path.read_bytes())
    assert reason(directory) == (
        "samples-00001.parquet has rows of a time before those in front of it"
    )


def test_files_of_times_that_overlap_a_little_are_read(tmp_path: Path) -> None:
    decisions = [{"t_s": t_s, "kind": "window"} for t_s in (1.0, 60.001, 60.0, 60.0, 120.0)]
    record(tmp_path, "live-1", file_rows=2, decisions=decisions)
    run, left_out = examine_directory(tmp_path)
    assert left_out == []
    assert run is not None
    assert len(run.files["decisions"]) == 3


def test_tables_without_rows_are_no_fault(tmp_path: Path) -> None:
    directory = record(tmp_path, "r")
    pq.write_table(SAMPLES.schema.empty_table(), directory / "samples-00000.parquet")
    run, _ = examine_directory(directory)
    assert run is not None


def test_a_page_that_unpacks_into_other_numbers_is_named(tmp_path: Path) -> None:
    rows = [{"t_s": t_s, "pressure_ratio": n / 7} for t_s, n in enumerate(noise(500))]
    run, _ = examine_directory(record(tmp_path, "r", decisions=rows))
    assert run is not None
    damage_silently(tmp_path / "decisions-00000.parquet", "pressure_ratio")
    whole, damaged = read_through([run])
    assert whole == []
    assert damaged[0].reason.startswith("decisions-00000.parquet cannot be read: ")


def test_files_without_checksums_of_their_pages_are_read(directory: Path) -> None:
    for path in directory.iterdir():
        rewrite(path, pq.read_table(path))
    run, _ = examine_directory(directory)
    assert run is not None
    assert read_through([run]) == ([run], [])


def test_a_run_of_another_time_is_told_by_its_name() -> None:
    day = datetime(2026, 11, 28, tzinfo=UTC)
    is_wanted = began_between(day, day + timedelta(days=1))
    names = ("live-20261127T235959Z-a", "live-20261128T000000Z-a", "live-20261128T235959Z-b")
    names += ("live-20261129T000000Z-a", "flash_crowd-1")
    assert [name for name in names if is_wanted(Path("some") / name)] == [
        *names[1:3],
        "flash_crowd-1",
    ]
    assert all(map(began_between(None, None), map(Path, names)))
