import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.routing.filters import (
    has_wildcard,
    levels_count,
    matches,
    parse_shared,
    valid_filter,
)

from .strategies import WORDS, filters, topics


@pytest.mark.spec("MQTT-4.7.1-1", "v3:MQTT-4.7.1-2")
@pytest.mark.parametrize(
    ("filter", "valid"),
    [
        ("#", True),
        ("sport/#", True),
        ("sport/tennis/#", True),
        ("/#", True),
        ("sport/tennis#", False),
        ("sport/tennis/#/ranking", False),
        ("#/", False),
        ("#/sport", False),
        ("##", False),
        ("sport/##", False),
        ("sport/#a", False),
        ("+#", False),
        ("#+", False),
    ],
)
def test_multi_level_wildcard_stands_alone_and_last(filter: str, valid: bool) -> None:
    assert valid_filter(filter) is valid


@pytest.mark.spec("MQTT-4.7.1-2", "v3:MQTT-4.7.1-3")
@pytest.mark.parametrize(
    ("filter", "valid"),
    [
        ("+", True),
        ("+/", True),
        ("/+", True),
        ("+/tennis/#", True),
        ("sport/+/player1", True),
        ("+/+/+", True),
        ("$SYS/+", True),
        ("sport+", False),
        ("+sport", False),
        ("sport/+player/1", False),
        ("++", False),
        ("a/++/b", False),
    ],
)
def test_single_level_wildcard_fills_its_level(filter: str, valid: bool) -> None:
    assert valid_filter(filter) is valid


@pytest.mark.spec("MQTT-4.7.3-1", "v3:MQTT-4.7.3-1")
def test_filter_has_at_least_one_character() -> None:
    assert not valid_filter("")
    assert valid_filter("/")
    assert valid_filter(" ")


@pytest.mark.spec("MQTT-4.7.3-2", "v3:MQTT-4.7.3-2")
@pytest.mark.parametrize("filter", ["\0", "a\0", "a/\0/b", "+/\0", "#\0"])
def test_filter_has_no_nul(filter: str) -> None:
    assert not valid_filter(filter)


@pytest.mark.spec("MQTT-4.7.3-3", "v3:MQTT-4.7.3-3")
@pytest.mark.parametrize(
    ("filter", "valid"),
    [
        ("a" * 65_535, True),
        ("a" * 65_536, False),
        ("é" * 32_767, True),
        ("é" * 32_767 + "a", True),
        ("é" * 32_768, False),
        ("+/" * 32_767 + "+", True),
        ("+/" * 32_767 + "++", False),
        ("+/" * 32_768, False),
    ],
)
def test_filter_takes_at_most_65535_bytes(filter: str, valid: bool) -> None:
    assert valid_filter(filter) is valid


@pytest.mark.parametrize(
    ("filter", "levels", "wildcard"),
    [("a", 1, False), ("/", 2, False), ("a/+/b", 3, True), ("a//#", 3, True), ("/a/b/", 4, False)],
)
def test_levels_and_wildcards(filter: str, levels: int, wildcard: bool) -> None:
    assert levels_count(filter) == levels
    assert has_wildcard(filter) is wildcard


@pytest.mark.parametrize("filter", ["a", "$SYS/a", "$share", "$shared/g/a", "/$share/g/a", "#"])
def test_other_filters_are_not_shared(filter: str) -> None:
    assert parse_shared(filter) is None


@pytest.mark.spec("MQTT-4.8.2-1", "MQTT-4.8.2-2")
@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("$share/g/a", ("g", "a")),
        ("$share/g/#", ("g", "#")),
        ("$share/g//a", ("g", "/a")),
        ("$share/g//", ("g", "/")),
        ("$share/g/a/+/b", ("g", "a/+/b")),
        ("$share/$share/$share/g/a", ("$share", "$share/g/a")),
        ("$share/g/$SYS/#", ("g", "$SYS/#")),
    ],
)
def test_shared_filter_has_a_name_and_a_filter(filter: str, expected: tuple[str, str]) -> None:
    assert parse_shared(filter) == expected


@pytest.mark.spec("MQTT-4.8.2-1")
@pytest.mark.parametrize("filter", ["$share/", "$share//", "$share//a", "$share///"])
def test_share_name_has_at_least_one_character(filter: str) -> None:
    with pytest.raises(ValueError, match="share name"):
        parse_shared(filter)


