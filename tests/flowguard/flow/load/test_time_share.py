"""One kind of work has as much of the loop as all other work, and neither keeps the other out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.flow.load.time_share import MOST_S, TimeShare

LEAST_S = 0.0005


def test_a_turn_is_as_long_as_other_work_took_since_the_last_one() -> None:
    share = TimeShare(LEAST_S)
    share.begin(10.0)
    share.end(0.004)
    assert share.begin(10.0 + 0.004 + 0.007) == pytest.approx(0.007)


def test_a_turn_has_its_bounds() -> None:
    share = TimeShare(LEAST_S)
    assert share.begin(10.0) == MOST_S
    share.end(0.01)
    assert share.begin(10.01) == LEAST_S


def test_what_a_turn_overdraws_the_next_ones_go_without() -> None:
    share = TimeShare(LEAST_S)
    share.begin(10.0)
    share.end(MOST_S + 0.005)
    assert share.begin(10.0 + MOST_S + 0.005 + 0.007) == pytest.approx(0.002)


@given(
    st.lists(
        st.tuples(st.floats(0.001, 0.02), st.floats(0.000_1, 0.008)), min_size=50, max_size=200
    )
)
def test_both_get_about_half_of_a_loop_that_has_enough_of_both(
    slices: list[tuple[float, float]],
) -> None:
    """Other work in slices of 1 to 20 ms, pieces of this kind of up to 8 ms."""
    share, now_s, others_s, own_s = TimeShare(LEAST_S), 100.0, 0.0, 0.0
    share.begin(now_s)
    share.end(0.0)
    for slice_s, piece_s in slices:
        now_s += slice_s
        others_s += slice_s
        due_s, took_s = share.begin(now_s), 0.0
        while took_s < due_s:
            took_s += piece_s
        share.end(took_s)
        now_s += took_s
        own_s += took_s
    least_s = LEAST_S * len(slices)
    assert others_s - 0.001 <= own_s
    assert own_s <= others_s + least_s + 0.008 * len(slices)
