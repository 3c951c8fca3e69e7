import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_analysis.intervals import STUDENT, interval, student


def test_a_mean_has_the_interval_of_student() -> None:
    # Mean 4, standard deviation 2; t for two degrees of freedom is 4.303.
    found = interval([2.0, 6.0, 4.0])
    assert found is not None
    assert (found.mean, found.count) == (4.0, 3)
    assert found.high - found.mean == pytest.approx(4.303 * 2 / math.sqrt(3))
    assert found.low == pytest.approx(4 - 4.303 * 2 / math.sqrt(3))
    assert found.standard_error == pytest.approx(2 / math.sqrt(3))


def test_nobody_knows_how_sure_a_single_value_is() -> None:
    found = interval([3.0])
    assert found is not None
    assert (found.low, found.mean, found.high) == (-math.inf, 3.0, math.inf)
    assert interval([]) is None


def test_beyond_the_table_student_goes_on_without_a_jump_towards_normal() -> None:
    assert student(30) == STUDENT[-1]
    assert student(31) == pytest.approx(2.040, abs=0.003)
    assert student(1000) == pytest.approx(1.962, abs=0.001)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2), st.randoms(use_true_random=False))
def test_the_order_of_values_does_not_show(values: list[float], chance: object) -> None:
    mixed = list(values)
    chance.shuffle(mixed)  # type: ignore[attr-defined]
    assert interval(mixed) == interval(values)
