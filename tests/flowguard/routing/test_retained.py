"""Invariants of RetainedMessages, checked after every step of the state machine:

- what `match` gives is what a naive scan of the topics gives, without the expired;
- count and bytes never exceed their limits, and the books agree with the entries;
- a refusal changes nothing; replacing by what is not larger is never refused;
- an empty store holds no node, and the heap is never much larger than what expires.
"""

import gc
import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flowguard.records import NEVER_S
from flowguard.routing.filters import has_wildcard, matches
from flowguard.routing.retained import (
    WALK_SLICE,
    RetainedMessages,
    RetainOutcome,
    retained_size_bytes,
)
from flowguard.types import Properties, Publish

from .strategies import filters, topics
from .test_filters import MATCHES

PLENTY = 10**9


def store_of(*names: str) -> RetainedMessages:
    store = RetainedMessages(messages_max=PLENTY, bytes_max=PLENTY)
    for name in names:
        assert store.put(Publish(name, b"x", retain=True), NEVER_S) is RetainOutcome.KEPT
    return store


def topics_of(store: RetainedMessages, filter: str, now_s: float = 0.0) -> list[str]:
    return [entry.publish.topic for entry in store.match(filter, now_s)]


def is_bare(store: RetainedMessages) -> bool:
    return (
        not store._entries
        and store._root.is_empty()
        and store._dollar.is_empty()
        and store.size_bytes == 0
        and store._expiring == 0
    )


@pytest.mark.parametrize(("filter", "topic", "expected"), MATCHES)
def test_the_examples_of_the_standard(filter: str, topic: str, expected: bool) -> None:
    assert topics_of(store_of(topic), filter) == ([topic] if expected else [])


@pytest.mark.spec("MQTT-4.7.2-1", "v3:MQTT-4.7.2-1")
def test_leading_wildcards_do_not_see_dollar_topics() -> None:
    store = store_of("$SYS/uptime", "$SYS", "a/uptime", "a")
    assert topics_of(store, "#") == ["a", "a/uptime"]
    assert topics_of(store, "+/uptime") == ["a/uptime"]
    assert topics_of(store, "+/#") == ["a", "a/uptime"]
    assert topics_of(store, "+") == ["a"]
    assert topics_of(store, "$SYS/#") == ["$SYS", "$SYS/uptime"]
    assert topics_of(store, "$SYS/+") == ["$SYS/uptime"]


@pytest.mark.spec("MQTT-4.7.3-4", "v3:MQTT-4.7.3-4")
def test_nothing_is_normalized() -> None:
    store = store_of("\u00e9/a", "e\u0301/a", "A/a", "a/a", "a/a/", "/a/a")
    assert topics_of(store, "\u00e9/+") == ["\u00e9/a"]
    assert topics_of(store, "a/a") == ["a/a"]
    assert topics_of(store, "a/+") == ["a/a"]


@pytest.mark.spec("MQTT-3.3.1-5", "v3:MQTT-3.3.1-5", "v3:MQTT-3.3.1-7")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_replaces_the_one_before_and_keeps_its_qos(qos: int) -> None:
    store = store_of("a", "b")
    newer = Publish("a", b"newer", qos=qos, retain=True)
    assert store.put(newer, NEVER_S) is RetainOutcome.KEPT
    (entry,) = store.match("a", 0.0)
    assert entry.publish is newer
    assert entry.publish.qos == qos
    assert len(store) == 2


@pytest.mark.spec("MQTT-3.3.1-7", "v3:MQTT-3.3.1-11")
def test_an_empty_payload_removes_and_is_never_stored() -> None:
    store = store_of("a", "a/b")
    for _ in range(2):
        assert store.put(Publish("a", b"", retain=True), NEVER_S) is RetainOutcome.REMOVED
        assert topics_of(store, "#") == ["a/b"]
        assert topics_of(store, "a") == []
    assert store.put(Publish("c", b"", retain=True), 5.0) is RetainOutcome.REMOVED
    assert len(store) == 1


def test_discard() -> None:
    store = store_of("a/b")
    assert not store.discard("a")
    assert store.discard("a/b")
    assert not store.discard("a/b")
    assert is_bare(store)


def test_too_many_topics_are_refused_and_the_old_ones_stay() -> None:
    store = RetainedMessages(messages_max=2, bytes_max=PLENTY)
    for topic, outcome in [("a", "kept"), ("b", "kept"), ("c", "count_full"), ("a", "kept")]:
        assert store.put(Publish(topic, b"x"), NEVER_S) == outcome
    assert topics_of(store, "#") == ["a", "b"]
    store.put(Publish("a", b""), NEVER_S)
    assert store.put(Publish("c", b"x"), NEVER_S) is RetainOutcome.KEPT


