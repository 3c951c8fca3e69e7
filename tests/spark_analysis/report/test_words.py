import pytest

from spark_analysis.questions.question import Unit
from spark_analysis.report.words import Names, ParameterSet, margin, number, quantity


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (12.34, "12.3"),
        (0.01234, "0.0123"),
        (1234.0, "1,234"),
        (12_345.0, "12.3k"),
        (4_500_000.0, "4.5M"),
        (2e9, "2G"),
        (-3.456, "-3.46"),
        (float("inf"), "infinite"),
    ],
)
def test_a_number_has_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.992, Unit.SHARE, "99.2 %"),
        (0.0851, Unit.SECONDS, "85.1 ms"),
        (12.0, Unit.SECONDS, "12 s"),
        (0.0, Unit.SECONDS, "0 s"),
        (3 * 2**20, Unit.BYTES, "3 MiB"),
        (512, Unit.BYTES, "512 B"),
        (7, Unit.COUNT, "7"),
        (173.4, Unit.PER_SECOND, "173 /s"),
    ],
)
def test_a_quantity_has_its_unit_on_the_same_line(value: float, unit: Unit, text: str) -> None:
    assert quantity(value, unit) == text.replace(" ", "\N{NO-BREAK SPACE}")


@pytest.mark.parametrize(
    ("mean", "half", "unit", "text"),
    [
        (8.883, 0.6349, Unit.SECONDS, "8.88 ± 0.63 s"),
        (21.32, 1.18, Unit.SECONDS, "21.3 ± 1.2 s"),
        (173.44, 0.187, Unit.PER_SECOND, "173.4 ± 0.2 /s"),
        (0.46, 0.0000123, Unit.SHARE, "46 %"),
        (0.25, 0.011, Unit.SECONDS, "250 ± 11 ms"),
        (1.0, 0.0, Unit.INDEX, "1"),
    ],
)
def test_a_mean_has_the_digits_that_its_interval_allows(
    mean: float, half: float, unit: Unit, text: str
) -> None:
    assert margin(mean, mean + half, unit) == text.replace(" ", "\N{NO-BREAK SPACE}")


def test_a_set_is_called_by_the_parameters_in_which_it_differs() -> None:
    sets = [
        ParameterSet("crowd", "adaptive", "clients=5, flow.w=1"),
        ParameterSet("crowd", "adaptive", "clients=5, flow.w=2"),
        ParameterSet("loss", "adaptive", "clients=9"),
    ]
    names = Names(sets)
    assert [names.name(one) for one in sets] == [
        "adaptive (flow.w=1)",
        "adaptive (flow.w=2)",
        "adaptive",
    ]
