"""Segments of any length give the answers of all rows in order of time."""

import math
import random
from itertools import pairwise

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_analysis import segments
from spark_analysis.questions.stability import SETTLED_RATIO, stability
from tests.spark_analysis.hand import Row, answer, runs, table

pytestmark = pytest.mark.spark

BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


def drawn(seed: int) -> list[float]:
    """A window that rises, falls, rests and jumps."""
    chance = random.Random(seed)
    found = [50.0]
    for _ in range(399):
        step = chance.choice((1.0, 1.0, 1.02, 0.98, 0.5, 2.0))
        found.append(min(max(found[-1] * step, 1.0), 400.0))
    return found


def expected(window: list[float]) -> Row:
    """The same from all samples, ten per second."""
    ln = [math.log(one) for one in window]
    steps = [b - a for a, b in pairwise(ln) if abs(b - a) > 1e-9]
    turns = sum((a > 0) != (b > 0) for a, b in pairwise(steps))
    last = ln[-100:]
    final = math.fsum(last) / len(last)
    outside = [n for n, one in enumerate(ln) if abs(one - final) > math.log(SETTLED_RATIO)]
    settled = outside[-1] / 10 if outside else 0.0
    return {
        "reversals_per_min": 60 * turns / ((len(window) - 1) / 10),
        "span_ratio": max(window) / min(window),
        "final_span_ratio": math.exp(max(last) - min(last)),
        "settling_s": settled if settled <= (len(window) - 1) / 10 - 10 else None,
    }


@pytest.mark.parametrize("rows_max", [3, 1_000])
def test_windows_are_the_same_however_their_rows_are_cut(
    spark: SparkSession, rows_max: int
) -> None:
    windows = {(f"r{run}", node): drawn(10 * run + node) for run in range(4) for node in (0, 5)}
    rows = [
        {"run_id": run, "node": node, "t_s": number / 10, "is_alive": True, "window": one}
        for (run, node), window in windows.items()
        for number, one in enumerate(window)
    ]
    cut = table(spark, "samples", rows).repartitionByRange(3, "t_s")
    before = spark.conf.get(BATCH)
    spark.conf.set(BATCH, rows_max)
    try:
        described = runs(spark, [{"run_id": f"r{run}"} for run in range(4)])
        found = answer(stability(cut.sortWithinPartitions("t_s", "node"), described))
    finally:
        spark.conf.set(BATCH, before or "")
    assert found.keys() == {f"r{run}" for run in range(4)}
    for run, row in found.items():
        nodes = [expected(windows[run, node]) for node in (0, 5)]
        for name in ("reversals_per_min", "span_ratio", "final_span_ratio"):
            assert row[name] == pytest.approx(max(each[name] for each in nodes)), (run, name)
        settled = [each["settling_s"] for each in nodes]
        assert row["settling_s"] == (None if None in settled else max(settled)), run


def test_a_file_that_is_missing_between_two_in_a_batch_begins_another_segment() -> None:
    times = [float(t_s) for t_s in (*range(60), *range(120, 180))]
    batch = pa.RecordBatch.from_pydict(
        {
            "run_id": ["r"] * len(times),
            "node": pa.array([0] * len(times), pa.int32()),
            "t_s": times,
            "ln_window": [0.0] * len(times),
        }
    )
    (found,) = segments._segments(iter([batch]))
    assert found["from_s"].to_pylist() == [0.0, 120.0]