def test_too_many_bytes_are_refused_and_the_old_message_stays() -> None:
    size_bytes = retained_size_bytes(Publish("a", b"12345"))
    store = RetainedMessages(messages_max=PLENTY, bytes_max=size_bytes)
    assert store.put(Publish("a", b"123456"), NEVER_S) is RetainOutcome.BYTES_FULL
    assert store.put(Publish("a", b"12345"), NEVER_S) is RetainOutcome.KEPT
    assert store.put(Publish("b", b"1"), NEVER_S) is RetainOutcome.BYTES_FULL
    assert store.put(Publish("a", b"123456"), NEVER_S) is RetainOutcome.BYTES_FULL
    assert [entry.publish.payload for entry in store.match("a", 0.0)] == [b"12345"]
    assert store.put(Publish("a", b"54321"), NEVER_S) is RetainOutcome.KEPT
    assert store.put(Publish("a", b"1"), NEVER_S) is RetainOutcome.KEPT
    assert store.size_bytes == retained_size_bytes(Publish("a", b"1"))


def test_refusals_are_marked() -> None:
    refusals = {outcome.value for outcome in RetainOutcome if outcome.is_refusal}
    assert refusals == {"count_full", "bytes_full"}


def test_everything_that_takes_memory_is_counted() -> None:
    text = "x" * 1000
    plain = retained_size_bytes(Publish("a", b"x"))
    for properties in [
        Properties(content_type=text),
        Properties(response_topic=text),
        Properties(correlation_data=text.encode()),
        Properties(user_properties=((text, ""),)),
        Properties(user_properties=(("", text),)),
    ]:
        size_bytes = retained_size_bytes(Publish("a", b"x", properties=properties))
        assert size_bytes >= plain + 1000
    assert retained_size_bytes(Publish("a" * 1001, b"x")) >= plain + 1000
    assert retained_size_bytes(Publish("a", b"x" * 1001)) == plain + 1000
    assert retained_size_bytes(Publish("/" * 1000, b"x")) >= plain + 100_000


@pytest.mark.parametrize(
    "topic",
    ["sensors/{0:06}/temperature", "{0:06}", "a/b/{0}/c/d/{0}/e", "{0}///////", "é/{0}/日本"],
)
def test_the_books_are_not_below_the_memory(topic: str) -> None:
    store = RetainedMessages(messages_max=PLENTY, bytes_max=PLENTY)
    gc.collect()
    tracemalloc.start()
    for number in range(3000):
        store.put(Publish(topic.format(number), b"%030d" % number), 1000.0 + number)
    gc.collect()
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used_bytes <= store.size_bytes <= 3 * used_bytes


def test_an_expired_message_is_not_shown_and_then_removed() -> None:
    store = store_of("for ever")
    store.put(Publish("a/late", b"x"), 20.0)
    store.put(Publish("a/soon", b"x"), 10.0)
    assert topics_of(store, "a/+", 9.9) == ["a/late", "a/soon"]
    assert topics_of(store, "a/+", 10.0) == ["a/late"]
    assert topics_of(store, "a/soon", 10.0) == []
    assert len(store) == 3
    assert store.expire(9.9, 10) == []
    assert store.expire(30.0, 1) == ["a/soon"]
    assert store.expire(30.0, 10) == ["a/late"]
    assert store.expire(1e12, 10) == []
    assert topics_of(store, "#", 1e12) == ["for ever"]


def test_a_newer_message_has_its_own_expiry() -> None:
    store = RetainedMessages(messages_max=PLENTY, bytes_max=PLENTY)
    store.put(Publish("a", b"1"), 10.0)
    store.put(Publish("a", b"2"), 20.0)
    store.put(Publish("b", b"1"), 10.0)
    store.put(Publish("b", b"2"), NEVER_S)
    assert store.expire(15.0, 10) == []
    assert topics_of(store, "#", 15.0) == ["a", "b"]
    assert store.expire(25.0, 10) == ["a"]


@pytest.mark.parametrize("quiet", [0, 5000])
def test_republishing_does_not_grow_the_heap(quiet: int) -> None:
    store = store_of(*(f"quiet/{number}" for number in range(quiet)))
    for second in range(10_000):
        store.put(Publish("a", b"x"), second + 86_400.0)
    assert len(store._heap) <= 70
    assert store.expire(1e6, 10) == ["a"]


