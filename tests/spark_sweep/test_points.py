"""The sets of limits that are tried."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from spark_sweep.grid import Dimension, Hypercube
from spark_sweep.points import full_grid, latin_hypercube, points

SHARES = st.floats(0, 1, exclude_max=True)


def drawn(low: float, high: float, *, log: bool = False) -> Dimension:
    return Dimension.model_validate({"from": low, "to": high, "log": log})


@given(count=st.integers(1, 60), dimensions=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_a_hypercube_has_one_point_in_every_part_of_every_dimension(
    count: int, dimensions: int, seed: int
) -> None:
    drawn_points = latin_hypercube(count, dimensions, Random(seed))
    assert len(drawn_points) == count
    for values in zip(*drawn_points, strict=True):
        assert len(values) == count
        assert sorted(int(value * count) for value in values) == list(range(count))


@given(count=st.integers(2, 30), levels=st.integers(1, 30), seed=st.integers(0, 2**32))
def test_the_values_of_a_list_are_drawn_equally_often(count: int, levels: int, seed: int) -> None:
    dimension = Dimension(values=tuple(range(levels)))
    found = [dimension.at(u, whole=True) for (u,) in latin_hypercube(count, 1, Random(seed))]
    counts = [found.count(level) for level in range(levels)]
    # A part of the draw may lie across two levels, at both ends of one.
    assert all(abs(drawn - count / levels) < 2 for drawn in counts)
    if count % levels == 0:
        assert set(counts) == {count // levels}


@given(low=st.floats(1e-3, 10), factor=st.floats(1.1, 1e3), log=st.booleans(), shares=st.data())
def test_a_range_is_never_left_and_a_larger_share_is_no_smaller_value(
    low: float, factor: float, log: bool, shares: st.DataObject
) -> None:
    dimension = drawn(low, low * factor, log=log)
    less, more = sorted((shares.draw(SHARES), shares.draw(SHARES)))
    first, second = dimension.at(less, whole=False), dimension.at(more, whole=False)
    assert low <= first <= second <= low * factor  # type: ignore[operator]


def test_half_of_a_logarithmic_range_is_the_geometric_mean() -> None:
    assert drawn(0.01, 1.0, log=True).at(0.5, whole=False) == 0.1
    assert drawn(1, 3).at(0.5, whole=False) == 2.0
    assert drawn(10, 1_000, log=True).at(0.5, whole=True) == 100


def test_a_grid_is_every_combination() -> None:
    assert list(full_grid({"a": [1, 2], "b": [3, 4]})) == [
        {"a": 1, "b": 3},
        {"a": 1, "b": 4},
        {"a": 2, "b": 3},
        {"a": 2, "b": 4},
    ]


def test_the_defaults_come_first_and_the_same_seed_draws_the_same() -> None:
    dimensions = {"flow.window_max": drawn(10, 200), "flow.refusal_share": drawn(0.1, 0.9)}
    first, *others = points(dimensions, Hypercube(points=8, seed=5))
    assert not first
    assert len(others) == 8
    assert all(isinstance(point["flow.window_max"], int) for point in others)
    assert [first, *others] == list(points(dimensions, Hypercube(points=8, seed=5)))
    assert [first, *others] != list(points(dimensions, Hypercube(points=8, seed=6)))
    assert list(points({}, None)) == [{}]
