"""Groups of several brokers on a real Kafka: two stores of one process, no broker around them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")


from flowguard.errors import StallError
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
)
from flowguard.stores import MemoryStore
from flowguard.stores.group_feed import (
    GroupBegan,
    GroupCame,
    GroupEnded,
    GroupGone,
    GroupNews,
    GroupTrouble,
    Trouble,
)
from flowguard.stores.kafka.connection.access import access_of
from flowguard.stores.kafka.connection.driver import commit_offsets
from flowguard.stores.kafka.connection.link import KafkaMessage
from flowguard.stores.kafka.groups import renewal as group_renewal
from flowguard.stores.kafka.groups.groups import Groups
from flowguard.stores.kafka.groups.roster import claim_key, roster_topic
from flowguard.stores.kafka.store import KafkaStore
from flowguard.stores.kafka.topics import KafkaPlace
from flowguard.types import Publish
from tests.flowguard.stores.kafka.benches import new_prefix, open_store, place_on
from tests.flowguard.stores.kafka.deletion import delete_topic
from tests.flowguard.stores.kafka.retention import delete_before
from tests.support.guarded_kafka import guarded_kafka
from tests.support.kafka import shared_kafka
from tests.support.kafka_rules import deny

FILTER = "$share/g/t"
MEMBER, SPREAD = key_of(SinkKind.MEMBERS, FILTER), key_of(SinkKind.SPREAD, FILTER)
PARTITIONS = 4
JOIN = PutSession(MEMBER, 0xFFFFFFFF, None, True)


class Side:
    """One broker's store, and the news that it got."""

    def __init__(
        self, groups: str, base: MemoryStore | None = None, place: KafkaPlace | None = None
    ) -> None:
        place = replace(
            place or place_on(shared_kafka(), new_prefix()),
            groups_prefix=groups,
            groups_partitions=PARTITIONS,
        )
        self.store: KafkaStore = open_store(base or MemoryStore(), place)
        self.news: list[GroupNews] = []
        self.has: dict[int, bytes] = {}
        """Payloads that it got and has neither settled nor lost, by position."""

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

    def topic(self) -> str:
        found = self.groups._roster.get(FILTER)
        assert found is not None
        return found.topic

    def make(self, topic: str, partitions: int) -> None:
        """By hand."""
        while not self.store._link.create_topic(topic, partitions, 1, {}):
            assert topic

    def troubles(self, trouble: Trouble) -> list[str]:
        """Return the reason of each report; it is "" when the trouble has ended."""
        return [
            each.why
            for each in self.news
            if isinstance(each, GroupTrouble) and each.trouble is trouble
        ]

    def publish_at_last(self, *ops: StoreOp) -> None:
        """The store may want the same batch again, as long as a topic is missing."""
        while True:
            try:
                self.store.commit(list(ops))
            except StallError:
                continue
            return

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
        time.sleep(0.01)
        for side in sides:
            side.hear()


@contextmanager
def again(groups: str, base: MemoryStore) -> Iterator[Side]:
    """The broker that has this data directory starts again."""
    side = Side(groups, base)
    try:
        yield side
    finally:
        side.store.close()


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
        member, consumer._member = consumer._member, (0, consumer._member[1])
        one.settle(b"0")
        one.hear()
        one.store._link.call(consumer.commit)
        ask = consumer._admin.list_consumer_group_offsets
        committed = one.store._link.call(lambda: ask(consumer._topic))
        assert not any(each.offset for each in committed.values())
        assert consumer.windows.unsaved_count
        consumer._member = member
        one.store._link.call(consumer.commit)
        committed = one.store._link.call(lambda: ask(consumer._topic))
        assert [each.offset for each in committed.values() if each.offset] == [1]


@pytest.mark.slow
def test_what_is_committed_is_committed_anew_while_a_group_sleeps_and_not_while_it_is_read() -> (
    None
):
    with sides(new_prefix(), 2) as (one, two):
        one.store.commit([JOIN])
        two.store.commit([JOIN])
        one.groups.want(FILTER, True)
        one.publish(b"0", b"1")
        until(lambda: len(one.has) == 2, one)
        one.settle(b"0")
        until(lambda: 1 in committed_of(one), one)
        two.groups.renew()
        until(lambda: not two.groups._to_renew, two)
        assert one.groups._consumers[FILTER][0]._member[0] > 0
        before = committed_of(one)
        one.groups.want(FILTER, False)
        until(lambda: not one.groups._consumers and not one.groups._leaving, one)
        commits: list[object] = []

        async def note(*args: object) -> None:
            await commit_offsets(*args)  # type: ignore[arg-type]
            commits.append(args)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(group_renewal, "commit_offsets", note)
            two.groups.renew()
            until(lambda: commits, two)
        until(lambda: not two.groups._to_renew, two)
        assert committed_of(two) == before