@pytest.mark.parametrize("filter", ["#", "+/#", "t/+", "t/#", "+/+"])
def test_a_walk_goes_on_while_the_store_changes(filter: str) -> None:
    """A message that exists all the time is shown exactly once; one removed before, never."""
    names = [f"t/{number}" for number in range(100)]
    store = store_of(*names)
    walk = store.walk(filter)
    seen = [entry.publish.topic for entry in walk.take(0.0, 30)]
    assert len(seen) < 31
    removed = names[1::2]
    for name in removed:
        store.discard(name)
    for number in range(100, 300):
        store.put(Publish(f"t/{number}", b"new"), NEVER_S)
    later: list[str] = []
    while not walk.is_done():
        later += [entry.publish.topic for entry in walk.take(0.0, 7)]
    assert not set(later) & set(removed)
    standing = [name for name in seen + later if name in names[::2]]
    assert sorted(standing) == sorted(names[::2])


def test_a_walk_does_no_more_than_it_may() -> None:
    store = store_of(*(f"{number}/a" for number in range(1000)))
    walk = store.walk("+/nothing")
    takes = 0
    while not walk.is_done():
        assert walk.take(0.0, 10) == []
        takes += 1
    assert takes >= 100


def test_a_wildcard_walks_only_its_branch() -> None:
    store = store_of(*(f"a/{number}/b" for number in range(50)), *map(str, range(10_000)))
    walk = store.walk("a/+/b")
    assert len(walk.take(0.0, 250)) == 50
    assert walk.is_done()


def test_the_deepest_topic_costs_no_recursion() -> None:
    store = store_of("/" * 65_535)
    assert len(topics_of(store, "#")) == 1
    assert len(topics_of(store, "/#")) == 1
    assert topics_of(store, "+/" * 1000 + "+") == []
    assert store.discard("/" * 65_535)
    assert is_bare(store)


