import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from rich.console import Console

from flowguard.telemetry.recording import Recording
from flowguard.telemetry.schema import SAMPLES, TABLE_KEY, VERSION_KEY
from spark_analysis.following import SUMMARY, follow, minutes, wait
from spark_analysis.job import follow_job
from spark_analysis.runs import contracts
from spark_analysis.terminal import JobFailed
from tests.spark_analysis.hand import Row, answer, empty, table
from tests.spark_analysis.recorded import values
from tests.support.damage import damage_silently, noise
from tests.support.patience import HANG_S
from tests.torture import following as killing
from tests.torture.following import Kill

pytestmark = pytest.mark.spark


def sample(t_s: float, **columns: Any) -> Row:
    return {"t_s": t_s, "is_alive": True, "window": 100.0, **columns}


def add(recording: Recording, *rows: Row) -> None:
    """Rows that are complete files at once."""
    recording.extend(SAMPLES, [values(SAMPLES, row) for row in rows])
    recording.rotate()


def summary(out: Path) -> dict[int, Row]:
    return {row["minute"]: row for row in json.loads((out / SUMMARY).read_text())["minutes"]}


def test_minutes_are_sums_over_nodes_and_the_worst_of_them(spark: SparkSession) -> None:
    rows = [
        sample(1.0, run_id="r", accepted_count=3, pressure_ratio=0.5, memory_bytes=10)
        | {"memory_limit_bytes": 100},
        sample(1.0, run_id="r", node=1, accepted_count=4, pressure_ratio=2.0, window=20.0),
        sample(2.0, run_id="r", node=1, is_alive=False, window=0.0),
        sample(60.0, run_id="r", accepted_count=5, connections_count=7),
    ]
    found = answer(minutes(table(spark, "samples", rows)), "minute")
    assert (found[0]["accepted_count"], found[1]["accepted_count"]) == (7, 5)
    assert (found[0]["pressure_max_ratio"], found[0]["window_min"]) == (2.0, 20.0)
    assert (found[0]["memory_max_ratio"], found[0]["samples_count"]) == (0.1, 3)
    assert found[1]["connections_max_count"] == 7
    assert answer(minutes(empty(spark, "samples")), "minute") == {}


def test_the_summary_grows_with_the_directory_and_goes_on_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory, out = tmp_path / "live", tmp_path / "out"
    recording = Recording(directory / "today", "live-1")
    shown: list[int] = []

    add(recording, sample(1.0, accepted_count=2), sample(61.0, accepted_count=1))
    query = follow(spark, directory, out, lambda rows: shown.append(len(rows)), every_s=0.1)
    try:
        query.processAllAvailable()
        assert {minute: row["accepted_count"] for minute, row in summary(out).items()} == {
            0: 2,
            1: 1,
        }
        add(recording, sample(62.0, accepted_count=10))
        # A file that is not complete is nobody's business yet.
        recording.extend(SAMPLES, [values(SAMPLES, sample(63.0, accepted_count=1_000))])
        query.processAllAvailable()
        assert summary(out)[1]["accepted_count"] == 11
    finally:
        query.stop()

    add(recording, sample(121.0, accepted_count=5))
    again = follow(spark, directory, out, lambda rows: shown.append(len(rows)), every_s=0.1)
    try:
        again.processAllAvailable()
    finally:
        again.stop()
    assert {minute: row["accepted_count"] for minute, row in summary(out).items()} == {
        0: 2,
        1: 1_011,
        2: 5,
    }
    assert shown[0] == 2
    assert shown[-1] == 3


def test_a_file_of_another_version_ends_it_and_is_in_no_summary(
    spark: SparkSession, tmp_path: Path
) -> None:
    recording = Recording(tmp_path / "live", "live-1")
    add(recording, sample(1.0, accepted_count=2))
    path = tmp_path / "live" / "samples-00000.parquet"
    metadata = {VERSION_KEY: str(contracts.VERSION + 1), TABLE_KEY: "samples"}
    pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
    query = follow(spark, tmp_path / "live", tmp_path / "out", lambda _: None, every_s=0.1)
    with pytest.raises(StreamingQueryException):
        query.processAllAvailable()
    with pytest.raises(JobFailed, match=r"^samples-00000.parquet has a newer schema"):
        wait(tmp_path / "out", query)
    assert not (tmp_path / "out" / SUMMARY).exists()


def test_a_page_that_unpacks_into_other_numbers_ends_it_and_is_in_no_summary(
    spark: SparkSession, tmp_path: Path
) -> None:
    recording = Recording(tmp_path / "live", "live-1")
    add(recording, *(sample(1.0, published_count=number) for number in noise(500)))
    damage_silently(tmp_path / "live" / "samples-00000.parquet", "published_count")
    query = follow(spark, tmp_path / "live", tmp_path / "out", lambda _: None, every_s=0.1)
    with pytest.raises(StreamingQueryException):
        query.processAllAvailable()
    with pytest.raises(JobFailed, match=r"samples-00000\.parquet"):
        wait(tmp_path / "out", query)
    assert not (tmp_path / "out" / SUMMARY).exists()


def test_rows_that_come_a_day_late_end_it(spark: SparkSession, tmp_path: Path) -> None:
    live = tmp_path / "live"
    add(Recording(live / "new", "live-20261130T120000Z-a"), sample(1.0))
    query = follow(spark, live, tmp_path / "out", lambda _: None, every_s=0.1)
    try:
        query.processAllAvailable()
        add(Recording(live / "old", "live-20261128T120000Z-b"), sample(1.0))
        query.processAllAvailable()
        with pytest.raises(JobFailed, match="it reads everything"):
            wait(tmp_path / "out", query)
    finally:
        query.stop()


@pytest.mark.slow
def test_a_restart_after_rows_that_came_late_has_them(spark: SparkSession, tmp_path: Path) -> None:
    live, out = tmp_path / "live", tmp_path / "out"
    add(Recording(live / "new", "live-20261130T120000Z-a"), sample(1.0))

    def come_late() -> None:
        wait_for(lambda: any((out / "checkpoint" / "commits").glob("1")))
        add(Recording(live / "old", "live-20261128T120000Z-b"), sample(1.0))

    thread = threading.Thread(target=come_late)
    thread.start()
    with pytest.raises(JobFailed, match="it reads everything"):
        follow_job(live, out, "local[2]", memory_gib=None, console=Console(quiet=True))
    thread.join()
    query = follow(spark, live, out, lambda _: None, every_s=0.1)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert [row["run_id"][-1] for row in killing.minutes(out)] == ["b", "a"]


@pytest.mark.long
def test_a_killed_follower_gives_the_summary_of_one_that_was_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    kills = (Kill("checkpoint/offsets/*"), Kill(SUMMARY))
    grow = killing.growing_directory(tmp_path / "live", Random(1))
    killed = killing.torture(str(tmp_path / "live"), grow, tmp_path / "killed", kills)
    query = follow(spark, tmp_path / "live", tmp_path / "whole", lambda _: None, every_s=0.1)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert killed == killing.minutes(tmp_path / "whole")


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
