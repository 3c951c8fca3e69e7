"""Day: the day of live brokers that a report opens with; small tables on the driver."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_analysis.day.course import DAY_S, POINTS_MAX, STEPS_S, Courses, brokers
from spark_analysis.day.events import Event, Lifetime, Row, events, fleet
from spark_analysis.day.worst import WORST_S, Worst, worst
from spark_analysis.grains import in_order
from spark_analysis.runs import contracts
from spark_analysis.runs.examination import Run
from spark_analysis.runs.reading import read_table

TABLES: Final = ("samples", "goodput", "latencies", "decisions", "reasons")
DECISIONS_MAX: Final = 8
MARKS_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Day:
    """A day, or less, of the brokers that were recorded."""

    from_s: int
    until_s: int
    step_s: int
    is_part: bool
    """Whether the recording is longer, so that this is its worst day."""
    lives: tuple[Lifetime, ...]
    course: pa.Table
    """One row per broker and step."""
    reasons: pa.Table
    events: tuple[Event, ...]
    worst: Worst | None
    decisions: tuple[Row, ...]
    """The largest decisions of the law in the worst five minutes, in order of time."""
    marks: tuple[Row, ...]
    """The largest decisions of the day, in order of time."""

    def rows(self, broker: str | None = None) -> list[Row]:
        """Steps of one broker, or of all together."""
        rows: list[Row] = self.course.to_pylist()
        return fleet(rows) if broker is None else [r for r in rows if r["broker"] == broker]

    @property
    def brokers(self) -> list[str]:
        return sorted({life.broker for life in self.lives})


def the_day(spark: SparkSession, runs: Sequence[Run]) -> Day | None:
    """The day of the live runs, or None if there are none. Several days give the worst one."""
    names = brokers(runs)
    live = [run for run in runs if run.run_id in names and run.run["started_unix_s"] is not None]
    if not live:
        return None
    tables = {name: read_table(spark, live, contracts.TABLES[name]) for name in TABLES}
    courses = Courses(tables, live, names)
    lives = sorted((_life(run, names) for run in live), key=lambda life: life.from_s)
    from_s, until_s = lives[0].from_s, max(life.until_s for life in lives)
    is_part = until_s - from_s > DAY_S
    if is_part:
        found = _worst(courses, lives, WORST_S, from_s, until_s)
        within_s = until_s if found is None else found.from_s
        from_s = within_s - within_s % DAY_S
        until_s = from_s + DAY_S
        lives = [life for life in lives if life.until_s > from_s and life.from_s < until_s]
    step_s = next(step for step in STEPS_S if (until_s - from_s) / step <= POINTS_MAX)
    course = in_order(courses.of(step_s, from_s, until_s), "at_s", "broker")
    reasons = in_order(courses.reasons(step_s, from_s, until_s), "at_s", "broker", "kind", "reason")
    together, by_reason = fleet(course.to_pylist()), reasons.to_pylist()
    found = worst(together, by_reason, lives, step_s)
    first = int(from_s - from_s % step_s)
    return Day(
        first,
        int(-(-until_s // step_s) * step_s),
        step_s,
        is_part,
        tuple(lives),
        course,
        reasons,
        tuple(events(together, by_reason, lives, step_s)),
        found,
        () if found is None else _largest(courses, found.from_s, found.until_s, DECISIONS_MAX),
        _largest(courses, from_s, until_s, MARKS_MAX),
    )


def _largest(courses: Courses, from_s: float, until_s: float, most: int) -> tuple[Row, ...]:
    """The largest decisions of a time, in order of time."""
    largest = courses.decisions(from_s, until_s).orderBy("size", ascending=False).limit(most)
    return tuple(sorted(largest.toArrow().to_pylist(), key=lambda row: row["unix_s"]))


def _worst(
    courses: Courses, lives: Sequence[Lifetime], step_s: int, from_s: float, until_s: float
) -> Worst | None:
    rows = fleet(courses.of(step_s, from_s, until_s).toArrow().to_pylist())
    return worst(
        rows, courses.reasons(step_s, from_s, until_s).toArrow().to_pylist(), lives, step_s
    )


def _life(run: Run, names: Mapping[str, str]) -> Lifetime:
    from_s = run.run["started_unix_s"]
    return Lifetime(
        names[run.run_id],
        from_s,
        from_s + run.end["ended_s"],
        run.end["ended_by"],
        run.run["flowguard_version"],
        run.run["parameters"],
    )
