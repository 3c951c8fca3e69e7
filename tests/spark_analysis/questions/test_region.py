import pytest
from pyspark.sql import SparkSession

from spark_analysis.questions.recovery import MAP_KEY, region
from tests.spark_analysis.hand import Row, answer, runs

pytestmark = pytest.mark.spark

RECOVERED = "run_id string, trigger_s double, is_recovered boolean, recovery_s double"


def run(run_id: str, load: float | None, policy: str = "none") -> Row:
    return {"run_id": run_id, "scenario": "retry", "policy": policy, "load_ratio": load}


def test_runs_are_counted_by_load_and_length(spark: SparkSession) -> None:
    recovered = spark.createDataFrame(
        [
            ("a", 5.0, True, 2.0),
            ("b", 5.0, True, 6.0),
            ("c", 5.0, False, None),
            ("d", 30.0, False, None),
            ("no load", 5.0, True, 1.0),
            ("never ends", None, True, 1.0),
        ],
        RECOVERED,
    )
    described = runs(
        spark,
        [
            run("a", 0.1 + 0.2),
            run("b", 0.3),
            run("c", 0.3),
            run("d", 0.9, "adaptive"),
            run("no load", None),
            run("never ends", 0.3),
        ],
    )
    assert answer(region(recovered, described), *MAP_KEY) == {
        ("retry", "none", 0.3, 5.0): {
            "runs_count": 3,
            "recovered_count": 2,
            "recovered_ratio": 2 / 3,
            "recovery_max_s": 6.0,
        },
        ("retry", "adaptive", 0.9, 30.0): {
            "runs_count": 1,
            "recovered_count": 0,
            "recovered_ratio": 0.0,
            "recovery_max_s": None,
        },
    }


def test_no_runs_no_map(spark: SparkSession) -> None:
    nothing = spark.createDataFrame([], RECOVERED)
    assert answer(region(nothing, runs(spark, [])), *MAP_KEY) == {}
