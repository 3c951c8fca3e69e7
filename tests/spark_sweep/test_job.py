"""Ends of a sweep that cannot go on."""

import os
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark.sql import SparkSession

from spark_analysis.terminal import JobFailed
from spark_sweep.folder import SweepFolder
from spark_sweep.grid import Grid
from spark_sweep.job import run_job
from spark_sweep.plan import SweepPlan, make_plan
from tests.support.patience import HANG_S

pytestmark = pytest.mark.spark

LONG = {"scenarios": [{"name": "noisy_neighbour", "set": {"duration_s": 1_000_000}}], "seeds": 2}
"""Days of work."""


def plan(grid: dict[str, Any]) -> SweepPlan:
    return make_plan(Grid.model_validate(grid), Path("grid.toml"))


def wait_until_idle(spark: SparkSession) -> None:
    """Wait until Spark has no job; a waiting caller learns of a job's end before the list does."""
    deadline_s = time.monotonic() + HANG_S
    while spark.sparkContext.statusTracker().getActiveJobsIds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def leave() -> NoReturn:
    os._exit(7)


class Deadly:
    """A run that ends the Python worker itself as soon as it arrives there."""

    run_id = "deadly"

    def __reduce__(self) -> Any:
        return leave, ()


def test_ctrl_c_ends_it_while_runs_are_at_work(spark: SparkSession, tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    deadline_s = time.monotonic() + HANG_S

    def interrupt(_: int, __: int) -> None:
        assert time.monotonic() < deadline_s, "no run has begun"
        if list(folder.unfinished.glob("*/*")):
            raise KeyboardInterrupt

    with folder.opened(), pytest.raises(KeyboardInterrupt):
        run_job(plan(LONG).runs, folder, "local", interrupt)
    wait_until_idle(spark)
    assert not list(folder.runs.iterdir())
    assert not folder.unfinished.exists()


def test_ctrl_c_ends_it_though_nothing_has_come_to_spark_yet(
    spark: SparkSession, tmp_path: Path
) -> None:
    interrupted = threading.Event()

    class Late(type(tmp_path)):  # type: ignore[misc]
        """A place of which Spark hears when it is too late."""

        def __reduce__(self) -> Any:
            assert interrupted.wait(HANG_S)
            return Path, (str(self),)

    def interrupt(_: int, __: int) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    folder = SweepFolder(tmp_path)
    folder.runs = Late(folder.runs)
    with folder.opened(), pytest.raises(KeyboardInterrupt):
        run_job(plan(LONG).runs, folder, "local", interrupt)
    wait_until_idle(spark)
    assert not list(Path(folder.runs).iterdir())


def test_a_worker_that_is_gone_ends_it_with_a_line_that_says_how_to_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = SweepFolder(tmp_path)
    deadly: Any = Deadly()
    with folder.opened(), pytest.raises(JobFailed) as failed:
        run_job([deadly], folder, "local", lambda _, __: None)
    line = str(failed.value)
    assert "\n" not in line
    assert line.startswith("Spark gave up: Job aborted due to stage failure: ")
    assert line.endswith("0 of 1 runs were done; the same command goes on there.")
