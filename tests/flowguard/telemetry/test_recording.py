from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowguard.telemetry.recording import BATCH_ROWS, Recording
from flowguard.telemetry.schema import DECISIONS, END, TABLES, VIOLATIONS, DecisionRow

END_ROW = (12.5, "duration", 7, 0)


def decision(number: int) -> tuple[object, ...]:
    return (0, number / 10, "window", 100.0, 99.0, 1.2, None, "why")


def test_rows_come_back_as_they_were_added_with_the_run_before_them(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "run", "crowd-1")
    rows = [decision(number) for number in range(BATCH_ROWS + 3)]
    recording.extend(DECISIONS, rows)
    recording.finish(END_ROW)
    table = pq.read_table(tmp_path / "run" / "decisions-00000.parquet")
    assert table.schema.equals(DECISIONS.schema, check_metadata=True)
    assert [tuple(row.values()) for row in table.to_pylist()] == [("crowd-1", *r) for r in rows]


def test_a_run_is_complete_when_end_is_there_and_a_file_when_it_has_its_name(
    tmp_path: Path,
) -> None:
    recording = Recording(tmp_path, "crowd-1", file_rows=BATCH_ROWS)
    recording.extend(DECISIONS, [decision(number) for number in range(2 * BATCH_ROWS + 1)])
    names = ["decisions-00000.parquet", "decisions-00001.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    recording.rotate()
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "decisions-00002.parquet"]
    recording.finish(END_ROW)
    assert pq.read_table(tmp_path / "end-00000.parquet").to_pylist() == [
        {
            "run_id": "crowd-1",
            "ended_s": 12.5,
            "ended_by": "duration",
            "events_count": 7,
            "deaths_count": 0,
        }
    ]


def test_columns_are_rows_and_come_after_the_rows_that_were_added_before(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "crowd-1", file_rows=BATCH_ROWS)
    rows = [decision(number) for number in range(BATCH_ROWS + 3)]
    recording.add(DECISIONS, rows[0])
    columns = zip(DecisionRow._fields, zip(*rows[1:], strict=True), strict=True)
    recording.add_columns(DECISIONS, dict(reversed(list(columns))))
    recording.finish(END_ROW)
    tables = [pq.read_table(path) for path in sorted(tmp_path.glob("decisions-*.parquet"))]
    written = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    assert written == [("crowd-1", *r) for r in rows]


def test_a_table_without_rows_has_no_file(tmp_path: Path) -> None:
    Recording(tmp_path, "crowd-1").finish(END_ROW)
    assert [path.name for path in tmp_path.iterdir()] == ["end-00000.parquet"]


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        recording = Recording(tmp_path / name, "crowd-1")
        recording.extend(DECISIONS, [decision(number) for number in range(100)])
        recording.finish(END_ROW)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_directory_with_a_run_is_not_written_again(tmp_path: Path) -> None:
    Recording(tmp_path, "crowd-1").finish(END_ROW)
    with pytest.raises(FileExistsError, match="has a run in it already"):
        Recording(tmp_path, "crowd-2")


def test_what_an_unfinished_run_left_is_cleared(tmp_path: Path) -> None:
    left = tmp_path / ".samples-00000.parquet.part"
    left.write_bytes(b"half")
    Recording(tmp_path, "crowd-1")
    assert not left.exists()


def test_a_row_of_the_wrong_length_or_type_is_a_bug(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "crowd-1")
    recording.add(VIOLATIONS, (None, 1.0, "1 window"))
    with pytest.raises(ValueError, match="zip"):
        recording.rotate()
    recording.add(VIOLATIONS, (None, "soon", "1 window", "0"))
    with pytest.raises(pa.ArrowInvalid):
        recording.rotate()


def test_all_tables_are_known() -> None:
    assert TABLES["end"] is END
