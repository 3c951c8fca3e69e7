"""A broker's records of groups, and its changes to topics; a dictionary stands for Kafka."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from flowguard.errors import ConfigError, StallError, StoreError
from flowguard.stores.group_feed import GroupNews, GroupTrouble
from flowguard.stores.kafka.connection.driver import TopicSeen
from flowguard.stores.kafka.connection.errors import NoTopicError
from flowguard.stores.kafka.connection.link import KafkaMessage
from flowguard.stores.kafka.groups import claims as group_claims
from flowguard.stores.kafka.groups.claims import GroupClaims
from flowguard.stores.kafka.groups.roster import (
    GroupChange,
    GroupRoster,
    group_topic,
)
from flowguard.stores.kafka.topics import KafkaPlace

FILTER, OTHER = "$share/g/t", "$share/g/other"
PLACE = KafkaPlace("somewhere", replicas=1, groups_prefix="g", groups_partitions=4)
Record = tuple[bytes | None, bytes | None]


@dataclass
class Topic:
    number: int
    partitions: int
    configs: dict[str, str]


@dataclass
class Cluster:
    """A Kafka, as far as claims need one."""

    topics: dict[str, Topic] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    """Records of the topic of groups."""
    count: int = 0

    def forget(self) -> None:
        """Delete the topic of groups, as another client would."""
        del self.topics["g.groups"]
        self.records.clear()


class Link:
    """One broker's connection to it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.is_slow = False
        """True if a record is only complete when another one is appended, by any caller, as in
        `KafkaLink`."""
        self._unfinished: list[Record] = []
        self.denies: StoreError | None = None
        """The error for a caller that may not change anything."""

    def topics(self, prefix: str) -> list[str]:
        return [each for each in self.cluster.topics if each.startswith(prefix)]

    def create_topic(self, topic: str, partitions: int, _: int, configs: Mapping[str, str]) -> bool:
        if topic in self.cluster.topics:
            return False
        if self.denies:
            raise self.denies
        self.cluster.count += 1
        self.cluster.topics[topic] = Topic(self.cluster.count, partitions, dict(configs))
        return True

    def compact_topic(self, topic: str) -> None:
        configs = self.cluster.topics[topic].configs
        if self.denies and configs["cleanup.policy"] != "compact":
            raise self.denies
        configs["cleanup.policy"] = "compact"

    def complete_topic(self, topic: str, partitions: int, _: Mapping[str, str]) -> None:
        if self.denies:
            raise self.denies
        self.cluster.topics[topic].partitions = partitions

    def topic_seen(self, topic: str) -> TopicSeen:
        found = self.cluster.topics[topic]
        return TopicSeen(found.number.to_bytes(16), found.partitions, 1)

    def append(
        self, messages: Mapping[tuple[str, int], Sequence[KafkaMessage]]
    ) -> dict[tuple[str, int], list[int]]:
        ((place, some),) = messages.items()
        wanted = self._unfinished or [(each.key, each.value) for each in some]
        if place[0] not in self.cluster.topics:
            raise NoTopicError("the topic is not there")
        is_slow, self.is_slow = self.is_slow, False
        self._unfinished = wanted if is_slow else []
        if is_slow:
            raise StallError("no answer")
        records = self.cluster.records
        records += wanted
        return {place: [len(records) - 1]}

    def call(self, work: Callable[[], Awaitable[Any]]) -> Any:
        running = work().__await__()
        try:
            next(running)
        except StopIteration as end:
            return end.value
        raise AssertionError


class Tail:
    """A tail that has always followed all records."""

    trouble, topic_id, is_missing, is_anew = "", b"", False, False

    def __init__(
        self,
        link: Link,
        _: str,
        roster: GroupRoster,
        on_change: Callable[[GroupChange], None],
    ) -> None:
        self._cluster = link.cluster
        self._roster = roster
        self._on_change = on_change
        self.next_offset = 0

    async def start(self) -> None:
        self.follow()

    async def passed(self, offset: int) -> None:
        self.follow()

    def follow(self) -> None:
        for key, value in self._cluster.records[self.next_offset :]:
            change = self._roster.apply(key, value)
            if change is not None:
                self._on_change(change)
        self.next_offset = len(self._cluster.records)


class Bench:
    """A broker at a cluster."""

    def __init__(self, cluster: Cluster, name: str = "a") -> None:
        self.link = Link(cluster)
        self.news: list[GroupNews] = []
        link: Any = self.link
        self.claims = GroupClaims(link, PLACE, name, lambda: 1e9, self.news.append, lambda _: None)

    def open(self, *filters: str) -> list[str]:
        """Open the groups, and return topics without an owner."""
        return self.claims.open(filters)

    def topic(self, filter: str = FILTER) -> str:
        found = self.claims.roster.get(filter)
        assert found is not None
        return found.topic

    def see_that_it_is_another_topic(self) -> None:
        """As `GroupTail` does it."""
        tail: Any = self.claims._tail
        tail.next_offset, tail.is_anew = 0, True

    def troubles(self) -> list[tuple[str, str]]:
        found = [(each.filter, each.why) for each in self.news if isinstance(each, GroupTrouble)]
        self.news.clear()
        return found


@pytest.fixture(autouse=True)
def _tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_claims, "GroupTail", Tail)


