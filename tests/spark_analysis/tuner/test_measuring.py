from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_analysis.runs.examination import examine, find_runs
from spark_analysis.tuner.measuring import Measures, measure
from spark_analysis.tuner.objective import Objective
from tests.spark_analysis.hand import Row
from tests.spark_analysis.recorded import record
from tests.spark_analysis.tuner.tried import GOODPUT, MEMORY, objective

pytestmark = pytest.mark.spark

T99 = "time_to_connect.t99_s"
DEATHS = "survival.deaths_count"


def instant(t_s: float, population: str, in_time: int, connected: int) -> Row:
    return {
        "population": population,
        "t_s": t_s,
        "clients_count": 10,
        "first_connected_count": connected,
        "due_count": 10,
        "acknowledged_count": in_time,
        "in_time_count": in_time,
    }


def measured(spark: SparkSession, folder: Path, wanted: Objective) -> Measures:
    runs, left_out = examine(find_runs([folder]))
    assert not left_out
    asked = []
    found = measure(spark, runs, wanted, asked.append)
    assert asked
    return found


def test_what_the_objective_speaks_of_is_known_of_every_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    late = [instant(1.0, "quiet", 4, 10), instant(1.0, "noisy", 6, 0)]
    late += [instant(2.0, "quiet", 2, 10), instant(2.0, "noisy", 8, 5)]
    memory = {"t_s": 1.0, "is_alive": True, "memory_bytes": 60, "memory_limit_bytes": 80}
    record(tmp_path / "a", "a", end={"deaths_count": 3}, goodput=late, samples=[memory])
    record(
        tmp_path / "b",
        "b",
        end={"ended_by": "violation"},
        violations=[{"t_s": 1.0, "invariant": "1 window", "detail": "too large"}],
    )
    record(tmp_path / "c", "c", end={"ended_by": "violation"})
    wanted = objective(
        objectives=[
            {"metric": GOODPUT},
            {"metric": GOODPUT, "population": "quiet"},
            {"metric": T99},
        ],
        constraints=[{"metric": MEMORY, "at_least": 0.1}, {"metric": DEATHS, "at_most": 0}],
    )
    found = measured(spark, tmp_path, wanted)
    assert found.values == {
        (GOODPUT, "all", "a"): 10.0,
        (GOODPUT, "quiet", "a"): 3.0,
        (T99, "all", "a"): None,  # never: half of the noisy ones are not connected
        (MEMORY, "all", "a"): 0.25,
        (DEATHS, "all", "a"): 3.0,
        (DEATHS, "all", "b"): 0.0,
        (DEATHS, "all", "c"): 0.0,
    }
    assert found.violated == {"b", "c"}
