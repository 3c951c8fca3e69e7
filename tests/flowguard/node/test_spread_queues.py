"""Groups that several brokers have together, as one node sees them; the store is a list."""

from collections.abc import Callable, Sequence

from flowguard.codec.packets import Puback, Pubrec
from flowguard.flow import Reason
from flowguard.node.upkeep.holdings import held_bytes
from flowguard.node.upkeep.sys_topics import SysTopics
from flowguard.ops.explain import explain
from flowguard.ops.metrics import registry_of
from flowguard.ops.view import View
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    DropSession,
    PutSession,
    Release,
    Settle,
    SinkKind,
    StoreOp,
    key_of,
    sink_of,
)
from flowguard.stores import Fenced, GroupFeed
from flowguard.stores.group_feed import (
    GroupBegan,
    GroupCame,
    GroupEnded,
    GroupGone,
    GroupNews,
    GroupPaused,
    GroupTrouble,
    Trouble,
)
from flowguard.types import Publish
from tests.flowguard.node.test_apart import PATTERNS, acknowledge, come, subscribed
from tests.support.stage import Client, Stage
from tests.support.store_apart import StoreApart

FILTER = "$share/g/t"
NAME = key_of(SinkKind.SPREAD, FILTER)


class Feed:
    """A store's news of groups, as set by the test."""

    def __init__(self) -> None:
        self.news: list[GroupNews] = []
        self.wanted: dict[str, bool] = {}

    def take_news(self) -> list[GroupNews]:
        news, self.news = self.news, []
        return news

    def on_news(self, wake: Callable[[], None]) -> None:
        raise NotImplementedError

    def want(self, filter: str, is_wanted: bool) -> None:
        self.wanted[filter] = is_wanted


class SpreadStore(StoreApart):
    """Reports at once that a group exists, and records all other calls."""

    def __init__(self) -> None:
        super().__init__()
        self.feed = Feed()
        self.published: list[Append] = []
        self.done: list[int] = []

    @property
    def groups(self) -> GroupFeed | None:
        return self.feed

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        rest: list[StoreOp] = []
        for op in ops:
            name = getattr(op, "client_id", "")
            kind, filter = sink_of(name)
            if kind is SinkKind.SPREAD:
                if isinstance(op, Append):
                    self.published.append(op)
                elif isinstance(op, (Settle, Release)):
                    self.done.append(op.pos)
                elif isinstance(op, (PutSession, DropSession)):
                    (self.names.add if isinstance(op, PutSession) else self.names.discard)(name)
                continue
            if kind is SinkKind.MEMBERS:
                is_there = isinstance(op, PutSession)
                self.feed.news.append((GroupBegan if is_there else GroupEnded)(filter))
            rest.append(op)
        return super().commit(rest)


def spread_stage() -> tuple[Stage, SpreadStore]:
    store = SpreadStore()
    return Stage({"session": PATTERNS}, store=store), store


def hear(stage: Stage, store: SpreadStore, *news: GroupNews) -> None:
    store.feed.news += news
    stage.node.router.queues.spread.take_news(stage.now_s)
    stage.settle()


def came(*numbers: int, qos: int = 1) -> GroupCame:
    def delivery(number: int) -> Delivery:
        return Delivery(Publish("t", b"%d" % number, qos), qos, False, (), NEVER_S)

    return GroupCame(FILTER, [(number, delivery(number)) for number in numbers], False)


def given(client: Client) -> list[tuple[int, int]]:
    """Numbers and packet identifiers of what has come, unacknowledged."""
    return [(int(each.payload), each.packet_id) for each in client.publishes(acknowledge=False)]


