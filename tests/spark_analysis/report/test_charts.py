from spark_analysis.report.charts import Styles, lines
from spark_analysis.report.words import ParameterSet

ONE = ParameterSet("s", "p", "")


def mode(*values: float | None) -> str:
    """How a course of these values is drawn."""
    rows = [{"from_s": place, "rate": value} for place, value in enumerate(values)]
    figure = lines([(ONE, rows)], "rate", "rate", Styles([ONE]), None)
    return str(figure["data"][0]["mode"])


def test_a_value_that_has_none_beside_it_is_a_point() -> None:
    assert mode(1.0) == mode(None, 1.0, None, 2.0, 3.0) == "lines+markers"
    assert mode(1.0, 2.0) == mode(None, 1.0, 2.0, None) == mode(None) == "lines"
