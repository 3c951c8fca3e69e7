import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flowguard.routing.filters import matches, parse_shared
from flowguard.routing.table import Routes, SubscriptionTable

from .strategies import filters, topics

Table = SubscriptionTable[str, int]


def always(_: str) -> int:
    return 0


def test_one_match_shows_plain_subscribers_and_groups() -> None:
    table = Table()
    assert table.subscribe("a/+", "plain", 1)
    assert table.subscribe("$share/g/a/b", "one", 2)
    assert table.subscribe("$share/g/a/b", "two", 3)
    assert table.subscribe("$share/h/a/b", "one", 4)
    assert not table.subscribe("$share/h/a/b", "one", 5)
    assert len(table) == 4
    routes = table.match("a/b")
    assert routes.plain == [("plain", 1)]
    assert [(group.name, group.filter) for group in routes.groups] == [("g", "a/b"), ("h", "a/b")]
    assert [routes.groups[0].pick(always) for _ in range(3)] == [("one", 2), ("two", 3), ("one", 2)]
    assert routes.groups[1].pick(always) == ("one", 5)


def test_groups_differ_by_name_and_by_filter() -> None:
    table = Table()
    for filter in ["$share/g/a", "$share/h/a", "$share/g/+", "$share/g/#", "$share/G/a"]:
        table.subscribe(filter, "s", 1)
    assert len(table.match("a").groups) == 5
    assert len(table.match("b").groups) == 2
    assert table.group("g", "a") is not table.group("h", "a")
    assert table.group("g", "b") is None


@pytest.mark.spec("MQTT-4.7.2-1")
def test_a_leading_wildcard_of_a_shared_filter_does_not_see_dollar_topics() -> None:
    table = Table()
    table.subscribe("$share/g/#", "s", 1)
    table.subscribe("$share/g/$SYS/#", "s", 1)
    assert [group.filter for group in table.match("$SYS/a").groups] == ["$SYS/#"]


def test_a_shared_filter_matches_no_topic_by_its_own_text() -> None:
    table = Table()
    table.subscribe("$share/g/a", "s", 1)
    routes = table.match("$share/g/a")
    assert (routes.plain, routes.groups) == ([], [])


def test_the_last_member_takes_the_group_along() -> None:
    table = Table()
    table.subscribe("$share/g/a", "one", 1)
    table.subscribe("$share/g/a", "two", 1)
    kept = table.match("a").groups[0]
    assert table.unsubscribe("$share/g/a", "one")
    assert not table.unsubscribe("$share/g/a", "one")
    assert not table.unsubscribe("$share/h/a", "two")
    assert table.match("a").groups == [kept]
    assert table.unsubscribe("$share/g/a", "two")
    assert table.match("a").groups == []
    assert len(table) == 0
    assert kept.pick(always) is None  # a group kept too long has no members


def test_version_moves_when_routes_may_differ() -> None:
    table = Table()
    table.subscribe("$share/g/a", "one", 1)
    version = table.version
    table.subscribe("$share/g/a", "two", 1)  # the same group, more members
    assert table.version == version
    table.subscribe("a", "one", 1)
    assert table.version > version
    version = table.version
    table.unsubscribe("$share/g/a", "one")
    assert table.version == version
    table.unsubscribe("$share/g/a", "two")
    assert table.version > version
    version = table.version
    assert not table.unsubscribe("b", "one")
    assert table.version == version
    assert table.unsubscribe("a", "one")
    assert table.version > version


@pytest.mark.spec("MQTT-4.8.2-1", "MQTT-4.8.2-2")
@pytest.mark.parametrize("filter", ["$share//a", "$share/g", "$share/g+/a", "$share/g/", "$share/"])
def test_an_invalid_shared_filter_is_refused(filter: str) -> None:
    table = Table()
    with pytest.raises(ValueError, match="share name"):
        table.subscribe(filter, "s", 1)
    with pytest.raises(ValueError, match="share name"):
        table.unsubscribe(filter, "s")
    assert len(table) == 0


class TableAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.model: dict[tuple[str, str], int] = {}
        self.kept: dict[str, tuple[int, Routes[str, int]]] = {}

    prefixes = st.sampled_from(["", "", "$share/g/", "$share/h/"])

    @rule(prefix=prefixes, filter=filters, subscriber=st.sampled_from("xyz"), options=st.integers())
    def subscribe(self, prefix: str, filter: str, subscriber: str, options: int) -> None:
        key = (prefix + filter, subscriber)
        assert self.table.subscribe(*key, options) == (key not in self.model)
        self.model[key] = options

    @rule(data=st.data(), filter=filters, subscriber=st.sampled_from("xyz"))
    def unsubscribe(self, data: st.DataObject, filter: str, subscriber: str) -> None:
        key = data.draw(st.sampled_from([(filter, subscriber), *sorted(self.model)]))
        assert self.table.unsubscribe(*key) == (key in self.model)
        self.model.pop(key, None)

    @rule(topic=topics)
    def match(self, topic: str) -> None:
        plain = []
        shared: dict[tuple[str, str], dict[str, int]] = {}
        for (filter, subscriber), options in self.model.items():
            parts = parse_shared(filter)
            if parts is None:
                if matches(filter, topic):
                    plain.append((subscriber, options))
            elif matches(parts[1], topic):
                shared.setdefault(parts, {})[subscriber] = options
        routes = self.table.match(topic)
        assert sorted(routes.plain) == sorted(plain)
        found = {(group.name, group.filter): dict(group.members()) for group in routes.groups}
        assert found == shared
        assert len(routes.groups) == len(shared)
        for parts in shared:
            assert self.table.group(*parts) in routes.groups

    @rule(topic=topics)
    def routes_hold_while_the_version_stands(self, topic: str) -> None:
        routes = self.table.match(topic)
        version, before = self.kept.get(topic, (-1, routes))
        if version == self.table.version:
            assert before.plain == routes.plain
            assert before.groups == routes.groups
        self.kept[topic] = (self.table.version, routes)

    @invariant()
    def counts(self) -> None:
        assert len(self.table) == len(self.model)
        shared = [filter for filter, _ in self.model if filter.startswith("$share/")]
        assert self.table.shared_count == len(shared)


TestTableAgainstModel = TableAgainstModel.TestCase