@pytest.mark.spec("MQTT-4.8.2-2")
@pytest.mark.parametrize(
    "filter", ["$share/+/a", "$share/#", "$share/#/a", "$share/g+/a", "$share/g", "$share/g/"]
)
def test_share_name_has_no_wildcard_and_is_followed_by_a_filter(filter: str) -> None:
    with pytest.raises(ValueError, match="share name"):
        parse_shared(filter)


@pytest.mark.spec("MQTT-4.7.1-1", "MQTT-4.7.1-2")
@pytest.mark.parametrize(
    "filter",
    ["$share/g/a#", "$share/g/#/a", "$share/g/a+", "$share/g/\0", "$share/g/" + "a" * 65_535],
)
def test_filter_behind_the_share_name_is_valid(filter: str) -> None:
    with pytest.raises(ValueError, match="not valid"):
        parse_shared(filter)


MATCHES = [
    # The examples of section 4.7.1.
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/tennis/player1/#", "sport/tennis/player10", False),
    ("sport/#", "sport", True),
    ("sport/#", "sport/", True),
    ("#", "sport", True),
    ("#", "/", True),
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+", "/finance", False),
    ("+/tennis/#", "sport/tennis", True),
    ("+/tennis/#", "tennis", False),
    ("+/#", "sport", True),
    ("a/b", "a", False),
    ("a", "a/b", False),
]


@pytest.mark.parametrize(("filter", "topic", "expected"), MATCHES)
def test_matches(filter: str, topic: str, expected: bool) -> None:
    assert matches(filter, topic) is expected


@pytest.mark.spec("MQTT-4.7.2-1", "v3:MQTT-4.7.2-1")
@pytest.mark.parametrize(
    ("filter", "topic", "expected"),
    [
        ("#", "$SYS/uptime", False),
        ("+/uptime", "$SYS/uptime", False),
        ("+", "$SYS", False),
        ("+/#", "$SYS", False),
        ("$SYS/#", "$SYS/uptime", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/+", "$SYS/uptime", True),
        ("a/+", "a/$SYS", True),
        ("a/#", "a/$SYS/b", True),
        ("+/$SYS", "a/$SYS", True),
        ("#", "a$", True),
    ],
)
def test_leading_wildcard_does_not_match_dollar(filter: str, topic: str, expected: bool) -> None:
    assert matches(filter, topic) is expected


@pytest.mark.spec("MQTT-4.7.3-4", "v3:MQTT-4.7.3-4")
@pytest.mark.parametrize(
    ("filter", "topic"),
    [
        ("ACCOUNTS", "Accounts"),
        ("\u00e9", "e\u0301"),  # composed and decomposed
        ("a", "a "),
        ("a/b", "/a/b"),
        ("a/b", "a//b"),
        ("a", "\ufeffa"),
        ("a/../b", "b"),
        ("a.b", "a/b"),
        ("a*", "ab"),
    ],
)
def test_nothing_is_normalized(filter: str, topic: str) -> None:
    assert not matches(filter, topic)
    assert matches(filter, filter)
    assert matches(topic, topic)


def pattern(filter: str) -> re.Pattern[str]:
    """Return the same rule as a regular expression."""
    if filter == "#":
        return re.compile(r"[^$].*", re.DOTALL)
    tail = ""
    if filter.endswith("/#"):
        filter = filter[:-2]
        tail = "(/.*)?"
    levels = ["[^/]*" if level == "+" else re.escape(level) for level in filter.split("/")]
    head = r"(?!\$)" if filter.startswith("+") else ""
    return re.compile(head + "/".join(levels) + tail, re.DOTALL)


@given(filters, topics)
def test_matches_agrees_with_a_regular_expression(filter: str, topic: str) -> None:
    assert matches(filter, topic) == bool(pattern(filter).fullmatch(topic))


@given(st.text(st.sampled_from("+#/a"), max_size=6))
def test_valid_filter_agrees_with_a_regular_expression(filter: str) -> None:
    valid = re.fullmatch(r"((\+|[^+#/]*)/)*(\+|#|[^+#/]*)", filter) is not None
    assert valid_filter(filter) is (valid and filter != "")


@given(st.lists(st.sampled_from(WORDS), min_size=1).map("/".join).filter(bool))
def test_a_topic_is_a_filter_that_matches_itself(topic: str) -> None:
    assert valid_filter(topic)
    assert matches(topic, topic)
