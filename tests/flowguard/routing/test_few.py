from hypothesis import given
from hypothesis import strategies as st

from flowguard.routing.few import (
    Few,
    few_extend,
    few_get,
    few_has,
    few_put,
    few_values,
    few_without,
)


def pairs_of(few: Few[int, str]) -> list[tuple[int, str]]:
    pairs: list[tuple[int, str]] = []
    if few is not None:
        few_extend(pairs, few)
    return pairs


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.text(max_size=2))))
def test_it_is_a_dict_in_every_way(steps: list[tuple[bool, int, str]]) -> None:
    few: Few[int, str] = None
    model: dict[int, str] = {}
    for is_put, key, value in steps:
        if is_put:
            few = few_put(few, key, value)
            model[key] = value
        elif key in model:
            few = few_without(few, key)
            del model[key]
        assert pairs_of(few) == list(model.items())
        assert few_values(few) == list(model.values())
        for probe in range(6):
            assert few_has(few, probe) == (probe in model)
            assert few_get(few, probe) == model.get(probe)


def test_it_takes_the_smallest_form() -> None:
    few = few_put(None, 1, "a")
    assert few == (1, "a")
    few = few_put(few, 2, "b")
    assert few == {1: "a", 2: "b"}
    few = few_without(few, 1)
    assert few == (2, "b")
    assert few_without(few, 2) is None


def test_a_dict_emptied_to_a_few_pairs_shrinks() -> None:
    few: Few[int, str] = None
    for key in range(10_000):
        few = few_put(few, key, "")
    assert few is not None
    largest = few.__sizeof__()
    for key in range(9_990):
        few = few_without(few, key)
        assert few is not None
    assert few_values(few) == [""] * 10
    assert few.__sizeof__() < largest / 100


def test_values_are_a_copy() -> None:
    few = few_put(few_put(None, 1, "a"), 2, "b")
    values = few_values(few)
    few_put(few, 3, "c")
    assert values == ["a", "b"]