def test_a_topic_that_no_group_has_is_nobodys_and_one_of_somebody_else_is_not() -> None:
    cluster = Cluster()
    one = Bench(cluster)
    assert one.open(FILTER) == []
    stranger = group_topic("g", OTHER, 1)
    others = ["g.group.orders", "g.group.orders.1", f"{stranger}.copy", "g.groups2"]
    for topic in (stranger, *others):
        one.link.create_topic(topic, 1, 1, {})
    one.claims.joined(OTHER)
    one.claims.left(OTHER)
    assert Bench(cluster, "b").open() == [stranger]


def test_who_leaves_has_left_though_a_record_before_it_was_still_on_its_way() -> None:
    cluster = Cluster()
    one = Bench(cluster)
    one.open(FILTER, OTHER)
    one.link.is_slow = True
    with pytest.raises(StallError):
        one.claims.left(OTHER)
    one.claims.left(FILTER)
    one.claims.left(OTHER)
    late = Bench(cluster, "b")
    late.open()
    assert late.claims.roster.claims_of("a") == set()
    assert one.claims.roster.claims_of("a") == set()


def test_the_topic_of_groups_is_compacted_whoever_has_made_it_or_the_broker_does_not_start() -> (
    None
):
    cluster = Cluster()
    one = Bench(cluster)
    one.link.create_topic("g.groups", 1, 1, {"cleanup.policy": "delete"})
    one.open()
    assert cluster.topics["g.groups"].configs["cleanup.policy"] == "compact"
    cluster.topics["g.groups"].configs["cleanup.policy"] = "delete"
    two = Bench(cluster, "b")
    two.link.denies = StoreError("Kafka denies it")
    with pytest.raises(
        ConfigError, match=r"g\.groups must have cleanup\.policy=compact.*denies it"
    ):
        two.open()


def test_groups_whose_claims_are_lost_keep_their_topics_when_brokers_start_one_by_one() -> None:
    cluster = Cluster()
    one, two = Bench(cluster), Bench(cluster, "b")
    one.open(FILTER)
    two.open(OTHER)
    topics = {one.topic(), two.topic(OTHER)}
    cluster.forget()
    one, two = Bench(cluster), Bench(cluster, "b")
    assert one.open(FILTER) == []
    assert two.open(OTHER) == []
    assert {one.topic(), two.topic(OTHER)} == topics
    assert topics < set(cluster.topics)


def test_brokers_that_live_say_again_what_is_lost_of_themselves_and_of_others() -> None:
    cluster = Cluster()
    one, two = Bench(cluster), Bench(cluster, "b")
    two.open(OTHER)
    one.open(FILTER)
    topics = one.topic(), two.topic(OTHER)
    cluster.forget()
    one.claims.upkeep()
    tail: Any = one.claims._tail
    tail.is_missing = True
    one.claims.upkeep()
    one.see_that_it_is_another_topic()
    one.claims.upkeep()
    late = Bench(cluster, "c")
    assert late.open() == []
    assert late.claims.roster.claims_of("a") == {FILTER}
    assert late.claims.roster.claims_of("b") == {OTHER}
    assert (late.topic(), late.topic(OTHER)) == topics


def test_who_joins_while_the_topic_of_groups_is_gone_waits_and_the_broker_does_not_end() -> None:
    cluster = Cluster()
    one = Bench(cluster)
    one.open(FILTER)
    cluster.forget()
    with pytest.raises(StallError):
        one.claims.joined(OTHER)
    with pytest.raises(StallError, match="was deleted and starts again"):
        one.claims.joined(OTHER)
    one.see_that_it_is_another_topic()
    one.claims.joined(OTHER)
    assert one.topic(OTHER) in cluster.topics


def test_a_topic_with_too_few_partitions_that_may_have_no_more_is_used_and_holds_up_nobody() -> (
    None
):
    cluster = Cluster()
    one = Bench(cluster)
    one.open(FILTER, OTHER)
    topic, other = one.topic(), one.topic(OTHER)
    cluster.topics[topic].partitions = 1
    del cluster.topics[other]
    again = Bench(cluster)
    again.link.denies = StoreError("Kafka denies it")
    again.open(FILTER, OTHER)
    ((first, why), (second, _)) = sorted(again.troubles(), reverse=True)
    assert (first, second) == (FILTER, OTHER)
    assert why == f"{topic} has 1 partitions, not 4: Kafka denies it"
    found = again.claims.roster.get(FILTER)
    assert found is not None
    assert again.claims.partitions_of(found) == 1
    again.claims.make(FILTER, found)
    again.link.denies = None
    again.claims.upkeep()
    assert other in cluster.topics
    assert again.claims.partitions_of(found) == 4
    assert cluster.topics[topic].partitions == 4


def test_upkeep_of_one_group_waits_for_no_other() -> None:
    cluster = Cluster()
    one = Bench(cluster)
    one.open(FILTER, OTHER)
    topics = sorted([one.topic(), one.topic(OTHER)])
    for topic in topics:
        cluster.topics[topic].partitions = 1
        one.claims.doubt(topic)
    one.link.denies = StoreError("Kafka denies it")
    one.claims.upkeep()
    assert {filter for filter, _ in one.troubles()} == {FILTER, OTHER}


def test_a_topic_that_is_deleted_while_it_is_given_partitions_is_not_taken_for_a_smaller_one() -> (
    None
):
    cluster = Cluster()
    one = Bench(cluster)
    one.open(FILTER)
    found = one.claims.roster.get(FILTER)
    assert found is not None
    cluster.topics[found.topic].partitions = 1
    one.claims.doubt(found.topic)
    one.link.denies = NoTopicError("it is gone")
    with pytest.raises(StallError, match="it is gone"):
        one.claims.make(FILTER, found)
    assert one.claims.partitions_of(found) == 4
