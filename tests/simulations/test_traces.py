from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowguard.errors import ConfigError
from flowguard.telemetry.recording import Recording
from flowguard.telemetry.schema import GOODPUT, SAMPLES, STRING, Table
from simulations.scenario_files.loading import load
from simulations.scenario_files.traces import read_trace
from tests.support.damage import damage_silently, noise


def test_a_trace_is_a_csv_or_parquet_file_with_times_and_counts(tmp_path: Path) -> None:
    csv = tmp_path / "trace.csv"
    csv.write_text("t_s,clients,messages\n0,10,7\n2.5,20,8\n")
    assert read_trace(csv, "clients") == [(0.0, 10.0), (2.5, 20.0)]
    assert read_trace(csv, "messages") == [(0.0, 7.0), (2.5, 8.0)]
    parquet = tmp_path / "trace.parquet"
    pq.write_table(pa.table({"t_s": [0.0, 2.5], "clients": [10, 20]}), parquet)
    assert read_trace(parquet, "clients") == [(0.0, 10.0), (2.5, 20.0)]


def row(table: Table, **values: Any) -> list[Any]:
    """Zero, or null, in all other columns."""
    return [
        values.get(column.name, None if column.nullable else "" if column.type == STRING else 0)
        for column in table.columns[1:]
    ]


def test_a_recorded_run_is_a_trace_of_what_all_its_populations_did(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "a-run")
    for t_s, attempts in ((0.0, 0), (0.5, 3), (1.0, 4)):
        for population in ("one", "other"):
            recording.add(
                GOODPUT,
                row(
                    GOODPUT,
                    population=population,
                    t_s=t_s,
                    attempts_count=attempts,
                    due_count=10 * attempts,
                ),
            )
    recording.rotate()
    assert read_trace(tmp_path, "clients") == [(0.0, 6.0), (0.5, 8.0)]
    (file,) = tmp_path.glob("goodput-*.parquet")
    assert read_trace(file, "messages") == [(0.0, 60.0), (0.5, 80.0)]


def test_samples_of_a_real_broker_are_a_trace_too(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "a-run")
    for t_s, accepted in ((0.1, 5), (0.2, 6)):
        for node in (0, 1):
            recording.add(
                SAMPLES,
                row(
                    SAMPLES,
                    node=node,
                    t_s=t_s,
                    is_alive=True,
                    accepted_count=accepted,
                    published_count=7,
                ),
            )
    recording.rotate()
    assert read_trace(tmp_path, "clients") == [(0.0, 10.0), (0.1, 12.0)]
    assert read_trace(tmp_path, "messages") == [(0.0, 14.0), (0.1, 14.0)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t_s,clients\n", "is empty"),
        ("t_s,guests\n0,1\n", "has no column clients"),
        ("time,clients\n0,1\n", "has no column t_s"),
        ("t_s,clients\n0,many\n", "clients: 'many' is no number"),
        ("t_s,clients\n0\n", "clients: None is no number"),
        ("t_s,clients\n5,1\n5,2\n", "t_s: 5 is not after 5"),
    ],
)
def test_what_is_wrong_with_a_trace_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_trace(path, "clients")
    assert str(caught.value) == f"{path}: {words}"


def test_a_trace_that_is_not_there_or_of_another_kind_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none.csv", "clients")
    with pytest.raises(ConfigError, match="is no recorded run"):
        read_trace(tmp_path, "clients")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"no")
    with pytest.raises(ConfigError, match="is not valid Parquet"):
        read_trace(broken, "clients")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"t_s,clients\n\xff\xfe")
    with pytest.raises(ConfigError, match="is not valid CSV"):
        read_trace(binary, "clients")


def test_a_scenario_takes_its_trace_from_beside_it_and_as_many_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trace.csv").write_text("t_s,clients\n0,10\n2,20\n")
    mine = tmp_path / "mine.toml"
    mine.write_text('[populations.a]\narrivals = { file = "trace.csv", scale = 2 }\n')
    plan = load(str(mine)).scenario.populations["a"]
    assert plan.clients == 60
    assert plan.arrivals is not None
    assert plan.arrivals.points == ((0.0, 10.0), (2.0, 20.0))
    here = tmp_path / "here"
    here.mkdir()
    (here / "other.csv").write_text("t_s,clients\n0,7\n")
    monkeypatch.chdir(here)
    other = load(str(mine), {"populations.a.arrivals.file": "other.csv"})
    assert other.scenario.populations["a"].clients == 14
    whole = load(str(mine), {"populations.a.arrivals": {"file": "other.csv", "scale": 3}})
    assert whole.scenario.populations["a"].clients == 21
    assert whole.changes["populations.a.arrivals"]["file"] == str(here / "other.csv")
    few = load(str(mine), {"populations.a.clients": 5}).scenario.populations["a"]
    assert few.clients == 5


def test_a_recorded_run_that_unpacks_into_other_numbers_is_no_trace(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "a-run")
    for number, attempts in enumerate(noise(500)):
        values = {"population": "one", "t_s": number / 10, "attempts_count": attempts}
        recording.add(GOODPUT, row(GOODPUT, **values))
    recording.rotate()
    damage_silently(tmp_path / "goodput-00000.parquet", "attempts_count")
    with pytest.raises(ConfigError, match=r"goodput-00000\.parquet: cannot be read"):
        read_trace(tmp_path, "clients")
