"""Topics are learned by the log, and found again."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.routing.filters import matches
from flowguard.stores.log import structure
from flowguard.stores.log.structure import LEVELS, Structure, term_of
from tests.flowguard.stores.log.texts import TOPICS, filters

MANY = st.lists(TOPICS, min_size=1, max_size=30)


def learned(*topics: str) -> Structure:
    found = Structure()
    for topic in topics:
        found.path_of(topic)
    return found


def loaded(before: Structure) -> Structure:
    after = Structure()
    after.load(sorted(before.fresh))
    return after


def finds(known: Structure, wanted: str, topic: str) -> bool:
    """Whether a search for the filter meets messages of the topic."""
    stream, terms = known.path_of(topic)
    sets = known.streams_of([wanted]).get(stream, [])
    return any(set(each) <= set(terms) for each in sets)


def streams(known: Structure, wanted: Sequence[str]) -> set[bytes]:
    return set(known.streams_of(wanted))


def test_the_published_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source: the EIP, "learned topic patterns": a hundred clients, and what is learned of them."""
    monkeypatch.setattr(structure, "CHILDREN_MAX", 0)
    known = Structure()
    for client in range(100):
        for reading in ("temperature", "pressure"):
            known.path_of(f"devices/{client}/{reading}")
    known.path_of("other_topic/heartbeat")
    monkeypatch.setattr(structure, "CHILDREN_MAX", 10)
    one, terms = known.path_of("devices/7/temperature")
    assert known.path_of("devices/8/temperature")[0] == one
    assert term_of(2, "7") in terms
    (sets,) = known.streams_of(["devices/+/+"]).values()
    assert sets == [()]


@given(MANY)
def test_a_path_never_changes_and_the_same_topics_make_the_same(topics: list[str]) -> None:
    known, other, paths = Structure(), learned(*topics), dict[str, object]()
    for topic in topics:
        paths.setdefault(topic, known.path_of(topic))
    known._paths.clear()
    assert {topic: known.path_of(topic) for topic in paths} == paths
    assert {topic: other.path_of(topic) for topic in paths} == paths
    again = loaded(known)
    assert {topic: again.path_of(topic) for topic in paths} == paths
    assert again.fresh == []


@given(MANY, filters())
def test_a_search_meets_all_that_matches(topics: list[str], wanted: str) -> None:
    known = learned(*topics)
    for each in (known, loaded(known)):
        for topic in topics:
            if matches(wanted, topic):
                assert finds(each, wanted, topic)


@given(MANY)
def test_no_two_structures_are_one_stream(topics: list[str]) -> None:
    known = learned(*topics)
    for one in topics:
        for other in topics:
            if known.path_of(one) == known.path_of(other):
                assert one == other
            if known.path_of(one)[0] == known.path_of(other)[0]:
                assert one.count("/") == other.count("/") or one.count("/") >= LEVELS - 1
                assert one.startswith("$") == other.startswith("$")


def test_what_varies_is_inherited_and_nothing_else() -> None:
    old = learned("a/1/x", "a/2/x", "a/3/y", "b/c")
    new = Structure()
    new.inherit(old)
    fresh = [row for row in new.fresh]
    assert new.path_of("a/9/x")[0] == old.path_of("a/9/x")[0]
    assert new.fresh == fresh, "nothing had to be learned"
    assert not streams(new, ["b/c"])
    new.path_of("b/c")
    assert streams(new, ["b/#"]) == streams(old, ["b/#"])


def test_with_too_many_streams_nothing_more_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "STREAMS_MAX", 3)
    monkeypatch.setattr(structure, "ROOT_CHILDREN_MAX", 100)
    known = learned("a", "b", "c", "d", "e")
    assert len(streams(known, ["#"])) == 4
    assert known.path_of("d")[0] == known.path_of("e")[0] != known.path_of("c")[0]


def test_levels_beyond_the_last_are_joined() -> None:
    deep = "/".join("abcdefghijklmnopqrstuvwxyz")
    known = learned(deep, "/".join(deep.split("/")[:LEVELS]))
    for wanted in (deep, f"{deep[:-1]}+", "a/#", "/".join("+" * 26), f"{deep[: 2 * LEVELS]}#"):
        assert finds(known, wanted, deep), wanted
    many = Structure()
    many.path_of("/" * 60_000)
    assert streams(many, ["#"])


def test_topics_with_a_dollar_are_apart() -> None:
    known = learned("$s/x", "s/x")
    assert not streams(known, ["#"]) & streams(known, ["$s/#"])
    assert not streams(known, ["+/x"]) & streams(known, ["$s/x"])
