from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession

from spark_analysis.questions.stability import stability
from tests.spark_analysis.hand import Row, answer, empty, runs, table

pytestmark = pytest.mark.spark


def course(run_id: str, windows: Sequence[float | None], node: int = 0) -> list[Row]:
    """A window, second by second; None if the node is dead."""
    return [
        {
            "run_id": run_id,
            "node": node,
            "t_s": float(second),
            "is_alive": window is not None,
            "window": window or 0.0,
        }
        for second, window in enumerate(windows)
    ]


def test_a_reversal_is_a_change_of_direction_and_standing_still_is_none(
    spark: SparkSession,
) -> None:
    rows = [
        # down, still, down, up, still, down: two reversals in 30 s
        *course("r", [100, 50, 50, 40, 60, 60, 50, *[50.0] * 24]),
        *course("still", [100.0] * 31),
        # the most restless node is the run's
        *course("nodes", [10.0] * 31),
        *course("nodes", [10, 20, 10, 20, *[20.0] * 27], node=1),
    ]
    described = runs(spark, [{"run_id": "r"}, {"run_id": "still"}, {"run_id": "nodes"}])
    found = answer(stability(table(spark, "samples", rows), described))
    assert found["r"]["reversals_per_min"] == 4.0
    assert found["still"]["reversals_per_min"] == 0.0
    assert found["nodes"]["reversals_per_min"] == 4.0
    assert found["r"]["span_ratio"] == pytest.approx(100 / 40)
    assert found["r"]["final_span_ratio"] == 1.0


def test_settled_is_the_last_time_outside_of_a_quarter_of_the_final_value(
    spark: SparkSession,
) -> None:
    windows = [*[100.0] * 10, 10, 20, 39, 41, *[50.0] * 17]  # 50 / 1.25 = 40
    rows = [
        *course("trigger", windows),
        *course("start", windows),
        *course("calm", [*[80.0] * 10, *[100.0] * 20]),
        *course("swings", [10.0, 100.0] * 15),
        *course("dead", [*[50.0] * 20, *[None] * 10]),
    ]
    described = runs(
        spark,
        [
            {"run_id": "trigger", "trigger_at_s": 8.0, "trigger_until_s": 10.0},
            *({"run_id": name} for name in ("start", "swings", "dead")),
            {"run_id": "calm", "trigger_at_s": 20.0},
        ],
    )
    found = answer(stability(table(spark, "samples", rows), described))
    assert found["trigger"]["settling_s"] == 2.0  # 39 at 12 s, after 10 s
    assert found["start"]["settling_s"] == 12.0
    assert found["calm"]["settling_s"] == 0.0
    assert found["swings"]["settling_s"] is None
    assert found["swings"]["final_span_ratio"] == pytest.approx(10.0)
    assert found["dead"]["settling_s"] == 0.0


def test_one_sample_three_and_none(spark: SparkSession) -> None:
    rows = table(spark, "samples", [*course("one", [50]), *course("three", [10, 20, 10])])
    described = runs(spark, [{"run_id": "one"}, {"run_id": "three"}])
    found = answer(stability(rows, described))
    assert (found["one"]["reversals_per_min"], found["one"]["settling_s"]) == (None, 0.0)
    assert found["three"]["reversals_per_min"] == 30.0
    assert answer(stability(empty(spark, "samples"), described)) == {}
