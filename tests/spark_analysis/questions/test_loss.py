import pytest
from pyspark.sql import SparkSession

from spark_analysis.questions.nodes import loss
from tests.spark_analysis.hand import Row, answer, empty, nodes, table

pytestmark = pytest.mark.spark


def sample(run_id: str, node: int, t_s: float, **columns: object) -> Row:
    return {"run_id": run_id, "node": node, "t_s": t_s, "is_alive": True, **columns}


def test_what_was_lost_is_summed_over_nodes(spark: SparkSession) -> None:
    rows = [
        sample("r", 0, 1.0, published_count=60, lost_count=1, dropped_count=4),
        sample("r", 0, 2.0, published_count=20, lost_count=0, dropped_count=None),
        sample("r", 1, 1.0, published_count=20, lost_count=2, dropped_count=3),
        sample("idle", 0, 1.0),
    ]
    found_rows = table(spark, "samples", rows)
    found = answer(loss(nodes(found_rows)))
    assert found["r"] == {
        "published_count": 100,
        "lost_count": 3,
        "dropped_count": 7,
        "lost_ratio": 0.03,
    }
    idle = found["idle"]
    assert (idle["lost_count"], idle["dropped_count"], idle["lost_ratio"]) == (0, None, None)


def test_no_samples_no_answer(spark: SparkSession) -> None:
    assert answer(loss(nodes(empty(spark, "samples")))) == {}
