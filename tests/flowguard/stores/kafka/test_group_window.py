"""The part of each broker in a group's partitions: several brokers, and a dictionary as Kafka."""

from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flowguard.errors import CorruptionError, FormatError
from flowguard.records import NEVER_S, Delivery
from flowguard.stores.kafka.groups.capacity import ALL_MAX, HERE_MAX, GroupRoom
from flowguard.stores.kafka.groups.record import decode_group_record, encode_group_record
from flowguard.stores.kafka.groups.window import (
    OFFSETS,
    STRIDE,
    TAGS,
    Found,
    GroupWindows,
    RecordId,
    RecordPlace,
    place_of,
    pos_of,
    tag_of,
)
from flowguard.stores.kafka.window import AckWindow
from flowguard.types import Properties, Publish

PARTITIONS = 2
BROKERS = 2
WRITTEN = 5
"""Records of each partition at the start."""
SIZE = 10
FAR = 2**39
"""An offset beyond all others."""
WRITER = b"writer 1"
TOPIC, OTHER = bytes(16), b"another topic..."
MIB = 1024 * 1024


def at(partition: int, offset: int, topic_id: bytes = TOPIC) -> int:
    return pos_of(RecordPlace(tag_of(topic_id), partition, offset))


def new_windows(room: GroupRoom | None = None) -> GroupWindows:
    windows = GroupWindows(room or GroupRoom(64 * MIB))
    windows.of_topic(TOPIC)
    return windows


def found(floor: int = 0, start: int = 0, end: int = 100) -> Found:
    return Found(AckWindow(floor, floor), start, end)


def read(windows: GroupWindows, partition: int, *offsets: int) -> list[int]:
    """Positions of those that are to be handed out."""
    came = [windows.arrived(partition, each, RecordId(WRITER, each + 1), SIZE) for each in offsets]
    return [each for each in came if each is not None]


def test_a_position_says_topic_partition_and_offset() -> None:
    for place in (
        RecordPlace(0, 0, 0),
        RecordPlace(0, 11, 0),
        RecordPlace(7, 0, 1),
        RecordPlace(TAGS - 1, STRIDE - 1, OFFSETS - 1),
    ):
        assert place_of(pos_of(place)) == place
        assert 0 < pos_of(place) < 2**62


def test_what_is_settled_in_any_order_is_not_read_again_by_the_next_owner() -> None:
    first, second = new_windows(), new_windows()
    first.assigned({0: found()})
    positions = read(first, 0, 0, 1, 2, 3)
    for pos in (positions[0], positions[2]):
        assert first.settle(pos)
    floor, metadata = first.to_commit()[0]
    second.assigned({0: Found(second.committed(floor, metadata), 0, 4)})
    assert second.next_offset(0) == 1
    assert read(second, 0, 1, 2, 3) == [positions[1], positions[3]]


def test_what_is_here_stays_here_where_the_partition_does() -> None:
    windows = new_windows()
    windows.assigned({0: found(), 1: found()})
    here, other = read(windows, 0, 0, 1), read(windows, 1, 0)
    windows.settle(here[0])
    assert windows.assigned({0: found()}) == other
    assert windows.next_offset(0) == 2
    assert windows.share.count == 1
    assert windows.share.size_bytes == SIZE
    windows.settle(here[1])
    floor, metadata = windows.to_commit()[0]
    assert windows.committed(floor, metadata).floor == 2


def test_what_another_owner_has_settled_meanwhile_is_here_no_longer() -> None:
    windows = new_windows()
    windows.assigned({0: found()})
    positions = read(windows, 0, 0, 1, 2)
    window = AckWindow(1, 3)
    window.settle(2, 0)
    assert windows.assigned({0: Found(window, 0, 3)}) == [positions[0], positions[2]]
    assert windows.share.count == 1


def test_what_is_settled_late_counts_when_the_partition_comes_back() -> None:
    windows = new_windows()
    assert not windows.settle(at(0, 1))
    windows.assigned({0: found(end=3)})
    assert read(windows, 0, 0, 1, 2) == [at(0, 0), at(0, 2)]


def test_a_record_that_its_writer_has_repeated_counts_once() -> None:
    windows = new_windows()
    windows.assigned({0: found()})
    numbers = (2, 3, 1, 2, 3)  # One of the first two of three had failed.
    came = [
        windows.arrived(0, offset, RecordId(WRITER, number), SIZE)
        for offset, number in enumerate(numbers)
    ]
    assert came == [at(0, 0), at(0, 1), at(0, 2), None, None]
    other = windows.arrived(0, 5, RecordId(b"writer 2", 1), SIZE)
    assert other == at(0, 5)


