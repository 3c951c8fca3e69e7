import pytest
from pyspark.sql import SparkSession

from spark_analysis.questions.nodes import memory
from tests.spark_analysis.hand import Row, answer, empty, nodes, table

pytestmark = pytest.mark.spark


def sample(run_id: str, node: int, t_s: float, used: int, limit: int, **columns: object) -> Row:
    return {
        "run_id": run_id,
        "node": node,
        "t_s": t_s,
        "is_alive": limit > 0,
        "memory_bytes": used,
        "memory_limit_bytes": limit,
        **columns,
    }


def test_the_node_nearest_to_its_own_limit_counts(spark: SparkSession) -> None:
    rows = [
        sample("r", 0, 1.0, 600, 1000, unfinished_bytes=5, connects_buffered_bytes=70),
        sample("r", 1, 1.0, 300, 400, unfinished_bytes=9),
        sample("r", 1, 2.0, 0, 0),
        sample("over", 0, 1.0, 110, 100),
        sample("no limit", 0, 1.0, 110, 0),
    ]
    found_rows = table(spark, "samples", rows)
    found = answer(memory(nodes(found_rows)))
    assert found["r"] == {
        "headroom_ratio": 0.25,
        "unfinished_max_bytes": 9,
        "buffered_max_bytes": 70,
    }
    assert found["over"]["headroom_ratio"] == pytest.approx(-0.1)
    assert found["no limit"]["headroom_ratio"] is None


def test_no_samples_no_answer(spark: SparkSession) -> None:
    assert answer(memory(nodes(empty(spark, "samples")))) == {}
