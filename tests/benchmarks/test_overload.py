"""The headline and an experiment, short and real; and their reports."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from rich.console import Console

from benchmarks import pages
from benchmarks.build import Unavailable, build
from benchmarks.checks import Check, Grid, Report, at_least, at_most, none_of
from benchmarks.conditions import Conditions
from benchmarks.overload import e08_self_loop, e12_cost, side_by_side, slow_redis
from benchmarks.overload.plot import Panel, Series, nice, svg
from benchmarks.overload.side_by_side import Run, SideBySide, judge
from benchmarks.overload.subject import Subject
from loadgen.storm import Target
from tests.support.redis_server import needs_redis

SHORT_S = (2.0, 8.0, 32.0)
"""A busy machine may leave nothing to see in the first of them."""


@pytest.fixture
def compiler() -> None:
    try:
        build("flood")
    except Unavailable as error:
        pytest.skip(str(error))


def measured(measure: Callable[[Conditions], Run]) -> tuple[Run, float]:
    """The first run of which something is known in every picture, or the last; and its seconds."""
    for seconds in SHORT_S:
        run = measure(Conditions(None, seconds=seconds))
        panels = SideBySide((run,), seconds).panels()
        if run.overload.seconds and all(line.points for each in panels for line in each.series):
            break
    return run, seconds


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_the_headline_measures_each_policy_and_judges_it() -> None:
    def measure(conditions: Conditions) -> Run:
        return side_by_side.measure_one(conditions, Subject("flowguard"), flooders=20)

    run, seconds = measured(measure)
    runs = (run, replace(run, policy=side_by_side.CONTROL))
    result = SideBySide(runs, seconds)
    for run in runs:
        assert run.overload.value == pytest.approx(3 * run.peak_per_s, rel=1e-3)
        assert 1 <= len(run.overload.seconds) <= seconds
        assert run.books.lost_connections == 0
        assert run.during(run.overload)
    assert [len(list(judge(run))) for run in runs] == [4, 1]
    report = result.report()
    assert [row[0] for row in report.grids[0].rows] == ["flowguard", "unlimited"]
    for panel in result.panels():
        assert [line.name for line in panel.series] == ["flowguard", "unlimited"]
        assert all(line.points for line in panel.series)
    Console(quiet=True).print(pages.terminal(report))
    ElementTree.fromstring(report.picture or "")


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_the_headline_is_measured_on_a_slow_redis() -> None:
    needs_redis()
    run, seconds = measured(
        lambda conditions: slow_redis.measure_on_redis(conditions, "flowguard", flooders=20)
    )
    assert run.peak_per_s > 0
    assert run.books.lost_connections == 0
    report = SideBySide((run,), seconds, key=slow_redis.KEY, store=slow_redis.STORE).report()
    assert report.key == "overload-redis"
    assert "MB/s" in report.scaled


@pytest.mark.slow
def test_self_loops_finish_in_order() -> None:
    with Subject(settings=e08_self_loop.SETTINGS).started(None) as instance:
        target = Target.resolve("127.0.0.1", instance.port)
        loopers = trio.run(e08_self_loop.run, target, 6, 0.5, instance.press)
    assert {looper.qos for looper in loopers} == {1, 2}
    for looper in loopers:
        assert looper.done
        assert looper.sent > 0
        assert looper.disordered == 0
        assert not looper.lost


def test_the_cost_of_objects_is_measured() -> None:
    assert e12_cost.packet_ns() > 0
    assert e12_cost.connect_ns() > 0
    assert 8 < e12_cost.client_bytes() < 10_000


@pytest.mark.parametrize(
    ("check", "passed"),
    [
        (at_most("a", 250, 250, " ms"), True),
        (at_most("a", 250.1, 250, " ms"), False),
        (at_least("a", 95, 95, " %"), True),
        (at_least("a", 94.9, 95, " %"), False),
        (none_of("a", 0), True),
        (none_of("a", 1), False),
    ],
)
def test_a_check_is_its_bound(check: Check, passed: bool) -> None:
    assert check.passed is passed


def test_what_is_not_judged_is_not_missed() -> None:
    open_check = Check("a", "not run", "b", None)
    assert Report("k", "t", "s", (open_check,)).passed
    assert not Report("k", "t", "s", (open_check, none_of("b", 1))).passed


# --- pictures ------------------------------------------------------------------------------------

ONE = Series("one", ((0.0, 1.0), (1.0, 100.0), (2.0, 10.0)))
TWO = Series("two", ((0.0, 0.0), (2.0, 1_000.0)))


def test_the_picture_has_a_line_for_each_series_inside_its_panel() -> None:
    text = svg([Panel("a", (ONE, TWO)), Panel("b <&>", (ONE,), log=True)], "title", 1.0)
    root = ElementTree.fromstring(text)
    lines = [element for element in root if element.tag.endswith("polyline")]
    assert len(lines) == 3
    for line in lines:
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= float(root.attrib["width"])
            assert 0 <= y <= float(root.attrib["height"])


def test_nothing_measured_is_no_accident() -> None:
    ElementTree.fromstring(svg([Panel("a", (Series("none", ()),), log=True)], "title"))


@pytest.mark.parametrize(("value", "rounded"), [(1.0, 1), (1.2, 2), (2.4, 2.5), (7_200, 10_000)])
def test_axes_end_at_round_numbers(value: float, rounded: float) -> None:
    assert nice(value) == pytest.approx(rounded)


# --- the page ------------------------------------------------------------------------------------


def test_a_page_is_written_anew_with_its_picture(tmp_path: Path) -> None:
    grid = Grid(("a", "b"), (("1", "2 | 3"),))
    for reached in ("old", "new"):
        check = Check("x", reached, "y", True)
        report = Report("e1", "Title", "scaled", (check,), (grid,), picture="<svg/>")
        pages.write(report, "command", "origin", tmp_path)
    text = (tmp_path / "e1.md").read_text()
    assert text.startswith("# Title\n\n`command`, origin\n\nscaled\n\n![Title](e1.svg)\n")
    assert "old" not in text
    assert "2 \\| 3" in text
    assert (tmp_path / "e1.svg").read_text() == "<svg/>"