def test_what_matches_is_written_for_a_group_that_others_have_and_not_handed_out_here() -> None:
    stage, store = spread_stage()
    hear(stage, store, GroupBegan(FILTER))
    device = subscribed(stage, "d", "t")
    publisher = stage.connect("p")
    for payload in (b"1", b"2"):
        publisher.publish("t", payload, qos=1)
    stage.connect("q").publish("t", b"3", qos=2)
    assert [op.delivery.message.payload for op in store.published] == [b"1", b"2", b"3"]
    one, two, three = (op.pos for op in store.published)
    assert one == two != three
    assert acknowledge(device) == [b"1", b"2", b"3"]
    assert not store.feed.wanted.get(FILTER, False)
    hear(stage, store, GroupEnded(FILTER))
    publisher.publish("t", b"4", qos=1)
    assert len(store.published) == 3
    assert acknowledge(device) == [b"4"]


def test_what_is_no_shared_subscription_is_no_group_whoever_says_so() -> None:
    stage, store = spread_stage()
    for filter in ("$share/g/#/t", "$share/g", "$share//t", "$share/+/t", "t", "$share/g/t\0"):
        hear(stage, store, GroupBegan(filter), GroupPaused(filter, False), GroupEnded(filter))
        assert not stage.node.router.queues.spread.count
    hear(stage, store, GroupBegan(FILTER))
    assert stage.node.router.queues.spread.count == 1


def test_while_the_store_is_away_only_who_publishes_to_the_group_waits() -> None:
    stage, store = spread_stage()
    hear(stage, store, GroupBegan(FILTER))
    publisher, other = stage.connect("p"), stage.connect("q")
    stage.hold_apart = True
    publisher.publish("t", b"1", qos=1)
    other.publish("near", b"x", qos=1)
    assert not publisher.inbox
    assert isinstance(other.take()[0], Puback)
    stage.release_apart()
    assert isinstance(publisher.take()[0], Puback)


def test_members_get_what_the_store_gives_and_what_they_answer_is_settled() -> None:
    stage, store = spread_stage()
    app, device = subscribed(stage, "app-1", FILTER), subscribed(stage, "d", FILTER)
    hear(stage, store)
    assert store.feed.wanted == {FILTER: True}
    publisher = stage.connect("p")
    publisher.publish("t", b"1", qos=1)
    assert not app.inbox
    assert not device.inbox
    hear(stage, store, came(1, 2, 3, 4))
    assert sorted(acknowledge(app) + acknowledge(device)) == [b"1", b"2", b"3", b"4"]
    stage.advance(0.5)
    assert sorted(store.done) == [1, 2, 3, 4]


def test_a_member_that_goes_gives_back_and_the_order_stays() -> None:
    stage, store = spread_stage()
    first = subscribed(stage, "app-1", FILTER)
    hear(stage, store, came(11, 12, 13))
    (_, packet_id), *_ = given(first)
    first.send(Puback(packet_id))
    first.close()
    stage.advance(0.5)
    assert store.feed.wanted == {FILTER: False}
    hear(stage, store, came(14))
    second = come(stage, "app-1")
    second.take()
    stage.advance(0.5)
    assert store.feed.wanted == {FILTER: True}
    assert store.done == [11]


def test_what_is_given_to_another_broker_is_not_handed_out_any_more() -> None:
    stage, store = spread_stage()
    app = come(stage, "app-1", receive_maximum=1)
    app.take()
    app.subscribe(FILTER, qos=1)
    hear(stage, store, came(1, 2, 3))
    ((number, packet_id),) = given(app)
    assert number == 1
    hear(stage, store, GroupGone(FILTER, [1, 2]))
    # The client has this one, and may answer; if it disconnects, no other client gets it again.
    app.send(Puback(packet_id))
    ((number, packet_id),) = given(app)
    assert number == 3
    hear(stage, store, GroupGone(FILTER, [3]))
    app.close()
    app = come(stage, "app-1", receive_maximum=1)
    assert not app.publishes()
    # It comes again, and is given again.
    hear(stage, store, came(3))
    assert acknowledge(app) == [b"3"]


