"""One filter beside another, against all topics of a small world."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from flowguard.access.filters import holds, is_filter, matches, meet
from flowguard.routing import valid_filter
from flowguard.routing.filters import matches as matches_naively

LEVELS = ("a", "b", "", "$S")
TOPICS = ["/".join(levels) for count in (1, 2, 3, 4) for levels in product(LEVELS, repeat=count)]
FILTERS = (
    st.lists(st.sampled_from(("a", "b", "", "$S", "+", "#", "a+")), min_size=1, max_size=3)
    .map("/".join)
    .filter(valid_filter)
)


def topics_of(filter: str) -> set[str]:
    return {topic for topic in TOPICS if topic and matches(filter.split("/"), topic.split("/"))}


@given(FILTERS, st.sampled_from(TOPICS))
def test_a_topic_matches_as_the_standard_says(filter: str, topic: str) -> None:
    assert matches(filter.split("/"), topic.split("/")) == matches_naively(filter, topic)


@given(FILTERS, FILTERS)
def test_a_filter_that_holds_another_matches_all_of_its_topics(one: str, other: str) -> None:
    if holds(one.split("/"), other.split("/")):
        assert topics_of(other) <= topics_of(one)
    elif "#" not in one + other:
        assert not topics_of(other) <= topics_of(one)


@given(FILTERS, FILTERS)
def test_filters_meet_where_some_topic_matches_both(one: str, other: str) -> None:
    meets = meet(one.split("/"), other.split("/"))
    assert meets == meet(other.split("/"), one.split("/"))
    assert meets == bool(topics_of(one) & topics_of(other))


@given(st.lists(st.sampled_from(("a", "", "+", "#", "a#", "+a", "\0")), min_size=1, max_size=4))
def test_filters_are_valid_as_a_subscribe_would_have_them(levels: list[str]) -> None:
    assert is_filter(levels) == valid_filter("/".join(levels))
