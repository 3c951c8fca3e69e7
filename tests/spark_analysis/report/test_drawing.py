"""Charts as SVG."""

import re

import pytest

from spark_analysis.report.drawing import Axis, Chart, axis


def path(*values: float | None) -> str:
    chart = Chart(Axis(0, 4, str), Axis(0, 10, str), height_px=100)
    chart.line([(float(place), value) for place, value in enumerate(values)], 0)
    (found,) = re.findall(r' d="([^"]*)"', chart.html())
    return str(found)


def test_a_line_is_broken_where_a_value_is_missing_and_a_lone_one_is_a_point() -> None:
    assert path(0.0, 5.0, None, 10.0) == "M0.0 100.0h0L250.0 50.0M750.0 0.0h0"
    assert path(None) == ""


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.0, 10.0], [0, 2, 4, 6, 8, 10]),
        ([0.0, 0.3], [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3]),
        ([0.0, 19.0], [0, 5, 10, 15]),
        ([], [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
    ],
)
def test_an_axis_has_round_marks(values: list[float], ticks: list[float]) -> None:
    assert axis(values, str).ticks(8) == pytest.approx(ticks)


def test_a_logarithmic_axis_has_marks_of_each_power_and_leaves_out_what_is_not_above_zero() -> None:
    wide = axis([0.0, 1.0, 1000.0], str, is_log=True)
    assert wide.ticks(20) == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    assert len(wide.ticks(4)) <= 4
    assert 0 < wide.place(1.0) < wide.place(10.0) < wide.place(1000.0) < 1
    assert wide.place(0.0) == 0


@pytest.mark.parametrize("values", [[], [0.0]])
def test_a_logarithmic_axis_without_a_value_can_be_drawn(values: list[float]) -> None:
    up = axis(values, str, is_log=True)
    assert Chart(Axis(0.0, 1.0, str), up, height_px=10).html()
    assert 0.0 <= up.place(0.5) <= 1.0


def test_words_of_data_are_escaped() -> None:
    chart = Chart(Axis(0, 1, lambda _: "<b>"))
    chart.dot(0.5, 0.5, "f0", title="<script>")
    chart.text(0.5, 3, "a<b", "letter")
    assert not re.search("<(script|b>)", chart.html())
