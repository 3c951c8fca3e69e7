import pytest
from pyspark.sql import SparkSession

from spark_analysis.questions.nodes import cascade
from tests.spark_analysis.hand import Row, answer, empty, nodes, table

pytestmark = pytest.mark.spark


def sample(run_id: str, node: int, t_s: float, memory: int | None) -> Row:
    """A sample with `memory` of 100, or None if the process is dead."""
    return {
        "run_id": run_id,
        "node": node,
        "t_s": t_s,
        "is_alive": memory is not None,
        "memory_bytes": memory or 0,
        "memory_limit_bytes": 0 if memory is None else 100,
    }


def test_nodes_fall_in_order_of_death_or_of_passing_their_limit(spark: SparkSession) -> None:
    rows = [
        sample("r", 0, 1.0, 50),
        sample("r", 0, 2.0, 101),  # over its limit at 2, dead at 3: fell at 2
        sample("r", 0, 3.0, None),
        sample("r", 1, 1.0, 50),
        sample("r", 1, 9.0, None),  # third
        sample("r", 2, 1.0, 50),
        sample("r", 2, 4.0, None),  # second
        sample("r", 3, 1.0, 100),  # at its limit is not over it
        sample("r", 4, 1.0, None),  # was not there at the start
        sample("r", 4, 2.0, 10),
    ]
    assert answer(cascade(nodes(table(spark, "samples", rows)))) == {
        "r": {
            "nodes_count": 5,
            "over_memory_count": 1,
            "fallen_count": 3,
            "depth_count": 2,
            "first_fell_s": 2.0,
            "spread_s": 7.0,
            "order": "0 > 2 > 1",
        }
    }


def test_where_none_or_one_falls_there_is_no_cascade(spark: SparkSession) -> None:
    rows = [
        sample("calm", 0, 1.0, 50),
        sample("one", 0, 1.0, 50),
        sample("one", 0, 2.0, None),
        sample("one", 1, 2.0, 50),
        # In the same sample: by number.
        *(
            sample("together", node, t_s, m)
            for node in (1, 0)
            for t_s, m in ((1.0, 5), (2.0, None))
        ),
    ]
    found_rows = table(spark, "samples", rows)
    found = answer(cascade(nodes(found_rows)))
    assert (found["calm"]["depth_count"], found["calm"]["order"]) == (0, "")
    assert found["calm"]["first_fell_s"] is None
    assert (found["one"]["depth_count"], found["one"]["fallen_count"]) == (0, 1)
    assert (found["together"]["depth_count"], found["together"]["order"]) == (1, "0 > 1")


def test_no_samples_no_answer(spark: SparkSession) -> None:
    assert answer(cascade(nodes(empty(spark, "samples")))) == {}