def test_what_retention_has_taken_unsettled_is_counted() -> None:
    windows = new_windows()
    windows.assigned({0: found(2, start=10)})
    assert windows.lost_count == 8
    assert read(windows, 0, 10) == [at(0, 10)]
    assert read(windows, 0, 15) == [at(0, 15)]
    assert windows.lost_count == 12
    # The messages in memory are not affected.
    windows.assigned({0: found(10, start=12)})
    assert windows.lost_count == 12


def test_a_gap_costs_what_is_here_not_what_is_missing() -> None:
    """Retention may have taken ten million a day."""
    windows = new_windows()
    windows.assigned({0: found(end=FAR), 1: found(start=FAR, end=FAR)})
    assert windows.lost_count == FAR
    (first, *_) = read(windows, 0, 0, 1, 2)
    windows.settle(at(0, 1))
    assert read(windows, 0, FAR) == [at(0, FAR)]
    assert windows.lost_count == FAR + FAR - 3
    assert windows.share.count == 3
    assert windows.to_commit()[0][0] == FAR
    windows.settle(first)
    windows.settle(at(0, FAR))
    assert windows.share.count == 1
    assert windows.to_commit()[0][0] == FAR + 1


def test_a_floor_that_rises_over_a_gap_tells_how_many_were_not_settled() -> None:
    window = AckWindow(2, 8)
    window.settle(3, SIZE)
    window.release(4, SIZE)
    window.settle(7, SIZE)
    assert window.skip_to(6, 0) == 3
    assert (window.floor, window.settled, window.released) == (6, {7: SIZE}, {})
    window.end = FAR
    assert window.skip_to(FAR, 0) == FAR - 7


def test_a_topic_that_was_made_again_is_read_from_its_beginning() -> None:
    windows = new_windows()
    windows.assigned({0: found()})
    (pos,) = read(windows, 0, 0)
    windows.settle(read(windows, 0, 1)[0])
    floor, metadata = windows.to_commit()[0]
    assert windows.of_topic(OTHER) == [pos]
    assert windows.lost_count == 1
    assert not windows.share.count
    windows.assigned({0: Found(windows.committed(floor, metadata), 0, 5)})
    assert windows.next_offset(0) == 0
    assert read(windows, 0, 0, 1) == [at(0, 0, OTHER), at(0, 1, OTHER)]


def test_an_old_acknowledgement_does_not_settle_a_new_message_at_the_same_offset() -> None:
    windows = new_windows()
    windows.assigned({0: found()})
    old, older = read(windows, 0, 0, 1)
    windows.of_topic(OTHER)
    assert not windows.settle(older)  # While the partition has no owner.
    windows.assigned({0: Found(AckWindow(), 0, 5)})
    new = read(windows, 0, 0, 1)
    assert len(new) == 2
    assert not windows.settle(old)
    floor, metadata = windows.to_commit().get(0, (0, ""))
    assert floor == 0
    assert not windows.committed(floor, metadata).settled
    assert windows.share.count == 2
    assert windows.settle(new[1])


def test_nor_where_servers_have_lost_what_they_had() -> None:
    """A leader that knew less: the topic is the same."""
    windows = new_windows()
    windows.assigned({0: found()})
    old = read(windows, 0, 0, 1)
    assert windows.assigned({0: Found(AckWindow(), 0, 0)}) == old
    assert windows.lost_count == 2
    new = read(windows, 0, 0, 1)
    assert not set(new) & set(old)
    assert not windows.settle(old[0])
    assert windows.share.count == 2
    windows.assigned({1: Found(AckWindow(7, 7), 0, 2)})
    assert windows.next_offset(1) == 0


def test_a_topic_whose_id_has_the_same_tag_is_told_apart_too() -> None:
    same = next(
        each for number in range(100 * TAGS) if tag_of(each := number.to_bytes(16)) == tag_of(OTHER)
    )
    windows = new_windows()
    windows.of_topic(OTHER)
    windows.assigned({0: found()})
    old = read(windows, 0, 0)
    windows.of_topic(same)
    windows.assigned({0: found()})
    assert read(windows, 0, 0) != old


def test_a_damaged_record_is_passed_over_and_counted_once() -> None:
    windows = new_windows()
    windows.assigned({0: found()})
    (first,) = read(windows, 0, 0)
    windows.passed_over(0, 1)
    windows.passed_over(0, 1)
    assert windows.lost_count == 1
    (third,) = read(windows, 0, 2)
    for pos in (first, third):
        windows.settle(pos)
    assert windows.to_commit()[0][0] == 3