def test_nothing_is_handed_out_while_it_is_decided_by_whom() -> None:
    stage, store = spread_stage()
    app = subscribed(stage, "app-1", FILTER)
    hear(stage, store, GroupPaused(FILTER, True), came(1))
    assert not app.inbox
    hear(stage, store, GroupPaused(FILTER, False))
    assert acknowledge(app) == [b"1"]


def test_a_message_of_qos_2_has_left_the_group_before_its_member_gets_it() -> None:
    stage, store = spread_stage()
    app = subscribed(stage, "app-1", FILTER)
    hear(stage, store)
    stage.hold_apart = True
    hear(stage, store, came(1, qos=2))
    assert not app.inbox
    stage.release_apart()
    assert 1 in store.done
    assert acknowledge(app) == [b"1"]
    stage.restart()
    assert acknowledge(come(stage, "app-1")) == []


def test_the_last_member_here_takes_the_broker_out_and_a_restart_finds_it_so() -> None:
    stage, store = spread_stage()
    app = subscribed(stage, "app-1", FILTER)
    hear(stage, store)
    stage.restart()
    assert not [each for each in store.feed.news if isinstance(each, GroupEnded)]
    app = come(stage, "app-1")
    app.take()
    app.unsubscribe(FILTER)
    assert GroupEnded(FILTER) in store.feed.news
    hear(stage, store)
    publisher = stage.connect("p")
    publisher.publish("t", b"1", qos=2)
    assert isinstance(publisher.take()[0], Pubrec)
    assert not store.published


def test_devices_that_had_a_group_for_themselves_are_members_of_the_one_that_begins() -> None:
    stage, store = spread_stage()
    device = subscribed(stage, "d", FILTER)
    publisher = stage.connect("p")
    publisher.publish("t", b"before", qos=1)
    assert not store.published
    hear(stage, store, GroupBegan(FILTER))
    assert key_of(SinkKind.MEMBERS, FILTER) in store.names
    assert store.feed.wanted == {FILTER: True}
    publisher.publish("t", b"after", qos=1)
    hear(stage, store, came(1))
    assert acknowledge(device) == [b"before", b"1"]
    stage.advance(0.5)
    assert store.done == [1]


def test_a_member_of_a_former_queue_gets_what_waited_there_and_then_what_comes() -> None:
    stage, store = spread_stage()
    device = subscribed(stage, "d", FILTER)
    device.close()
    publisher = stage.connect("p")
    for payload in (b"1", b"2"):
        publisher.publish("t", payload, qos=2)
    acknowledge(publisher)
    app = subscribed(stage, "app-1", FILTER)
    hear(stage, store)
    publisher.publish("t", b"3", qos=2)
    acknowledge(publisher)
    assert [op.delivery.message.payload for op in store.published] == [b"3"]
    assert acknowledge(app) == [b"1", b"2"]
    app.close()
    store.feed.news.append(GroupBegan(FILTER))
    stage.restart()
    hear(stage, store, came(3))
    assert acknowledge(come(stage, "app-1")) == [b"3"]


# --- reports about the group ---------------------------------------------------------------------


def test_what_is_wrong_is_told_once_and_by_explain_until_it_is_over() -> None:
    stage, store = spread_stage()
    subscribed(stage, "app-1", FILTER)
    device = subscribed(stage, "d", "else")
    spread = stage.node.router.queues.spread
    denied = GroupTrouble(FILTER, Trouble.COMMITS, "Kafka denies it")
    hear(stage, store, denied, denied, GroupTrouble(FILTER, Trouble.HELD, ""))
    assert spread.take_troubles() == [(FILTER, Trouble.COMMITS, "Kafka denies it")]
    hear(stage, store, denied)
    assert spread.take_troubles() == []
    assert undelivered(stage, "app-1") == ("group", f"{FILTER}: commits: Kafka denies it")
    assert undelivered(stage, "d")[0] == "nothing_matches"
    assert sample(stage, "application_groups_in_trouble") == 1
    assert device.inbox == []
    hear(stage, store, GroupTrouble(FILTER, Trouble.COMMITS, ""), GroupPaused(FILTER, True))
    assert spread.take_troubles() == [(FILTER, Trouble.COMMITS, "")]
    assert "which of them distributes" in undelivered(stage, "app-1")[1]
    assert sample(stage, "application_groups_in_trouble") == 0
    hear(stage, store, GroupPaused(FILTER, False))
    assert undelivered(stage, "app-1")[0] == "nothing_matches"
    hear(stage, store, GroupTrouble("", Trouble.READING, "nobody reads who has members"))
    assert spread.take_troubles() == [("", Trouble.READING, "nobody reads who has members")]
    assert undelivered(stage, "app-1")[0] == "group"


