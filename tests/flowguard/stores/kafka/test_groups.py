"""Groups of several brokers on a real Kafka: two stores of one process, no broker around them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from flowguard.errors import StallError
from flowguard.records import (
    MEMBER_PREFIX,
    NEVER_S,
    SPREAD_PREFIX,
    Append,
    Delivery,
    DropSession,
    PutSession,
    Release,
    Settle,
)
from flowguard.stores import MemoryStore
from flowguard.stores.group_feed import GroupBegan, GroupCame, GroupEnded, GroupGone, GroupNews
from flowguard.stores.kafka.group_roster import claim_key, roster_topic
from flowguard.stores.kafka.groups import Groups
from flowguard.stores.kafka.link import KafkaMessage
from flowguard.stores.kafka.store import KafkaStore
from flowguard.types import Publish
from tests.flowguard.stores.kafka.benches import new_prefix, open_store, place_on
from tests.flowguard.stores.kafka.retention import delete_before
from tests.support.kafka import shared_kafka

FILTER = "$share/g/t"
MEMBER, SPREAD = MEMBER_PREFIX + FILTER, SPREAD_PREFIX + FILTER
PARTITIONS = 4
JOIN = PutSession(MEMBER, 0xFFFFFFFF, None, True)


class Side:
    """One broker's store, and what it was told."""

    def __init__(self, groups: str, base: MemoryStore | None = None) -> None:
        place = replace(
            place_on(shared_kafka(), new_prefix()),
            groups_prefix=groups,
            groups_partitions=PARTITIONS,
        )
        self.store: KafkaStore = open_store(base or MemoryStore(), place)
        self.news: list[GroupNews] = []
        self.has: dict[int, bytes] = {}
        """What it is given and has neither settled nor lost, by position."""

    @property
    def groups(self) -> Groups:
        assert self.store.groups is not None
        return self.store.groups

    def hear(self) -> None:
        self.store.maintain()
        for each in self.groups.take_news():
            self.news.append(each)
            if isinstance(each, GroupCame):
                self.has |= {pos: one.message.payload for pos, one in each.messages}
            elif isinstance(each, GroupGone):
                for pos in each.positions:
                    del self.has[pos]

    def publish(self, *payloads: bytes) -> None:
        self.store.commit([self.append(number, each) for number, each in enumerate(payloads)])

    def append(self, number: int, payload: bytes) -> Append:
        delivery = Delivery(Publish("t", payload, 1), 1, False, (), NEVER_S)
        return Append(SPREAD, number, delivery)

    def settle(self, *payloads: bytes) -> None:
        positions = [pos for pos, each in self.has.items() if each in payloads]
        assert len(positions) == len(payloads)
        self.store.commit([Settle(SPREAD, pos) for pos in positions])
        for pos in positions:
            del self.has[pos]


def until(condition: Callable[[], object], *sides: Side) -> None:
    while not condition():
        for side in sides:
            side.hear()


@contextmanager
def sides(groups: str, count: int = 1) -> Iterator[list[Side]]:
    found = [Side(groups) for _ in range(count)]
    try:
        yield found
    finally:
        for side in found:
            side.store.close()


@pytest.mark.slow
def test_what_one_broker_had_and_did_not_settle_is_given_to_the_next_and_nothing_else() -> None:
    groups = new_prefix()
    with sides(groups, 2) as (one, two):
        one.store.commit([JOIN])
        one.groups.want(FILTER, True)
        until(lambda: GroupBegan(FILTER) in two.news, one, two)
        payloads = [b"%d" % number for number in range(2 * PARTITIONS)]
        two.publish(*payloads)
        until(lambda: len(one.has) == len(payloads), one)
        one.settle(b"1", b"6")
        one.store.commit([Release(SPREAD, pos, 0) for pos, each in one.has.items() if each == b"3"])
        one.groups.want(FILTER, False)
        until(lambda: any(isinstance(each, GroupGone) for each in one.news), one)
        assert not {b"0", b"2"} & set(one.has.values())
        two.groups.want(FILTER, True)
        wanted = set(payloads) - {b"1", b"6", b"3"}
        until(lambda: set(two.has.values()) >= wanted, two)
        assert set(two.has.values()) == wanted