def test_all_groups_together_have_a_bound_in_messages_and_in_bytes() -> None:
    for size_bytes, bytes_max in ((SIZE, 1024 * MIB), (64 * 1024, 4 * MIB)):
        room = GroupRoom(bytes_max)
        groups = [new_windows(room) for _ in range(40)]
        offsets = [0] * len(groups)
        for each in groups:
            each.assigned({0: found(end=10**6)})
        for number in range(40 * len(groups)):
            index = number % len(groups)
            windows = groups[index]
            count = windows.share.reserve(size_bytes)
            assert count or windows.share.count  # A group without messages may have one.
            windows.share.reserved()
            for _ in range(count):
                record = RecordId(WRITER, offsets[index])
                windows.arrived(0, offsets[index], record, size_bytes)
                offsets[index] += 1
        assert all(0 < each.share.count <= HERE_MAX for each in groups)
        assert room.messages.used_bytes <= ALL_MAX
        assert room.bytes.used_bytes <= bytes_max + len(groups) * size_bytes
        if size_bytes == SIZE:
            assert room.messages.used_bytes > ALL_MAX // 2
        for windows in groups:
            windows.assigned({})
        assert not room.messages.used_bytes
        assert not room.bytes.used_bytes
        assert not room.messages.holders_count
        assert not room.bytes.holders_count


def test_what_is_being_read_has_its_room_before_it_comes() -> None:
    room = GroupRoom(MIB)
    one, two = new_windows(room), new_windows(room)
    first = one.share.reserve(64 * 1024)
    second = two.share.reserve(64 * 1024)
    assert first > second >= 1
    assert (first + second) * 64 * 1024 <= MIB


def test_a_record_says_who_wrote_it_and_a_damaged_one_is_found_out() -> None:
    delivery = Delivery(Publish("t", b"x", 2), 2, False, (), NEVER_S)
    value = encode_group_record(RecordId(WRITER, 7), delivery)
    record, read_back = decode_group_record(value)
    assert record == RecordId(WRITER, 7)
    assert read_back.message.payload == b"x"
    with pytest.raises(CorruptionError, match="cut short"):
        decode_group_record(value[:5])
    with pytest.raises(CorruptionError, match="cut short"):
        decode_group_record(b"")
    with pytest.raises(FormatError, match="version 9"):
        decode_group_record(b"\x09" + value[1:])


@given(cut=st.integers(0, 200), flips=st.lists(st.tuples(st.integers(0, 199), st.integers(1, 255))))
def test_whatever_is_damaged_in_a_record_is_said_in_one_way(
    cut: int, flips: list[tuple[int, int]]
) -> None:
    properties = Properties(content_type="c", user_properties=(("a", "b"),))
    delivery = Delivery(Publish("t/é", b"x" * 20, 2, properties=properties), 2, False, (7,), 1e9)
    value = bytearray(encode_group_record(RecordId(WRITER, 7), delivery))
    for place, bits in flips:
        if place < len(value):
            value[place] ^= bits
    with suppress(CorruptionError, FormatError):
        decode_group_record(bytes(value[:cut]))


@dataclass
class Broker:
    """A member of the consumer group, or none any more."""

    windows: GroupWindows = field(default_factory=new_windows)
    generation: int = 0
    has: set[int] = field(default_factory=set)
    """Positions that its members have not acknowledged."""


TOPICS = [number.to_bytes(16) for number in range(100)]
"""Ids of a topic that is deleted and made again."""
assert len(set(map(tag_of, TOPICS[:20]))) == 20