def committed_of(side: Side) -> list[int]:
    """Offsets of all partitions of which any is committed."""
    found = side.store._link.call(
        lambda: side.groups._admin.list_consumer_group_offsets(side.topic())
    )
    return sorted(each.offset for each in found.values())


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
        delete_topic(shared_kafka(), found.topic)
        one.publish_at_last(one.append(0, b"anew"))
        until(lambda: b"anew" in one.has.values(), one)


@pytest.mark.slow
def test_an_old_acknowledgement_settles_nothing_of_a_topic_that_was_deleted_and_made_again() -> (
    None
):
    base, groups = MemoryStore(), new_prefix()
    one = Side(groups, base)
    one.store.commit([JOIN])
    one.groups.want(FILTER, True)
    old, new = [b"old %d" % number for number in range(5)], [b"new %d" % n for n in range(5)]
    one.store.commit([one.append(0, each) for each in old])
    until(lambda: len(one.has) == len(old), one)
    # In the hands of members.
    positions = [pos for pos, each in one.has.items() if each in old]
    topic = one.topic()
    delete_topic(shared_kafka(), topic)
    one.make(topic, PARTITIONS)
    one.publish_at_last(*[one.append(0, each) for each in new])
    until(lambda: set(new) <= set(one.has.values()), one)
    one.store.commit([Settle(SPREAD, pos) for pos in positions])
    one.store.commit([Release(SPREAD, pos, 0) for pos in positions])
    one.hear()
    one.store.close()
    with again(groups, base) as two:
        two.groups.want(FILTER, True)
        until(lambda: set(new) <= set(two.has.values()), two)
        assert set(two.has.values()) == set(new)


@pytest.mark.slow
def test_a_damaged_record_is_said_and_counted_and_the_group_goes_on() -> None:
    with sides(new_prefix()) as (one,):
        one.store.commit([JOIN])
        one.groups.want(FILTER, True)
        one.store._link.append({(one.topic(), 0): [KafkaMessage(b"k", b"\x01damaged")]})
        one.store.commit([one.append(0, b"behind")])
        until(lambda: b"behind" in one.has.values(), one)
        (said,) = one.troubles(Trouble.RECORD)
        assert f"partition 0 of {one.topic()}, offset 0" in said
        lost: dict[str, int] = {}
        until(lambda: lost.update(one.store.take_lost()) or lost, one)
        assert lost == {SPREAD: 1}


@pytest.mark.slow
def test_a_batch_that_a_disk_has_damaged_holds_its_partition_and_no_other() -> None:
    with sides(new_prefix()) as (one,):
        one.store.commit([JOIN])
        for payload in (b"0", b"1", b"2"):
            one.store.commit([one.append(0, payload)])
        one.store.commit([one.append(1, b"other")])
        (node,) = shared_kafka().nodes
        damage_batch(node.folder / "data" / f"{one.topic()}-0", 1)
        one.groups.want(FILTER, True)
        until(lambda: set(one.has.values()) == {b"0", b"other"}, one)
        until(lambda: one.troubles(Trouble.HELD), one)
        (said,) = one.troubles(Trouble.HELD)
        assert f"partition 0 of {one.topic()} from offset 1 on" in said
        one.store.commit([one.append(1, b"later")])
        until(lambda: b"later" in one.has.values(), one)
        assert one.troubles(Trouble.READING)[-1] == ""
        assert b"2" not in one.has.values()
        assert not one.store.take_lost()


def damage_batch(folder: Path, number: int) -> None:
    """Turn a bit in the last byte of one of a partition's batches, as a disk may."""
    file = folder / f"{0:020}.log"
    data, start = bytearray(file.read_bytes()), 0
    for _ in range(number):
        start += 12 + int.from_bytes(data[start + 8 : start + 12])
    end = start + 12 + int.from_bytes(data[start + 8 : start + 12])
    with file.open("r+b") as out:
        out.seek(end - 1)
        out.write(bytes([data[end - 1] ^ 1]))


