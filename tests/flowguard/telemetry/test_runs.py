"""A broker's runs on the disk: whole files, whole runs, and no more than may be."""

from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowguard.config import MIB, Settings, TelemetrySettings
from flowguard.telemetry.observation import run_row
from flowguard.telemetry.pending import Portion, Row
from flowguard.telemetry.runs import Runs, run_id


def limits(**values: float) -> TelemetrySettings:
    return TelemetrySettings.model_validate(values)


def portion(number: int, *rows: Row, ends: bool = False) -> Portion:
    """Return a portion of table `decisions`, of the run with that number."""
    end: Row | None = (1.0, "stopped", None, 0) if ends else None
    described = run_row(Settings(), "flowguard", float(number))
    return Portion(run_id(number, "00"), described, {"decisions": list(rows)}, end)


def decision(number: int, text: str = "why") -> Row:
    return (0, float(number), "window", 100.0, 99.0, 1.2, None, text)


def noise(count: int, first: int = 0) -> list[Row]:
    """Decisions with some 200 bytes each that no compression makes fewer."""
    digests = (n.to_bytes(8, "big") for n in range(first, first + count))
    return [
        decision(n, "".join(blake2b(digest + bytes([k])).hexdigest() for k in range(3)))
        for n, digest in enumerate(digests, start=first)
    ]


def numbers(directory: Path) -> list[int]:
    """Return the numbers of the decisions in completed files."""
    tables = [pq.read_table(path) for path in sorted(directory.glob("decisions-*.parquet"))]
    return [int(t_s) for table in tables for t_s in table["t_s"].to_pylist()]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_run_has_a_name_in_the_order_of_time() -> None:
    assert run_id(0.0, "c0ffee") == "live-19700101T000000Z-c0ffee"
    assert run_id(9.0, "ff") < run_id(10.0, "00")


def test_a_file_is_completed_when_its_time_has_come_and_a_run_at_its_end(tmp_path: Path) -> None:
    runs = Runs(tmp_path, limits(rotate_s=60))
    directory = tmp_path / run_id(0, "00")
    runs.write([portion(0, decision(1))], 0.0)
    assert names(directory) == ["run-00000.parquet"]
    runs.write([portion(0, decision(2))], 59.9)
    assert numbers(directory) == []
    runs.write([portion(0, decision(3))], 60.0)
    assert numbers(directory) == [1, 2, 3]
    runs.write([portion(0, decision(4), ends=True), portion(1, decision(5))], 61.0)
    assert numbers(directory) == [1, 2, 3, 4]
    assert "end-00000.parquet" in names(directory)
    assert names(tmp_path / run_id(1, "00")) == ["run-00000.parquet"]


def test_a_file_is_completed_when_it_has_its_rows(tmp_path: Path) -> None:
    runs = Runs(tmp_path, limits(rotate_rows=1_000))
    runs.write([portion(0, *map(decision, range(2_500)))], 0.0)
    directory = tmp_path / run_id(0, "00")
    files = sorted(directory.glob("decisions-*.parquet"))
    assert [pq.ParquetFile(file).metadata.num_rows for file in files] == [1_000, 1_000]
    assert numbers(directory) == list(range(2_000))


def test_two_brokers_do_not_record_in_one_directory(tmp_path: Path) -> None:
    first = Runs(tmp_path, limits())
    with pytest.raises(OSError, match="another broker records there"):
        Runs(tmp_path, limits())
    first.close()
    Runs(tmp_path, limits()).close()


def test_what_somebody_else_has_put_there_is_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "samples-00000.parquet").write_bytes(bytes(2 * MIB))
    old = tmp_path / run_id(0, "00")
    old.mkdir()
    (old / "samples-00000.parquet").write_bytes(bytes(2 * MIB))
    (old / ".attempts-00000.parquet.part").write_bytes(b"half")
    (old / "remarks.txt").write_text("keep me")
    runs = Runs(tmp_path, limits(keep_bytes=MIB))
    assert names(old) == ["remarks.txt"]
    assert (tmp_path / "notes" / "samples-00000.parquet").exists()
    assert runs.used_bytes == 0