class Brokers(RuleBasedStateMachine):
    """Brokers read, settle, commit and die. A coordinator assigns partitions, and rejects members
    of an older generation. The topic may be deleted and made again; committed offsets stay, and
    brokers notice it at the next rebalance only."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[int, int] = dict.fromkeys(range(PARTITIONS), WRITTEN)
        self.committed: dict[int, tuple[int, str]] = {}
        self.brokers = [Broker() for _ in range(BROKERS)]
        self.reader = new_windows()
        self.generation = 0
        self.owners: dict[int, int] = {}
        self.acknowledged: set[int] = set()
        self.topics = iter(TOPICS[1:20])
        self.topic_id = TOPICS[0]
        self.old: set[int] = set()
        """Positions in deleted topics that members still hold."""
        self.rebalance(list(range(PARTITIONS)))

    def window(self, partition: int) -> AckWindow:
        said = self.committed.get(partition)
        self.reader.of_topic(self.topic_id)
        return AckWindow() if said is None else self.reader.committed(*said)

    @rule()
    def delete_the_topic_and_make_it_again(self) -> None:
        topic_id = next(self.topics, None)
        if topic_id is not None:
            self.topic_id = topic_id
            self.logs = dict.fromkeys(range(PARTITIONS), WRITTEN)

    @rule(number=st.integers(0, BROKERS - 1), draw=st.data())
    def acknowledge_what_was_in_a_topic_before(self, number: int, draw: st.DataObject) -> None:
        if self.old:
            pos = draw.draw(st.sampled_from(sorted(self.old)))
            self.brokers[number].windows.settle(pos)

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 5))
    def write(self, partition: int, count: int) -> None:
        self.logs[partition] += count

    @rule(owners=st.lists(st.integers(0, BROKERS - 1), min_size=PARTITIONS, max_size=PARTITIONS))
    def rebalance(self, owners: list[int]) -> None:
        """Some brokers learn of it later, or never: those that get no partition."""
        self.generation += 1
        self.owners = dict(enumerate(owners))
        for number in set(owners):
            self.hear(number)

    @rule(number=st.integers(0, BROKERS - 1))
    def hear(self, number: int) -> None:
        broker = self.brokers[number]
        if broker.generation == self.generation:
            return
        broker.generation = self.generation
        gone = set(broker.windows.of_topic(self.topic_id))
        self.old |= gone
        broker.has -= gone
        found = {
            partition: Found(self.window(partition), 0, self.logs[partition])
            for partition, owner in self.owners.items()
            if owner == number
        }
        broker.has -= set(broker.windows.assigned(found))
        for _, partition, offset in map(place_of, broker.has):
            window = found[partition].window
            assert offset >= window.floor
            assert offset not in window.settled

    @rule()
    def rebalance_that_changes_nothing(self) -> None:
        self.rebalance(list(self.owners.values()))

    @rule(number=st.integers(0, BROKERS - 1), draw=st.data())
    def lend_to_another_broker(self, number: int, draw: st.DataObject) -> None:
        """Another broker reads and settles messages; the owners learn of it when they own them
        again."""
        owners = list(self.owners.values())
        self.rebalance([number] * PARTITIONS)
        for partition in range(PARTITIONS):
            self.read(partition, 5)
        self.acknowledge(number, draw)
        self.commit(number)
        self.rebalance(owners)

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 5))
    def read(self, partition: int, count: int) -> None:
        broker = self.brokers[self.owners[partition]]
        first = broker.windows.next_offset(partition)
        for offset in range(first, min(first + count, self.logs[partition])):
            record = RecordId(WRITER, offset + 1)
            pos = broker.windows.arrived(partition, offset, record, SIZE)
            if pos is not None:
                assert pos not in broker.has
                assert offset not in self.window(partition).settled
                broker.has.add(pos)

    @rule(draw=st.data())
    def acknowledge_all_but_some(self, draw: st.DataObject) -> None:
        for number, broker in enumerate(self.brokers):
            for partition in [each for each, owner in self.owners.items() if owner == number]:
                self.read(partition, 3)
            for _ in range(len(broker.has) // 2):
                self.acknowledge(number, draw)

    @rule(number=st.integers(0, BROKERS - 1), draw=st.data())
    def acknowledge(self, number: int, draw: st.DataObject) -> None:
        broker = self.brokers[number]
        if broker.has:
            pos = draw.draw(st.sampled_from(sorted(broker.has)))
            broker.has.discard(pos)
            self.acknowledged.add(pos)
            broker.windows.settle(pos)

    @rule(number=st.integers(0, BROKERS - 1))
    def commit(self, number: int) -> None:
        broker = self.brokers[number]
        said = broker.windows.to_commit()
        if broker.generation == self.generation:
            self.committed |= said
        else:
            broker.windows.not_committed(said)

    @rule(number=st.integers(0, BROKERS - 1))
    def die(self, number: int) -> None:
        self.brokers[number] = Broker()
        self.rebalance([(number + 1) % BROKERS] * PARTITIONS)

    @invariant()
    def nothing_is_taken_for_settled_that_no_member_has_acknowledged(self) -> None:
        for partition, end in self.logs.items():
            window = self.window(partition)
            done = {*range(window.floor), *window.settled}
            settled = {at(partition, offset, self.topic_id) for offset in done}
            assert settled <= self.acknowledged
            assert window.floor <= end

    @invariant()
    def what_is_here_is_counted(self) -> None:
        for broker in self.brokers:
            assert broker.windows.share.count == len(broker.has)
            assert broker.windows.share.size_bytes == SIZE * len(broker.has)
            assert self.topic_id != TOPICS[0] or not broker.windows.lost_count

    def teardown(self) -> None:
        """In the end everything is acknowledged, and settled."""
        self.rebalance([0] * PARTITIONS)
        for partition in range(PARTITIONS):
            self.read(partition, self.logs[partition])
        broker = self.brokers[0]
        for pos in sorted(broker.has):
            self.acknowledged.add(pos)
            broker.windows.settle(pos)
        broker.has.clear()
        self.commit(0)
        everything = {
            at(partition, offset, self.topic_id)
            for partition, end in self.logs.items()
            for offset in range(end)
        }
        assert self.acknowledged >= everything
        assert all(self.window(each).floor == end for each, end in self.logs.items())


TestBrokers = Brokers.TestCase
TestBrokers.settings = settings(
    stateful_step_count=60, max_examples=4 * settings.default.max_examples
)
