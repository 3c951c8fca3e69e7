from collections.abc import Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_analysis.grains import by_instant, by_second
from spark_analysis.questions.recovery import recovery
from tests.spark_analysis.hand import Row, answer, empty, runs, table

pytestmark = pytest.mark.spark


def course(run_id: str, per_second: Sequence[int | None]) -> list[Row]:
    """A run's goodput, second by second; None for no row."""
    return [
        {
            "run_id": run_id,
            "population": "cars",
            "t_s": second + 1.0,
            "in_time_count": count,
        }
        for second, count in enumerate(per_second)
        if count is not None
    ]


def described(spark: SparkSession, *run_ids: str, **columns: object) -> DataFrame:
    common = {"trigger_at_s": 10.0, "trigger_until_s": 15.0, **columns}
    return runs(spark, [{"run_id": run_id, **common} for run_id in run_ids])


BEFORE = [100] * 10
TRIGGER = [20] * 5


def test_back_is_the_second_from_which_on_it_stays(spark: SparkSession) -> None:
    rows = [
        # Low until second 18; means of five from 19 on are 100.
        *course("plain", [*BEFORE, *TRIGGER, *[20] * 4, *[100] * 21]),
        # Nothing is wrong after the trigger.
        *course("at once", [*BEFORE, *TRIGGER, *[97] * 25]),
        # Back, and down again for three seconds, 25 to 27: means from 21 to 27 are low.
        *course("relapse", [*BEFORE, *TRIGGER, *[100] * 10, 20, 20, 20, *[100] * 12]),
        # One second at 80: the mean of five is 96.
        *course("ripple", [*BEFORE, *TRIGGER, *[100] * 10, 80, *[100] * 14]),
        *course("collapse", [*BEFORE, *TRIGGER, *[30] * 25]),
        # Back at second 33 of 40: not long enough to tell.
        *course("late", [*BEFORE, *TRIGGER, *[20] * 18, *[100] * 7]),
    ]
    names = ("plain", "at once", "relapse", "ripple", "collapse", "late")
    seconds = by_second(by_instant(table(spark, "goodput", rows)))
    found = answer(recovery(seconds, described(spark, *names, ended_s=40.0)))
    assert {name: row["recovery_s"] for name, row in found.items()} == {
        "plain": 4.0,
        "at once": 0.0,
        "relapse": 13.0,
        "ripple": 0.0,
        "collapse": None,
        "late": None,
    }
    assert {name for name, row in found.items() if not row["is_recovered"]} == {"collapse", "late"}
    assert found["plain"]["before_per_s"] == 100.0
    assert found["plain"]["lowest_ratio"] == (4 * 20 + 100) / 500
    assert found["plain"]["trigger_s"] == 5.0


def test_a_trigger_that_never_ends_counts_from_its_beginning(spark: SparkSession) -> None:
    seconds = by_second(
        by_instant(table(spark, "goodput", course("r", [*BEFORE, 0, 0, 0, *[100] * 20])))
    )
    found = answer(recovery(seconds, described(spark, "r", trigger_until_s=None, ended_s=33.0)))
    assert (found["r"]["recovery_s"], found["r"]["trigger_s"]) == (3.0, None)


def test_the_unfinished_last_second_is_no_relapse(spark: SparkSession) -> None:
    rows = course("r", [*BEFORE, *TRIGGER, *[100] * 20, 10])
    rows[-1]["t_s"] = 35.1
    seconds = by_second(by_instant(table(spark, "goodput", rows)))
    found = answer(recovery(seconds, described(spark, "r", ended_s=35.1)))
    assert found["r"]["recovery_s"] == 0.0


def test_what_has_nothing_to_come_back_to_has_no_answer(spark: SparkSession) -> None:
    rows = [*course("idle before", [0] * 10 + [50] * 30), *course("no trigger", [50] * 40)]
    rows += course("from the start", [50] * 40)
    names = [
        {"run_id": "idle before", "trigger_at_s": 10.0},
        {"run_id": "no trigger"},
        {"run_id": "from the start", "trigger_at_s": 0.0},
    ]
    seconds = by_second(by_instant(table(spark, "goodput", rows)))
    assert answer(recovery(seconds, runs(spark, names))) == {}


def test_rows_that_are_missing(spark: SparkSession) -> None:
    rows = course("gaps", [*BEFORE, *TRIGGER, 20, None, None, *[100] * 22])
    seconds = by_second(by_instant(table(spark, "goodput", rows)))
    found = answer(recovery(seconds, described(spark, "gaps", ended_s=40.0)))
    assert found["gaps"]["recovery_s"] == 1.0  # what is missing is not taken for nothing


def test_one_row_and_none(spark: SparkSession) -> None:
    seconds = by_second(by_instant(table(spark, "goodput", course("one", [100]))))
    assert answer(recovery(seconds, described(spark, "one"))) == {}
    nothing = by_second(by_instant(empty(spark, "goodput")))
    assert answer(recovery(nothing, described(spark, "one"))) == {}