def test_the_run_that_is_written_is_kept_however_large_it_is(tmp_path: Path) -> None:
    runs = Runs(tmp_path, limits(keep_bytes=MIB, rotate_s=1))
    old = tmp_path / run_id(0, "00")
    runs.write([portion(0, decision(0), ends=True)], 0.0)
    assert old.exists()
    for second in range(1, 4):
        runs.write([portion(1, *noise(3_000))], float(second))
        runs.write([portion(1)], second + 1.0)
    assert runs.run_bytes > MIB
    assert not old.exists()
    assert numbers(tmp_path / run_id(1, "00")) == [*range(3_000)] * 3


def test_the_oldest_run_goes_first_and_as_a_whole(tmp_path: Path) -> None:
    runs = Runs(tmp_path, limits(keep_bytes=MIB))
    for number in range(8):
        runs.write([portion(number, *noise(1_500), ends=True)], float(number))
        assert runs.used_bytes <= MIB
    kept = names(tmp_path)[1:]
    assert 2 <= len(kept) <= 5
    assert kept == [run_id(number, "00") for number in range(8 - len(kept), 8)]
    for name in kept:
        assert numbers(tmp_path / name) == [*range(1_500)]


# --- against a model -----------------------------------------------------------------------------


@dataclass
class Model:
    """The expected contents of the disk."""

    rows: dict[str, list[int]] = field(default_factory=dict)
    """By run."""
    ended: set[str] = field(default_factory=set)
    unfinished: list[int] = field(default_factory=list)
    """Rows of the run under way that may be in no completed file yet."""


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.integers(0, 1_500)),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 3.0, 10.0])),
        st.tuples(st.just("end"), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(STEPS, st.sampled_from([MIB, 64 * MIB]), st.booleans())
def test_completed_files_are_what_was_written_and_only_oldest_runs_are_missing(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, float]],
    keep_bytes: int,
    is_killed: bool,
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    runs = Runs(folder, limits(rotate_s=5, rotate_rows=1_000, keep_bytes=keep_bytes))
    model, now_s, run, count, rotated_s = Model(), 0.0, 0, 0, 0.0
    for step, amount in steps:
        name = run_id(run, "00")
        rows = range(count, count + (int(amount) if step == "rows" else 0))
        count = rows.stop
        now_s += amount if step == "wait" else 0.0
        if name not in model.rows:
            rotated_s = now_s
        model.rows.setdefault(name, []).extend(rows)
        model.unfinished += rows
        runs.write([portion(run, *noise(len(rows), rows.start), ends=step == "end")], now_s)
        if step == "end":
            model.ended.add(name)
            run += 1
        if step == "end" or now_s - rotated_s >= 5:
            model.unfinished, rotated_s = [], now_s
        check(folder, model, runs, keep_bytes)
    if is_killed:
        runs.close()
        again = Runs(folder, limits(keep_bytes=keep_bytes))
        check(folder, model, again, keep_bytes)


def check(folder: Path, model: Model, runs: Runs, keep_bytes: int) -> None:
    kept = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert kept == sorted(model.rows)[len(model.rows) - len(kept) :]
    closed = [name for name in kept if name in model.ended]
    size_bytes = sum(path.stat().st_size for path in folder.rglob("*.parquet*"))
    assert size_bytes <= keep_bytes + runs.run_bytes + MIB
    assert not closed or runs.used_bytes <= keep_bytes
    for name in kept:
        found, written = numbers(folder / name), model.rows[name]
        assert found == written[: len(found)]
        assert (folder / name / "run-00000.parquet").exists()
        if name in model.ended:
            assert found == written
            assert (folder / name / "end-00000.parquet").exists()
            assert not list((folder / name).glob(".*.part"))
        else:
            assert set(written) - set(found) <= set(model.unfinished)
            assert len(written) - len(found) < 1_000 or not model.unfinished


def test_a_run_in_which_nothing_happened_has_a_beginning_and_an_end(tmp_path: Path) -> None:
    runs = Runs(tmp_path, limits())
    runs.write([portion(0, ends=True)], 0.0)
    found = {path.name.partition("-")[0] for path in (tmp_path / run_id(0, "00")).iterdir()}
    assert found == {"run", "end"}