class RetainedAgainstDict(RuleBasedStateMachine):
    messages_max = 8
    bytes_max = 8_000

    def __init__(self) -> None:
        super().__init__()
        self.store = RetainedMessages(messages_max=self.messages_max, bytes_max=self.bytes_max)
        self.model: dict[str, tuple[Publish, float]] = {}
        self.now_s = 0.0

    @rule(
        topic=topics,
        size=st.sampled_from([0, 1, 1, 50, 3000]),
        lives_s=st.sampled_from([NEVER_S, 1.0, 2.0, 5.0]),
    )
    def put(self, topic: str, size: int, lives_s: float) -> None:
        publish = Publish(topic, b"x" * size, retain=True)
        outcome = self.store.put(publish, self.now_s + lives_s)
        if size == 0:
            assert outcome is RetainOutcome.REMOVED
            self.model.pop(topic, None)
            return
        old_bytes = retained_size_bytes(self.model[topic][0]) if topic in self.model else 0
        growth = retained_size_bytes(publish) - old_bytes
        if topic not in self.model and len(self.model) == self.messages_max:
            assert outcome is RetainOutcome.COUNT_FULL
        elif growth > 0 and self.used_bytes() + growth > self.bytes_max:
            assert outcome is RetainOutcome.BYTES_FULL
        else:
            assert outcome is RetainOutcome.KEPT
            self.model[topic] = (publish, self.now_s + lives_s)

    def used_bytes(self) -> int:
        return sum(retained_size_bytes(publish) for publish, _ in self.model.values())

    @rule(filter=filters)
    def match(self, filter: str) -> None:
        found = [
            (entry.publish, entry.expires_at_s) for entry in self.store.match(filter, self.now_s)
        ]
        expected = [
            self.model[topic]
            for topic in sorted(self.model)
            if matches(filter, topic) and self.now_s < self.model[topic][1]
        ]
        found.sort(key=lambda pair: pair[0].topic)
        assert found == expected

    @rule(topic=topics)
    def match_exactly(self, topic: str) -> None:
        self.match(topic)

    @rule(passed_s=st.sampled_from([0.5, 1.0, 3.0]))
    def time_passes(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule(limit=st.integers(0, 3))
    def expire(self, limit: int) -> None:
        old = sorted((at_s, topic) for topic, (_, at_s) in self.model.items() if at_s <= self.now_s)
        removed = self.store.expire(self.now_s, limit)
        assert removed == [topic for _, topic in old[:limit]]
        for topic in removed:
            del self.model[topic]

    @invariant()
    def books(self) -> None:
        assert len(self.store) == len(self.model) <= self.messages_max
        assert self.store.size_bytes == self.used_bytes() <= self.bytes_max
        expiring = sum(at_s < NEVER_S for _, at_s in self.model.values())
        assert self.store._expiring == expiring
        assert expiring <= len(self.store._heap) <= 2 * expiring + 64
        assert is_bare(self.store) == (not self.model)


TestRetainedAgainstDict = RetainedAgainstDict.TestCase


@given(st.lists(topics, unique=True, max_size=30), st.lists(filters, max_size=10))
def test_match_agrees_with_the_naive_scan(names: list[str], wanted: list[str]) -> None:
    store = store_of(*names)
    for filter in wanted:
        expected = sorted(name for name in names if matches(filter, name))
        found = topics_of(store, filter)
        assert sorted(found) == expected
        assert topics_of(store, filter) == found  # the order is the same each time


@given(st.lists(topics, unique=True, max_size=60), st.lists(filters, max_size=10))
def test_a_short_look_never_says_that_nothing_matches_where_something_does(
    names: list[str], wanted: list[str]
) -> None:
    store = store_of(*names)
    for filter in wanted:
        assert store.may_match(filter) or not topics_of(store, filter)


@pytest.mark.parametrize("filter", ["t/+/y", "+/+/y", "t/+", "#"])
def test_a_short_look_copies_no_level_of_many_topics(filter: str) -> None:
    store = store_of(*(f"t/{number}/x" for number in range(10_000)))
    tracemalloc.start()
    try:
        assert store.may_match(filter)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10_000


def found_after(store: RetainedMessages, filter: str, after: str) -> list[str]:
    slices = store.slices(filter, 0.0, after)
    return [entry.publish.topic for entries in slices for entry in entries]


@given(st.lists(topics, unique=True, max_size=30), st.lists(filters, max_size=10), topics)
def test_a_search_goes_on_after_any_topic(names: list[str], wanted: list[str], other: str) -> None:
    """In the order of levels, whatever was put first, and whether that topic is still there."""
    store = store_of(*names)
    for filter in wanted:
        found = found_after(store, filter, "")
        assert found == sorted(topics_of(store, filter), key=lambda topic: topic.split("/"))
        for place, topic in enumerate(found):
            assert found_after(store, filter, topic) == found[place + 1 :]
            store.discard(topic)
            assert found_after(store, filter, topic) == found[place + 1 :]
            store.put(Publish(topic, b"again"), NEVER_S)
        if has_wildcard(filter):
            later = [topic for topic in found if topic.split("/") > other.split("/")]
            assert found_after(store, filter, other) == later


def test_many_topics_of_one_level_are_sorted_piece_by_piece() -> None:
    names = [f"t/{number}" for number in range(5 * WALK_SLICE)]
    Random(7).shuffle(names)
    store = store_of(*names)
    slices = [len(entries) for entries in store.slices("t/+", 0.0, "")]
    assert (slices[:5], max(slices)) == ([0] * 5, WALK_SLICE)
    assert found_after(store, "t/+", "") == sorted(names)
    assert found_after(store, "t/#", "t/42") == [name for name in sorted(names) if name > "t/42"]


@pytest.mark.parametrize(
    ("filter", "expected"),
    [("a/b", True), ("a/c", False), ("a/#", True), ("+/c", False), ("#", True), ("b/#", False)],
)
def test_a_short_look_says_whether_anything_may_match(filter: str, expected: bool) -> None:
    store = store_of("a/b")
    assert store.may_match(filter) is expected


def test_a_look_that_would_be_long_says_that_something_may() -> None:
    assert store_of(*map(str, range(1_000))).may_match("+/nothing")


@pytest.mark.slow
def test_100_000_random_topics_against_the_naive_scan() -> None:
    random = Random(7)
    names = {
        "/".join(str(random.randrange(12)) for _ in range(random.randint(1, 7)))
        for _ in range(100_000)
    }
    store = store_of(*sorted(names))
    for filter in ["3/+/5", "+/1/#", "1/2/3/4", "+/+/+/7", "11/#", "+/+", "5/5/#", "+/+/+/+/+/3/3"]:
        assert sorted(topics_of(store, filter)) == sorted(n for n in names if matches(filter, n))
    for name in names:
        assert store.discard(name)
    assert is_bare(store)