@pytest.mark.slow
def test_a_broker_of_an_older_generation_does_not_change_what_is_settled() -> None:
    with sides(new_prefix()) as (one,):
        one.store.commit([JOIN])
        one.groups.want(FILTER, True)
        one.publish(b"0")
        until(lambda: one.has, one)
        consumer, _ = one.groups._consumers[FILTER]
        generation, consumer._generation = consumer._generation, 0
        one.settle(b"0")
        one.hear()
        one.store._link.call(consumer.commit)
        ask = consumer._admin.list_consumer_group_offsets
        committed = one.store._link.call(lambda: ask(consumer._topic))
        assert not any(each.offset for each in committed.values())
        assert consumer.windows.unsaved_count
        consumer._generation = generation
        one.store._link.call(consumer.commit)
        committed = one.store._link.call(lambda: ask(consumer._topic))
        assert [each.offset for each in committed.values() if each.offset] == [1]


@pytest.mark.slow
def test_what_retention_has_taken_is_counted() -> None:
    with sides(new_prefix()) as (one,):
        one.store.commit([JOIN])
        # All of them are in the first partition.
        one.store.commit([one.append(0, b"%d" % number) for number in range(5)])
        found = one.groups._roster.get(FILTER)
        assert found is not None
        delete_before(shared_kafka(), found.topic, 3)
        one.groups.want(FILTER, True)
        until(lambda: len(one.has) == 2, one)
        lost: dict[str, int] = {}
        until(lambda: lost.update(one.store.take_lost()) or lost, one)
        assert lost == {SPREAD: 3}


@pytest.mark.slow
def test_a_topic_that_somebody_deletes_is_made_again_and_the_group_goes_on() -> None:
    with sides(new_prefix()) as (one,):
        one.store.commit([JOIN])
        one.groups.want(FILTER, True)
        one.store.commit([one.append(0, b"%d" % number) for number in range(5)])
        until(lambda: len(one.has) == 5, one)
        found = one.groups._roster.get(FILTER)
        assert found is not None
        one.store._link.delete_topic(found.topic)
        written = False
        while not written:
            with suppress(StallError):
                one.store.commit([one.append(0, b"anew")])
                written = True
        until(lambda: b"anew" in one.has.values(), one)


@pytest.mark.slow
def test_who_was_taken_out_by_an_operator_is_out_unless_it_is_there() -> None:
    groups = new_prefix()
    with sides(groups, 2) as (one, two):
        two.store.commit([JOIN])
        until(lambda: GroupBegan(FILTER) in one.news, one)
        topic = two.groups._roster.get(FILTER)
        key = claim_key(two.groups._broker, FILTER)
        one.store._link.append({(roster_topic(groups), 0): [KafkaMessage(key, None)]})
        until(lambda: GroupEnded(FILTER) in one.news, one)
        until(lambda: one.news.count(GroupBegan(FILTER)) == 2, one, two)
        again = two.groups._roster.get(FILTER)
        assert again is not None
        assert again != topic
        two.store.commit([DropSession(MEMBER)])
        until(lambda: one.news.count(GroupEnded(FILTER)) == 2, one)


@pytest.mark.slow
def test_a_broker_that_starts_knows_all_groups_and_one_that_leaves_ends_none_of_others() -> None:
    groups = new_prefix()
    with sides(groups) as (one,):
        one.store.commit([JOIN])
        with sides(groups) as (two,):
            assert two.groups.take_news() == [GroupBegan(FILTER)]
            two.store.commit([JOIN])
            one.store.commit([DropSession(MEMBER)])
            assert one.groups._roster.get(FILTER) is not None
            two.store.commit([DropSession(MEMBER)])
            until(lambda: GroupEnded(FILTER) in one.news, one)
