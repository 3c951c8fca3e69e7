import pytest
from pyspark.sql import SparkSession

from spark_analysis.questions.nodes import admission
from tests.spark_analysis.hand import Row, answer, empty, nodes, table

pytestmark = pytest.mark.spark


def sample(run_id: str, t_s: float, node: int = 0, **columns: object) -> Row:
    return {
        "run_id": run_id,
        "node": node,
        "t_s": t_s,
        "is_alive": True,
        "rung": "buffer",
        **columns,
    }


def test_counts_are_summed_over_nodes_and_shares_are_of_all_that_was_asked(
    spark: SparkSession,
) -> None:
    rows = [
        sample("two", 0.1, 0, accepted_count=6, refused_count=1, connects_buffered_count=40),
        sample("two", 0.1, 1, accepted_count=2, discarded_count=3, connects_buffered_count=70),
        sample("two", 0.2, 0, closed_count=4, rung="close", busy_s=0.08, refusing_s=0.02),
        sample("two", 0.2, 1, is_alive=False, rung="stop"),
        sample("one", 0.1, accepted_count=5),
    ]
    found = answer(admission(nodes(table(spark, "samples", rows))))
    assert found["two"] == {
        "accepted_count": 8,
        "refused_count": 1,
        "discarded_count": 3,
        "closed_count": 4,
        "accepted_ratio": 8 / 16,
        "refused_ratio": 1 / 16,
        "refusing_ratio": pytest.approx(0.25),
        "closing_ratio": 1 / 3,  # the dead node closes nothing
        "buffered_max_count": 70,
    }
    assert found["one"]["accepted_ratio"] == 1.0
    assert found["one"]["refusing_ratio"] is None  # nobody counted the work


def test_where_nobody_asked_there_is_no_share(spark: SparkSession) -> None:
    found = answer(admission(nodes(table(spark, "samples", [sample("idle", 0.1)]))))
    assert (found["idle"]["accepted_count"], found["idle"]["accepted_ratio"]) == (0, None)


def test_no_samples_no_answer(spark: SparkSession) -> None:
    assert answer(admission(nodes(empty(spark, "samples")))) == {}
