from importlib.metadata import entry_points
from io import StringIO
from pathlib import Path

import pytest
import typer
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner, Result

from spark_analysis import java
from spark_analysis.analysis import QUESTIONS
from spark_analysis.command import analyze
from spark_analysis.following import SHOWN, following_screen
from tests.spark_analysis.crowd import Drawn, draw
from tests.spark_analysis.recorded import record


def run(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.command()(analyze)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_flowguard_finds_it_as_one_of_its_commands() -> None:
    (found,) = entry_points(group="flowguard.commands", name="analyze")
    assert found.load() is analyze


@pytest.mark.spark
def test_runs_become_a_report_and_tables_and_what_is_left_out_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    draw(tmp_path / "runs" / "good", Drawn("crowd", "adaptive", 1, steps_per_s=1))
    record(tmp_path / "runs" / "unfinished", "u", is_finished=False)
    result = run(tmp_path / "runs", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "1 run analysed, 1 left out." in result.output
    for step in ("examining runs", "starting Spark", *(one.title for one in QUESTIONS), "writing"):
        assert f" s  {step}" in result.stderr
    assert "it has no end record: not finished, or still recorded" in result.output
    assert 10_000 < (tmp_path / "out" / "report.html").stat().st_size < 1_000_000
    assert (tmp_path / "out" / "tables" / "summary.csv").read_text().startswith('"question",')


def test_without_a_run_that_can_be_read_it_fails_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run(tmp_path / "empty", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "there are no Parquet files" in result.output
    record(tmp_path / "unfinished", "u", is_finished=False)
    result = run(tmp_path / "unfinished", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "it has no end record" in result.output


def test_no_file_of_a_run_of_another_time_is_read(tmp_path: Path) -> None:
    (tmp_path / "live-20261127T120000Z-a").mkdir()
    (tmp_path / "live-20261127T120000Z-a" / "run-00000.parquet").write_text("damaged")
    result = run(tmp_path, "--from", "2026-11-28", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "none began in this time, but 1 run at another time" in result.output
    assert "cannot be read" not in result.output
    result = run(tmp_path, "--until", "2026-11-28T00:00:00", "--out", tmp_path / "out")
    assert "run-00000.parquet cannot be read" in result.output


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = run(tmp_path / "nowhere", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "nowhere" in result.output


@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_a_place_that_cannot_be_made_is_one_line_before_anything_is_read(
    tmp_path: Path, follow: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "else")
    for out in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "dangling"):
        result = run(tmp_path, "--out", out, *follow)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"--out: cannot make {out}")
        assert result.stderr.count("\n") == 1


def test_a_place_of_tables_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tables").write_text("")
    result = run(tmp_path, "--out", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"--out: cannot make {tmp_path / 'tables'}")


def test_only_one_directory_can_be_followed(tmp_path: Path) -> None:
    result = run(tmp_path, tmp_path, "--out", tmp_path / "out", "--follow")
    assert result.exit_code == 2
    assert "--follow watches one directory, or one topic, without --from" in result.output


def test_properties_of_a_client_are_for_a_topic_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "nowhere"
    words = ["--out", tmp_path / "out", "--follow", "--kafka-properties", file]
    result = run(tmp_path, *words)
    assert result.exit_code == 2
    assert "--kafka-properties is for topics only" in result.output
    result = run("kafka://127.0.0.1:1/t", *words)
    assert result.exit_code == 2
    assert f"Cannot read {file}" in result.output


def test_the_screen_of_a_follower_shows_the_newest_minutes() -> None:
    counts = ("accepted", "refused", "published", "delivered", "lost")
    row = {f"{name}_count": 1234 for name in counts} | {
        "run_id": "live",
        "connections_max_count": 5,
        "pressure_max_ratio": 0.5,
        "window_min": None,
        "memory_max_ratio": 0.25,
    }
    console = Console(width=80, record=True, file=StringIO())
    console.print(following_screen([row | {"minute": minute} for minute in range(SHOWN + 1)]))
    title, *lines = console.export_text().splitlines()
    assert title.strip() == f"live: {SHOWN + 1} minutes"
    shown = [line.split() for line in lines if "1,234" in line]
    assert [cells[0] for cells in shown] == [str(minute) for minute in range(1, SHOWN + 1)]
    assert shown[0][1:] == ["1,234"] * 5 + ["5", "0.50", "25", "%"]


def test_the_screen_of_a_follower_tells_runs_apart_and_counts_those_it_does_not_name() -> None:
    row = dict.fromkeys(
        [f"{name}_count" for name in ("accepted", "refused", "published", "delivered", "lost")], 1
    ) | {
        "minute": 0,
        "connections_max_count": 5,
        "pressure_max_ratio": 0.5,
        "window_min": 100.0,
        "memory_max_ratio": 0.25,
    }
    ids = [f"live-20261127T1{hour}0000-[red]{hour}" for hour in range(7)]
    console = Console(width=80, record=True, file=StringIO())
    console.print(following_screen([row | {"run_id": run_id} for run_id in ids]))
    text = console.export_text()
    newest = ", ".join(f"{number}: {name}" for number, name in enumerate(ids, 1) if number > 4)
    assert " ".join(text.split()).startswith(f"{newest} and 4 more: 7 minutes")
    shown = [line.split()[0] for line in text.splitlines() if "25 %" in line]
    assert shown == [f"{number}" for number in range(1, 8)]


def test_without_java_it_says_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_none() -> java.Java:
        return find_java({"PATH": ""}, tmp_path)

    find_java = java.find_java
    monkeypatch.setattr(java, "find_java", find_none)
    result = run(tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "Spark needs Java 17 or newer; found here: no Java at all." in result.output
