"""Laws of the histogram: nothing is lost, buckets are inclusive, readings can be subtracted."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.flow.load.histogram import DURATION_BOUNDS_S, Histogram

values = st.floats(0, 100) | st.sampled_from((0.001, 0.002))
batches = st.lists(st.tuples(values, st.integers(0, 1_000)))


def filled(observed: list[tuple[float, int]]) -> Histogram:
    histogram = Histogram()
    for value, count in observed:
        histogram.observe(value, count)
    return histogram


@given(batches)
def test_each_bucket_holds_all_values_at_or_below_its_bound(
    observed: list[tuple[float, int]],
) -> None:
    counts = filled(observed).cumulative()
    for bound, counted in zip((*DURATION_BOUNDS_S, math.inf), counts, strict=True):
        assert counted == sum(count for value, count in observed if value <= bound)


@given(batches)
def test_the_total_is_the_sum_of_all_values(observed: list[tuple[float, int]]) -> None:
    expected = math.fsum(value * count for value, count in observed)
    assert filled(observed).total == pytest.approx(expected)


@given(batches, batches)
def test_the_difference_of_two_readings_is_what_happened_in_between(
    before: list[tuple[float, int]], between: list[tuple[float, int]]
) -> None:
    first, last = filled(before).cumulative(), filled(before + between).cumulative()
    passed = [new - old for new, old in zip(last, first, strict=True)]
    assert passed == filled(between).cumulative()


def test_a_value_at_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.0)
    histogram.observe(2.5, 3)
    assert histogram.cumulative() == [1, 1, 4]


@pytest.mark.parametrize("bounds", [(), (2.0, 1.0), (1.0, 1.0)])
def test_bounds_that_do_not_rise_are_a_bug(bounds: tuple[float, ...]) -> None:
    with pytest.raises(AssertionError):
        Histogram(bounds)


@given(batches.filter(lambda batch: any(count for _, count in batch)), st.floats(0, 1))
def test_a_percentile_is_the_bound_of_the_bucket_that_holds_it(
    observed: list[tuple[float, int]], share: float
) -> None:
    values = sorted(value for value, count in observed for _ in range(count))
    value = values[max(1, math.ceil(share * len(values))) - 1]
    bounds = (*DURATION_BOUNDS_S, math.inf)
    assert filled(observed).percentile(share) == next(b for b in bounds if value <= b)


def test_there_is_no_percentile_of_nothing() -> None:
    assert Histogram().percentile(0.5) is None


@given(batches, batches)
def test_what_has_grown_is_told_once_and_a_sum_has_the_values_of_both(
    before: list[tuple[float, int]], between: list[tuple[float, int]]
) -> None:
    histogram = filled(before)
    told = histogram.counts.copy()
    histogram.add(filled(between))
    assert histogram.counts == filled(before + between).counts
    expected = zip((*DURATION_BOUNDS_S, math.inf), filled(between).counts, strict=True)
    assert histogram.grown(told) == [(bound, count) for bound, count in expected if count]
    assert histogram.grown(told) == []