@pytest.mark.slow
def test_a_topic_with_fewer_partitions_is_said_and_given_the_others() -> None:
    """As servers make one by themselves (auto.create.topics.enable)."""
    with sides(new_prefix()) as (one,):
        one.store.commit([JOIN])
        topic = one.topic()
        delete_topic(shared_kafka(), topic)
        one.make(topic, 1)
        one.groups.want(FILTER, True)
        payloads = [b"%d" % number for number in range(2 * PARTITIONS)]
        one.publish_at_last(*[one.append(*each) for each in enumerate(payloads)])
        until(lambda: set(one.has.values()) == set(payloads), one)
        assert one.store._link.partitions_of(topic) == PARTITIONS
        (said,) = {*filter(None, one.troubles(Trouble.TOPIC))}  # A node may be late.
        assert said.startswith(f"{topic} was made by another program, with 1 partitions")


@pytest.mark.slow
def test_a_server_that_makes_topics_by_itself_makes_no_smaller_group() -> None:
    server = guarded_kafka().server
    one = Side(new_prefix(), place=place_on(server, new_prefix()))
    one.store.commit([JOIN])
    one.groups.want(FILTER, True)
    one.publish(b"old")
    until(lambda: one.has, one)
    delete_topic(server, one.topic())
    until(lambda: any(one.troubles(Trouble.READING)), one)
    payloads = [b"%d" % number for number in range(2 * PARTITIONS)]
    one.publish_at_last(*[one.append(*each) for each in enumerate(payloads)])
    until(lambda: set(payloads) <= set(one.has.values()), one)
    assert one.store._link.partitions_of(one.topic()) == PARTITIONS
    one.store.close()


@pytest.mark.slow
def test_acknowledgements_that_kafka_does_not_take_are_said_and_kept_until_it_does() -> None:
    guarded, groups = guarded_kafka(), new_prefix()
    access = access_of(guarded.settings())
    base, place = MemoryStore(), place_on(guarded.server, new_prefix())
    place = replace(place, servers=guarded.address, access=access)
    one = Side(groups, base, place)
    one.store.commit([JOIN])
    one.groups.want(FILTER, True)
    one.publish(*(b"%d" % number for number in range(300)))
    until(lambda: len(one.has) == 300, one)
    left = dict(one.has)
    deny(guarded.server, one.topic(), is_denied=True)
    while not any(one.troubles(Trouble.COMMITS)):  # Not all of Kafka knows the rule at once.
        pos, _ = left.popitem()
        one.publish_at_last(Release(SPREAD, pos, 0))  # It waits rather than end the broker.
        one.hear()
        time.sleep(0.05)
    assert "denies it" in one.troubles(Trouble.COMMITS)[-1]
    deny(guarded.server, one.topic(), is_denied=False)
    until(lambda: one.troubles(Trouble.COMMITS)[-1] == "", one)
    until(lambda: one.troubles(Trouble.READING)[-1] == "", one)
    one.store.close()
    two = Side(groups, base, place)
    two.groups.want(FILTER, True)
    until(lambda: len(two.has) >= len(left), two)
    assert set(two.has.values()) == set(left.values())
    two.store.close()


@pytest.mark.slow
def test_a_topic_that_is_gone_is_made_again_though_nobody_publishes() -> None:
    with sides(new_prefix()) as (one,):
        one.store.commit([JOIN])
        one.groups.want(FILTER, True)
        one.publish(b"0")
        until(lambda: one.has, one)
        topic = one.topic()
        delete_topic(shared_kafka(), topic)
        until(lambda: one.store._link.partitions_of(topic) == PARTITIONS, one)
        until(lambda: one.troubles(Trouble.READING)[-1:] == [""], one)


@pytest.mark.slow
def test_who_was_taken_out_by_an_operator_is_out_unless_it_is_there() -> None:
    groups = new_prefix()
    with sides(groups, 2) as (one, two):
        two.store.commit([JOIN])
        until(lambda: GroupBegan(FILTER) in one.news, one)
        topic = two.groups._roster.get(FILTER)
        key = claim_key(two.groups._claims._broker, FILTER)
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
