"""Invariants of TopicIndex, checked after every step of the state machine:

- `match(topic)` is the naive scan with `filters.matches`, once per matching filter;
- subscribers of one filter appear in the order in which they subscribed, replacing keeps the place;
- `len` counts the pairs; `version` moves exactly with the changes;
- an index without subscriptions holds nothing.
"""

import gc
import tracemalloc
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowguard.routing.filters import matches, valid_filter
from flowguard.routing.index import TopicIndex

from .strategies import filters, topics
from .test_filters import MATCHES

Index = TopicIndex[str, int]


def is_bare(index: Index) -> bool:
    return not index._exact and index._root.is_empty() and index._dollar.is_empty()


@pytest.mark.parametrize(("filter", "topic", "expected"), MATCHES)
def test_the_examples_of_the_standard(filter: str, topic: str, expected: bool) -> None:
    index = Index()
    index.subscribe(filter, "s", 1)
    assert index.match(topic) == ([("s", 1)] if expected else [])


@pytest.mark.spec("MQTT-4.7.2-1", "v3:MQTT-4.7.2-1")
def test_leading_wildcards_do_not_see_dollar_topics() -> None:
    index = Index()
    for filter in ["#", "+/#", "+/uptime", "+", "$SYS/#", "$SYS/+", "a/+"]:
        index.subscribe(filter, filter, 0)
    assert [s for s, _ in index.match("$SYS/uptime")] == ["$SYS/#", "$SYS/+"]
    assert [s for s, _ in index.match("$SYS")] == ["$SYS/#"]
    assert index.match("$other") == []
    assert "a/+" in [s for s, _ in index.match("a/$SYS")]


@pytest.mark.spec("MQTT-4.7.3-4", "v3:MQTT-4.7.3-4")
def test_nothing_is_normalized() -> None:
    index = Index()
    for filter in ["a/b", "A/b", "\u00e9/+", "e\u0301/+", "a/b/", "/a/b", "\ufeffa/b"]:
        index.subscribe(filter, filter, 0)
    assert index.match("a/b") == [("a/b", 0)]
    assert index.match("\u00e9/x") == [("\u00e9/+", 0)]
    assert index.match("e\u0301/x") == [("e\u0301/+", 0)]


@pytest.mark.spec("MQTT-3.8.4-3")
@pytest.mark.parametrize("filter", ["a", "a/+", "a/#", "#", "+", "$a/+"])
def test_the_same_filter_again_replaces_the_subscription(filter: str) -> None:
    index = Index()
    topic = filter.replace("+", "x").replace("#", "x")
    assert index.subscribe(filter, "one", 1)
    assert index.subscribe(filter, "two", 1)
    assert not index.subscribe(filter, "one", 2)
    assert index.match(topic) == [("one", 2), ("two", 1)]
    assert len(index) == 2


@pytest.mark.spec("MQTT-3.10.4-1", "v3:MQTT-3.10.4-1")
def test_unsubscribing_compares_the_filter_character_by_character() -> None:
    index = Index()
    for filter in ["a/b", "a/+", "a/#"]:
        index.subscribe(filter, "s", 1)
    for other in ["a", "a/B", "a/b/", "+/b", "+/+", "#", "a/b/#", "a/+/#", "a/c", "b/+", "+/#"]:
        assert not index.unsubscribe(other, "s")
    assert not index.unsubscribe("a/+", "other")
    assert len(index.match("a/b")) == 3
    for filter in ["a/b", "a/+", "a/#"]:
        assert index.unsubscribe(filter, "s")
        assert not index.unsubscribe(filter, "s")
    assert index.match("a/b") == []
    assert is_bare(index)


def test_overlapping_filters_give_one_row_each() -> None:
    index = Index()
    for value, filter in enumerate(["a/b", "a/#", "a/+", "#", "+/b", "+/+", "a/b/#"]):
        index.subscribe(filter, "s", value)
    assert sorted(index.match("a/b")) == [("s", value) for value in range(7)]


def test_version_moves_with_every_change_and_with_nothing_else() -> None:
    index = Index()
    seen = [index.version]
    index.subscribe("a", "s", 1)
    seen.append(index.version)
    index.subscribe("a", "s", 2)
    seen.append(index.version)
    index.match("a")
    index.unsubscribe("b", "s")
    index.unsubscribe("a/+", "s")
    assert index.version == seen[-1]
    index.unsubscribe("a", "s")
    seen.append(index.version)
    assert seen == sorted(set(seen))


def test_an_invalid_filter_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        Index().subscribe("a/#/b", "s", 1)


