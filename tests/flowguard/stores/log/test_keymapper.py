from hypothesis import given
from hypothesis import strategies as st

from flowguard.routing.filters import matches
from flowguard.stores.log.keymapper import (
    DOLLAR,
    INDEX_BITS,
    LEVEL_BITS,
    LEVELS,
    constraint_of,
    matcher_of,
    next_index,
    topic_index,
)
from tests.flowguard.stores.log.texts import TOPICS, filters

BYTE = st.integers(0, 255)


@given(BYTE, BYTE, BYTE)
def test_the_next_index_is_the_smallest_that_satisfies_the_constraint(
    index: int, mask: int, bits: int
) -> None:
    query = bits & mask
    wanted = [each for each in range(index, 256) if each & mask == query]
    assert next_index(index, mask, query, 255) == (wanted[0] if wanted else -1)


@given(TOPICS, filters())
def test_a_topic_that_matches_satisfies_the_constraint_of_the_filter(
    topic: str, filter: str
) -> None:
    mask, query = constraint_of(filter)
    if matches(filter, topic):
        assert topic_index(topic) & mask == query


@given(TOPICS, filters(), filters())
def test_text_is_compared_as_the_standard_says(topic: str, one: str, other: str) -> None:
    assert matcher_of([one])(topic) == matches(one, topic)
    assert matcher_of([one, other])(topic) == (matches(one, topic) or matches(other, topic))


def test_a_wildcard_frees_the_bits_of_its_level() -> None:
    """The published example: `foo/+/bar` has the mask 110011, two bits a level."""
    mask, query = constraint_of("foo/+/bar")
    ones = (1 << LEVEL_BITS) - 1
    levels = [mask >> (LEVELS - 1 - n) * LEVEL_BITS & ones for n in range(LEVELS)]
    assert levels == [ones, 0, ones, *[ones] * (LEVELS - 3)]
    assert query == topic_index("foo/x/bar") & mask == topic_index("foo/y/bar") & mask


def test_missing_levels_are_no_level_that_a_topic_can_have() -> None:
    """The published rule: levels that are not there are replaced by `/`."""
    mask, query = constraint_of("foo/+")
    assert topic_index("foo/bar") & mask == query
    assert topic_index("foo/bar/") & mask != query


def test_levels_beyond_the_last_are_joined() -> None:
    deep = "1/2/3/4/5/6/7/8/9"
    mask, query = constraint_of(deep)
    assert mask == (1 << INDEX_BITS) - 1
    assert topic_index(deep) == query
    assert topic_index("1/2/3/4/5/6/7/8/10") != query
    mask, query = constraint_of("1/2/3/4/5/6/7/8/+")
    assert mask & ((1 << LEVEL_BITS) - 1) == 0
    assert topic_index(deep) & mask == query


def test_topics_with_a_dollar_are_apart() -> None:
    mask, query = constraint_of("#")
    assert mask == DOLLAR
    assert query == 0
    assert topic_index("$s/x") & DOLLAR
    assert not topic_index("s/x") & DOLLAR
    assert constraint_of("$s/#")[1] & DOLLAR
