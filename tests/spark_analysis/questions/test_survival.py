import pytest
from pyspark.sql import SparkSession

from spark_analysis.questions.nodes import survival
from tests.spark_analysis.hand import answer, runs

pytestmark = pytest.mark.spark


def test_a_run_has_as_many_deaths_as_it_says_at_its_end(spark: SparkSession) -> None:
    of_runs = runs(spark, [{"run_id": "a", "deaths_count": 2}, {"run_id": "b"}])
    assert answer(survival(of_runs)) == {"a": {"deaths_count": 2}, "b": {"deaths_count": 0}}


def test_of_no_run_there_is_no_answer(spark: SparkSession) -> None:
    assert answer(survival(runs(spark, []))) == {}
