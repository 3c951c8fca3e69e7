"""Live runs with about the same load."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_analysis.comparing import parameter_sets
from spark_analysis.grains import by_instant, by_second
from spark_analysis.loads import ALIKE_PER_S, ALIKE_RATIO, classes, loads
from spark_analysis.report.words import LIVE, ParameterSet
from spark_analysis.runs.examination import Run
from tests.spark_analysis.hand import Row, table


def test_rates_that_are_alike_have_a_name_in_common() -> None:
    rates = {"a": 6_533.0, "b": 6_532.0, "c": 7_700.0, "d": 8_000.0, "idle": 0.0, "e": 0.4}
    assert classes(rates) == {
        **dict.fromkeys("abc", "6533"),
        "d": "8000",
        **dict.fromkeys(("idle", "e"), "0.2"),
    }
    assert classes({}) == {}


@given(rates=st.dictionaries(st.text(max_size=3), st.floats(0, 1e9), max_size=20))
def test_rates_of_one_class_are_alike(rates: dict[str, float]) -> None:
    named = classes(rates)
    assert named.keys() == rates.keys()
    by_name: dict[str, list[float]] = {}
    in_order = sorted(rates, key=lambda key: rates[key])
    for lower, upper in pairwise(in_order):
        if named[lower] == named[upper]:
            by_name.setdefault(named[lower], []).extend((rates[lower], rates[upper]))
    for of_class in by_name.values():
        bound = max(ALIKE_PER_S, (ALIKE_RATIO - 1) * min(of_class))
        assert max(of_class) - min(of_class) <= bound * (1 + 1e-9)


def test_what_is_no_limit_is_the_load_and_of_a_live_run_what_came() -> None:
    assert ParameterSet("s", "p", "clients=5, flow.w=3, nodes=2").load == "clients=5, nodes=2"
    assert ParameterSet("s", "p", "").load == ""
    live = ParameterSet(LIVE, "p", "flow.w=3, node.x=5, load.connects_per_s=20")
    assert live.load == "load.connects_per_s=20"


@pytest.mark.spark
def test_what_came_is_a_parameter_of_live_runs_only(spark: SparkSession) -> None:
    of_runs = [
        Run("", {"source": source, "run_id": name, "parameters": parameters}, {"ended_s": 60.0}, {})
        for name, source, parameters in (
            ("day", "broker", {"flow.w": "5"}),
            ("night", "broker", {}),
            ("sim", "simulation", {"clients": "10"}),
        )
    ]
    goodput: list[Row] = [
        {"run_id": run_id, "population": "all", "t_s": 30.0, **counts}
        for run_id, counts in (
            ("day", {"attempts_count": 1_200, "acknowledged_count": 60_000}),
            ("night", {"attempts_count": 0, "acknowledged_count": 0}),
            ("sim", {"attempts_count": 5, "acknowledged_count": 5}),
        )
    ]
    found = loads(of_runs, by_second(by_instant(table(spark, "goodput", goodput))))
    assert found == {
        "day": "load.connects_per_s=20, load.publishes_per_s=1000",
        "night": "load.connects_per_s=0, load.publishes_per_s=0",
    }
    sets = parameter_sets(of_runs, found)
    assert sets["parameters"].to_pylist() == [
        f"flow.w=5, {found['day']}",
        found["night"],
        "clients=10",
    ]