def test_what_is_here_is_counted_until_it_is_settled_or_goes() -> None:
    stage, store = spread_stage()
    app = come(stage, "app-1", receive_maximum=1)
    app.take()
    app.subscribe(FILTER, qos=1)
    hear(stage, store)
    used_before = held_bytes(stage.node)
    news = came(1, 2, 3, 4)
    each_bytes = news.messages[0][1].size_bytes
    hear(stage, store, news)
    assert sample(stage, "application_groups_messages") == 4
    assert stage.node.router.queues.spread.budget.used_bytes == 4 * each_bytes
    assert held_bytes(stage.node) >= used_before + 4 * each_bytes
    ((_, packet_id),) = given(app)
    app.send(Puback(packet_id))
    assert sample(stage, "application_groups_messages") == 3
    hear(stage, store, GroupGone(FILTER, [3, 4]))
    assert sample(stage, "application_groups_messages") == 1
    hear(stage, store, GroupEnded(FILTER))
    assert stage.node.router.queues.spread.budget.used_bytes == 0
    assert sample(stage, "application_groups_messages") == 0


def test_the_member_that_is_nobody_is_no_subscription_and_misses_nothing() -> None:
    stage, store = spread_stage()
    publisher = stage.connect("p")
    before = sample(stage, "subscriptions")
    hear(stage, store, GroupBegan(FILTER))
    assert sample(stage, "application_groups") == 1
    assert sample(stage, "subscriptions") == before
    values = SysTopics(stage.node, stage.now_s)._values(stage.now_s)
    assert values["subscriptions/count"] == values["shared_subscriptions/count"] == "0"
    # All members are on other brokers.
    publisher.publish("t", b"1")
    dropped = stage.node.counters.dropped
    assert dropped.get(Reason.OFFLINE_QOS_0, 0) == 0
    app = subscribed(stage, "app-1", FILTER)
    hear(stage, store)
    publisher.publish("t", b"2")
    assert acknowledge(app) == [b"2"]
    app.close()
    publisher.publish("t", b"3")
    assert dropped[Reason.OFFLINE_QOS_0] == 1
    assert sample(stage, "subscriptions") == before + 1


def undelivered(stage: Stage, client_id: str) -> tuple[str, str]:
    found = explain(stage.node, client_id, stage.now_s)
    assert found is not None
    return found["undelivered"]["reason"], found["undelivered"]["text"]


def sample(stage: Stage, name: str) -> float:
    registry = registry_of(View(stage.node, lambda: stage.now_s, lambda: None))
    value = registry.get_sample_value(f"flowguard_{name}")
    assert value is not None
    return value


def test_dead_letter_names_the_filter_of_a_group_of_several_brokers() -> None:
    store = SpreadStore()
    stage = Stage({"session": {**PATTERNS, "dead_letter_topic": "dead"}}, store=store)
    reader = subscribed(stage, "u", "dead/#")
    hear(stage, store, GroupBegan(FILTER))
    message = Publish("t", b"", 1)
    expired = Delivery(message, 1, False, (), stage.now_s)
    hear(stage, store, GroupCame(FILTER, [(1, expired)], False))
    come(stage, "app-1").subscribe(FILTER, qos=1)
    (letter,) = reader.publishes()
    assert ("dead-letter-client", FILTER) in letter.properties.user_properties
