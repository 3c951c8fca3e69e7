"""The day of several brokers, from files to the page."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_analysis.day.course import BEYOND_S, DAY_S
from spark_analysis.day.day import Day, the_day
from spark_analysis.day.events import events
from spark_analysis.day.worst import worst
from spark_analysis.report.day import heading, sections
from spark_analysis.report.document import document
from spark_analysis.runs.examination import examine, find_runs
from tests.spark_analysis.day.test_events import START_S, STEP_S, hour, life, reason
from tests.spark_analysis.recorded import record
from tests.spark_analysis.report.test_browser import BEYOND, CUT, OUTSIDE, OVERLAPS, WIDTHS
from tests.support.browser import Page, open_page


def recorded(folder: Path, broker: str, run_id: str, started_s: float, window: float) -> None:
    """A run of ten seconds with a rejection and a decision in its third second."""
    live = {"source": "broker", "scenario": "live", "started_unix_s": started_s, "host": "h"}
    times = [number / 10 for number in range(1, 101)]
    samples = [
        {"t_s": t_s, "window": window, "accepted_count": 1, "cause": "loop", "is_alive": True}
        | {"pressure_ratio": 2.0 if 2 < t_s <= 3 else 0.5, "rung": "buffer"}
        | {"shadow_window": 55.0, "shadow_paused_count": 3}
        for t_s in times
    ]
    lost = {"kind": "connect", "reason": "gate_deadline", "count": 4}
    change = {"kind": "window", "before": 100.0, "after": window, "why": "loop"}
    waits = {"population": "all", "kind": "acknowledgement", "bound_s": 0.5, "count": 3}
    record(
        folder / broker / run_id,
        run_id,
        run=live,
        end={"ended_s": 10.0, "ended_by": "stopped"},
        samples=samples,
        goodput=[{"population": "all", "t_s": t_s, "attempts_count": 1} for t_s in times],
        latencies=[{**waits, "t_s": 3.0}, {**waits, "t_s": 4.0, "bound_s": math.inf}],
        reasons=[{**lost, "t_s": 3.0}],
        decisions=[{**change, "t_s": 2.5}],
    )


@pytest.mark.spark
def test_runs_of_brokers_stand_on_one_time_axis(spark: SparkSession, tmp_path: Path) -> None:
    recorded(tmp_path, "a", "a1", 1_000.0, 50.0)
    recorded(tmp_path, "a", "a2", 1_020.0, 60.0)
    recorded(tmp_path, "b", "b1", 1_000.0, 70.0)
    day = the_day(spark, examine(find_runs([tmp_path]))[0])
    assert day is not None
    assert (day.from_s, day.until_s, day.step_s, day.brokers) == (1_000, 1_030, 1, ["a", "b"])
    assert [row["at_s"] for row in day.rows("a")] == [*range(1_000, 1_010), *range(1_020, 1_030)]
    second = next(row for row in day.rows() if row["at_s"] == 1_002)
    assert (second["attempts_count"], second["accepted_count"], second["window"]) == (20, 20, 50.0)
    assert (second["overload_ratio"], second["acknowledgement_p99_s"]) == (1.0, 0.5)
    third = next(row for row in day.rows() if row["at_s"] == 1_003)
    assert third["acknowledgement_p99_s"] == BEYOND_S
    assert [(row["at_s"], row["count"]) for row in day.reasons.to_pylist()] == [
        *((1_002, 4), (1_002, 4), (1_022, 4)),
    ]
    assert (second["shadow_window"], second["shadow_share"]) == (55.0, 1.0)
    restart, *_ = [event for event in day.events if event.kind == "restart"]
    assert (restart.from_s, restart.until_s) == (1_010, 1_020)
    assert day.worst is not None
    assert day.worst.rejected.total() == 12
    assert [row["after"] for row in day.decisions] == [50.0, 70.0, 60.0]
    assert day.marks == day.decisions


@pytest.mark.spark
def test_of_several_days_the_worst_one_is_shown(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        recorded(tmp_path, "a", f"a{number}", 40_000.0 + DAY_S * number, 50.0)
    recorded(tmp_path, "a", "more", 40_100.0 + DAY_S, 50.0)
    day = the_day(spark, examine(find_runs([tmp_path]))[0])
    assert day is not None
    assert (day.is_part, day.from_s, day.until_s) == (True, DAY_S, 2 * DAY_S)
    assert day.step_s == 60
    assert [lifetime.from_s for lifetime in day.lives] == [40_000 + DAY_S, 40_100 + DAY_S]
    assert sum(row["attempts_count"] for row in day.rows()) == 200


def odd_day() -> Day:
    """An hour with a crowd, a slow store, a restart, and drops; on two brokers."""
    crowd = {f"s{number}": {"attempts_count": 1000} for number in (100, 101)}
    slow = {"pressure_ratio": 16.0, "cause": "store", "overload_ratio": 1.0, "commit_s": 60.0}
    slow |= {"shadow_window": 5.0, "shadow_share": 0.5, "shadow_paused_count": 7}
    rows = hour(**crowd, **{f"s{number}": slow for number in range(300, 315)})
    others = [{**row, "broker": "worker-1"} for row in hour()]
    lost = [reason(100, "gate_buffer_full", 300), reason(400, "queue_messages", 9, "message")]
    settings = {"flow.window_max": "50"}
    lives = (
        life(0, 2500, settings=settings),
        life(2503, 3600, version="0.2"),
        life(0, 3600, broker="worker-1"),
    )
    decided = {"broker": "a", "unix_s": START_S + 1500.0, "kind": "window", "why": "store"}
    cut = {**decided, "before": 100.0, "after": 1.0}
    return Day(
        *(START_S, START_S + 3600, STEP_S, False, lives),
        pa.Table.from_pylist([*rows, *others]),
        pa.Table.from_pylist(lost),
        tuple(events(rows, lost, lives, STEP_S)),
        worst(rows, lost, lives, STEP_S),
        (cut,),
        (cut,),
    )


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_page(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.mark.browser
@pytest.mark.parametrize("width", WIDTHS)
def test_the_day_can_be_read_at_every_width(opened: Page, width: int, tmp_path: Path) -> None:
    day = odd_day()
    path = tmp_path / "day.html"
    path.write_text(document("a day", [heading(day, []), *sections(day)]))
    opened.open(path, width)
    assert opened.evaluate("document.querySelectorAll('.panel').length") >= 12
    for look in (OVERLAPS, CUT, OUTSIDE, BEYOND):
        assert opened.evaluate(look) == []


def test_the_page_tells_what_happened_who_suffered_and_what_to_do() -> None:
    day = odd_day()
    text = document("a day", [heading(day, []), *sections(day)]).replace("\N{NO-BREAK SPACE}", " ")
    assert "0.1, 0.2" in text
    assert re.search("flow.window_max</span></td><td[^>]*><span>50, then default<", text)
    for words in ("Crowd of 2,000 CONNECTs", "Overload: the store was slow", "Messages dropped"):
        assert words in text
    assert "version 0.1 became 0.2; flow.window_max: 50 became default" in text
    assert "No limit helps against a slow store:" in text
    assert "Brokers side by side" in text
    assert "100 to 1; store" in text
    assert "smaller window in 50 % of the time, of all brokers the worst: down to 5" in text
    assert "paused 7 more clients at once" in text
    assert len(text) < 1_000_000
