"""Sweeps that end in the middle: what is finished stays, and the rest is simulated once."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark_analysis.conftest import SHORT_JOBS
from tests.support.apart import command
from tests.support.patience import HANG_S

pytestmark = [pytest.mark.spark, pytest.mark.long]

GRID = """
seeds = 3
[[scenarios]]
name = "noisy_neighbour"
set = { clients = 11, duration_s = 4 }
[limits]
flow.window_max = [50]
"""
END = "end-00000.parquet"


def swept(folder: Path, out: str, until: Callable[[], bool], end: signal.Signals | None) -> str:
    """Sweep until this is so, or to the end; return what it said, or "" if it was killed."""
    words = ("sweep", str(folder / "grid.toml"), "--out", str(folder / out), "--master", "local[1]")
    with command(*words, environment={"PYSPARK_SUBMIT_ARGS": SHORT_JOBS}) as process:
        deadline_s = time.monotonic() + HANG_S
        while not until() and process.poll() is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        if end is signal.SIGKILL:
            return ""
        if end is not None:
            process.send_signal(end)
        return process.communicate(timeout=HANG_S)[0]


def content(runs: Path) -> dict[str, bytes]:
    return {str(path.relative_to(runs)): path.read_bytes() for path in runs.rglob("*.parquet")}


def times(runs: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in runs.rglob("*.parquet")}


def test_a_sweep_that_is_killed_and_interrupted_gives_the_runs_of_a_whole_one(
    spark: object, tmp_path: Path
) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    runs = tmp_path / "killed" / "runs"

    def has_begun_after(count: int) -> Callable[[], bool]:
        unfinished = tmp_path / "killed" / "unfinished"
        return lambda: len(list(runs.glob(f"*/{END}"))) >= count and any(unfinished.glob("*/*"))

    swept(tmp_path, "killed", has_begun_after(1), signal.SIGKILL)
    finished = times(runs)
    assert 0 < len({path.parent for path in finished}) < 6
    said = swept(tmp_path, "killed", has_begun_after(3), signal.SIGINT)
    assert "Stopped; the same command goes on with what is missing." in said
    finished = finished | times(runs)
    said = swept(tmp_path, "killed", lambda: False, None)
    assert "0 failed" in said
    assert times(runs).items() >= finished.items()
    assert not (tmp_path / "killed" / "unfinished").exists()

    swept(tmp_path, "whole", lambda: False, None)
    whole = content(tmp_path / "whole" / "runs")
    assert len({Path(name).parent for name in whole}) == 6
    assert content(runs) == whole