class IndexAgainstNaiveScan(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = Index()
        self.model: dict[str, dict[str, int]] = {}
        self.version = self.index.version

    @rule(filter=filters, subscriber=st.sampled_from("xyz"), value=st.integers(0, 2))
    def subscribe(self, filter: str, subscriber: str, value: int) -> None:
        values = self.model.setdefault(filter, {})
        assert self.index.subscribe(filter, subscriber, value) == (subscriber not in values)
        values[subscriber] = value
        assert self.index.version > self.version
        self.version = self.index.version

    @rule(filter=filters, subscriber=st.sampled_from("xyz"))
    def unsubscribe(self, filter: str, subscriber: str) -> None:
        self.leave(filter, subscriber)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def unsubscribe_one_that_is_there(self, data: st.DataObject) -> None:
        filter = data.draw(st.sampled_from(sorted(self.model)))
        self.leave(filter, data.draw(st.sampled_from(sorted(self.model[filter]))))

    def leave(self, filter: str, subscriber: str) -> None:
        values = self.model.get(filter, {})
        is_there = values.pop(subscriber, None) is not None
        if filter in self.model and not values:
            del self.model[filter]
        assert self.index.unsubscribe(filter, subscriber) == is_there
        assert (self.index.version > self.version) == is_there
        self.version = self.index.version

    @rule(topic=topics)
    def match(self, topic: str) -> None:
        found = self.index.match(topic)
        expected = [
            list(values.items()) for filter, values in self.model.items() if matches(filter, topic)
        ]
        assert Counter(found) == Counter(row for rows in expected for row in rows)
        for rows in expected:  # each filter's rows are somewhere, together and in order
            spans = range(len(found) - len(rows) + 1)
            assert any(found[start : start + len(rows)] == rows for start in spans)
        assert self.index.match(topic) == found
        by_filter = {
            filter: list(values) for filter, values in self.model.items() if matches(filter, topic)
        }
        assert dict(self.index.subscribers(topic)) == by_filter

    @invariant()
    def counts(self) -> None:
        assert len(self.index) == sum(len(values) for values in self.model.values())
        assert is_bare(self.index) == (not self.model)


TestIndexAgainstNaiveScan = IndexAgainstNaiveScan.TestCase


@given(st.lists(filters, unique=True, max_size=30), st.randoms(use_true_random=False))
def test_no_node_is_left_behind(some: list[str], random: Random) -> None:
    index = Index()
    for filter in some:
        index.subscribe(filter, "s", 0)
    random.shuffle(some)
    for filter in some:
        assert index.unsubscribe(filter, "s")
    assert is_bare(index)
    assert len(index) == 0


def random_filter(random: Random) -> str:
    levels = [
        "+" if random.random() < 0.2 else str(random.randrange(8))
        for _ in range(random.randint(1, 7))
    ]
    if random.random() < 0.05:
        levels[0] = "$s"
    if random.random() < 0.2:
        levels[-1] = "#"
    return "/".join(levels)


@pytest.mark.slow
def test_100_000_random_filters_against_the_naive_scan() -> None:
    random = Random(4)
    index: TopicIndex[int, str] = TopicIndex()
    subscribed = [random_filter(random) for _ in range(100_000)]
    assert all(map(valid_filter, subscribed))
    for subscriber, filter in enumerate(subscribed):
        index.subscribe(filter, subscriber, filter)
    gone = set(random.sample(range(len(subscribed)), 20_000))
    for subscriber in gone:
        assert index.unsubscribe(subscribed[subscriber], subscriber)
    standing = [pair for pair in enumerate(subscribed) if pair[0] not in gone]
    assert len(index) == len(standing)

    sampled = [
        "/".join(str(random.randrange(8)) for _ in range(random.randint(1, 7))) for _ in range(12)
    ]
    sampled += ["$s/1", "$s/1/2", "$s", "1/$s"]
    results = 0
    for topic in sampled:
        expected = [pair for pair in standing if matches(pair[1], topic)]
        assert sorted(index.match(topic)) == expected
        results += len(expected)
    assert results > 1_000  # the sample says something

    for subscriber, filter in standing:
        assert index.unsubscribe(filter, subscriber)
    assert not index._exact
    assert index._root.is_empty()
    assert index._dollar.is_empty()


@pytest.mark.parametrize("last", ["+", "#", "a"])
def test_the_deepest_filter_costs_no_recursion(last: str) -> None:
    index = Index()
    deepest = "+/" * 32_767 + last
    assert valid_filter(deepest)
    index.subscribe(deepest, "s", 1)
    assert index.match("/" * 32_767 + "a") == [("s", 1)]
    assert index.match("/" * 32_766) == ([("s", 1)] if last == "#" else [])
    assert index.match("/" * 65_534) == ([("s", 1)] if last == "#" else [])
    assert index.unsubscribe(deepest, "s")
    assert is_bare(index)
    index.subscribe(deepest, "s", 1)
    del index  # freeing the chain must not recurse either
    gc.collect()


def test_every_mix_of_plus_and_word_is_walked_once() -> None:
    """All 2**10 filters over ten levels match; a walk without sharing would be no different, but
    one that came twice to a node would give rows twice."""
    index = Index()
    for bits in range(1024):
        filter = "/".join("+" if bits >> level & 1 else "a" for level in range(10))
        index.subscribe(filter, filter, 0)
    found = index.match("/".join("a" * 10))
    assert len(found) == len(set(found)) == 1024
    assert index.match("/".join("a" * 9)) == []


@pytest.mark.slow
@pytest.mark.parametrize("filter", ["fan/out", "fan/+", "fan/#"])
def test_one_filter_of_100_000_subscribers(filter: str) -> None:
    index: TopicIndex[int, int] = TopicIndex()
    for subscriber in range(100_000):
        assert index.subscribe(filter, subscriber, 0)
    found = index.match("fan/out")
    assert [subscriber for subscriber, _ in found] == list(range(100_000))
    for subscriber in range(99_999):
        assert index.unsubscribe(filter, subscriber)
    assert index.match("fan/out") == [(99_999, 0)]
    assert index.unsubscribe(filter, 99_999)
    assert len(index) == 0


def test_a_lone_exact_subscription_costs_less_than_250_bytes() -> None:
    count = 10_000
    strings = [f"devices/{number:06}/commands" for number in range(count)]
    subscribers = [object() for _ in range(count)]
    index: TopicIndex[object, None] = TopicIndex()
    gc.collect()
    tracemalloc.start()
    for filter, subscriber in zip(strings, subscribers, strict=True):
        index.subscribe(filter, subscriber, None)
    gc.collect()
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size_bytes / count < 250
