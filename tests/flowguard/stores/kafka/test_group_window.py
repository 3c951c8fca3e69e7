"""What brokers have of a group's partitions: several of them, and a Kafka that is a dictionary."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flowguard.errors import CorruptionError
from flowguard.records import NEVER_S, Delivery
from flowguard.stores.kafka.group_record import decode_group_record, encode_group_record
from flowguard.stores.kafka.group_window import Found, GroupWindows, RecordId, place_of, pos_of
from flowguard.stores.kafka.window import AckWindow
from flowguard.types import Publish

PARTITIONS = 2
BROKERS = 2
WRITTEN = 5
"""Records of each partition at the start."""
SIZE = 10
WRITER = b"writer 1"


def found(floor: int = 0, start: int = 0, end: int = 100) -> Found:
    return Found(AckWindow(floor, floor), start, end)


def read(windows: GroupWindows, partition: int, *offsets: int) -> list[int]:
    """Positions of those that are to be handed out."""
    came = [windows.arrived(partition, each, RecordId(WRITER, each + 1), SIZE) for each in offsets]
    return [each for each in came if each is not None]


def test_a_position_says_partition_and_offset() -> None:
    for partition, offset in ((0, 0), (11, 0), (0, 1), (999, 2**40)):
        assert place_of(pos_of(partition, offset)) == (partition, offset)
        assert pos_of(partition, offset) > 0


def test_what_is_settled_in_any_order_is_not_read_again_by_the_next_owner() -> None:
    first, second = GroupWindows(), GroupWindows()
    first.assigned({0: found()})
    positions = read(first, 0, 0, 1, 2, 3)
    for pos in (positions[0], positions[2]):
        assert first.settle(pos)
    floor, metadata = first.to_commit()[0]
    second.assigned({0: Found(AckWindow.decode(floor, metadata), 0, 4)})
    assert second.next_offset(0) == 1
    assert read(second, 0, 1, 2, 3) == [positions[1], positions[3]]


def test_what_is_here_stays_here_where_the_partition_does() -> None:
    windows = GroupWindows()
    windows.assigned({0: found(), 1: found()})
    here, other = read(windows, 0, 0, 1), read(windows, 1, 0)
    windows.settle(here[0])
    assert windows.assigned({0: found()}) == other
    assert windows.next_offset(0) == 2
    assert windows.count == 1
    assert windows.size_bytes == SIZE
    windows.settle(here[1])
    floor, metadata = windows.to_commit()[0]
    assert AckWindow.decode(floor, metadata).floor == 2


def test_what_another_owner_has_settled_meanwhile_is_here_no_longer() -> None:
    windows = GroupWindows()
    windows.assigned({0: found()})
    positions = read(windows, 0, 0, 1, 2)
    window = AckWindow(1, 3)
    window.settle(2, 0)
    assert windows.assigned({0: Found(window, 0, 3)}) == [positions[0], positions[2]]
    assert windows.count == 1


def test_what_is_settled_late_counts_when_the_partition_comes_back() -> None:
    windows = GroupWindows()
    assert not windows.settle(pos_of(0, 1))
    windows.assigned({0: found(end=3)})
    assert read(windows, 0, 0, 1, 2) == [pos_of(0, 0), pos_of(0, 2)]


def test_a_record_that_its_writer_has_repeated_counts_once() -> None:
    windows = GroupWindows()
    windows.assigned({0: found()})
    numbers = (2, 3, 1, 2, 3)  # Of the first two of three one had failed.
    came = [
        windows.arrived(0, offset, RecordId(WRITER, number), SIZE)
        for offset, number in enumerate(numbers)
    ]
    assert came == [pos_of(0, 0), pos_of(0, 1), pos_of(0, 2), None, None]
    other = windows.arrived(0, 5, RecordId(b"writer 2", 1), SIZE)
    assert other == pos_of(0, 5)


def test_what_retention_has_taken_unsettled_is_counted() -> None:
    windows = GroupWindows()
    windows.assigned({0: found(2, start=10)})
    assert windows.lost_count == 8
    assert read(windows, 0, 10) == [pos_of(0, 10)]
    assert read(windows, 0, 15) == [pos_of(0, 15)]
    assert windows.lost_count == 12
    # What is here it cannot take.
    windows.assigned({0: found(10, start=12)})
    assert windows.lost_count == 12


def test_a_topic_that_was_made_anew_is_read_from_its_beginning() -> None:
    windows = GroupWindows()
    windows.assigned({0: found()})
    (pos,) = read(windows, 0, 0)
    assert windows.assigned({0: Found(AckWindow(), 0, 0)}) == [pos]
    assert windows.next_offset(0) == 0
    assert windows.lost_count == 1
    windows.assigned({1: Found(AckWindow(7, 7), 0, 2)})
    assert windows.next_offset(1) == 0


def test_a_record_says_who_wrote_it_and_a_damaged_one_is_found_out() -> None:
    delivery = Delivery(Publish("t", b"x", 2), 2, False, (), NEVER_S)
    value = encode_group_record(RecordId(WRITER, 7), delivery)
    record, read_back = decode_group_record(value)
    assert record == RecordId(WRITER, 7)
    assert read_back.message.payload == b"x"
    with pytest.raises(CorruptionError, match="cut short"):
        decode_group_record(value[:5])
    with pytest.raises(CorruptionError, match="version 9"):
        decode_group_record(b"\x09" + value[1:])


@dataclass
class Broker:
    """A member of the consumer group, or none any more."""

    windows: GroupWindows = field(default_factory=GroupWindows)
    generation: int = 0
    has: set[int] = field(default_factory=set)
    """Positions that its members have not acknowledged."""


class Brokers(RuleBasedStateMachine):
    """Brokers read, settle, commit and die; a coordinator gives partitions out and refuses who
    speaks of an older generation."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[int, int] = dict.fromkeys(range(PARTITIONS), WRITTEN)
        self.committed: dict[int, tuple[int, str]] = {}
        self.brokers = [Broker() for _ in range(BROKERS)]
        self.generation = 0
        self.owners: dict[int, int] = {}
        self.acknowledged: set[int] = set()
        self.rebalance(list(range(PARTITIONS)))

    def window(self, partition: int) -> AckWindow:
        said = self.committed.get(partition)
        return AckWindow() if said is None else AckWindow.decode(*said)

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 5))
    def write(self, partition: int, count: int) -> None:
        self.logs[partition] += count

    @rule(owners=st.lists(st.integers(0, BROKERS - 1), min_size=PARTITIONS, max_size=PARTITIONS))
    def rebalance(self, owners: list[int]) -> None:
        """Some brokers hear of it later, or never: those that get nothing."""
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
        found = {
            partition: Found(self.window(partition), 0, self.logs[partition])
            for partition, owner in self.owners.items()
            if owner == number
        }
        broker.has -= set(broker.windows.assigned(found))
        for partition, offset in map(place_of, broker.has):
            window = found[partition].window
            assert offset >= window.floor
            assert offset not in window.settled

    @rule()
    def rebalance_that_changes_nothing(self) -> None:
        self.rebalance(list(self.owners.values()))

    @rule(number=st.integers(0, BROKERS - 1), draw=st.data())
    def lend_to_another_broker(self, number: int, draw: st.DataObject) -> None:
        """It reads and settles something; those who had it hear of it when they have it again."""
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
            assert {pos_of(partition, offset) for offset in done} <= self.acknowledged
            assert window.floor <= end

    @invariant()
    def what_is_here_is_counted(self) -> None:
        for broker in self.brokers:
            assert broker.windows.count == len(broker.has)
            assert broker.windows.size_bytes == SIZE * len(broker.has)
            assert not broker.windows.lost_count

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
            pos_of(partition, offset)
            for partition, end in self.logs.items()
            for offset in range(end)
        }
        assert self.acknowledged == everything
        assert all(self.window(each).floor == end for each, end in self.logs.items())


TestBrokers = Brokers.TestCase
TestBrokers.settings = settings(
    stateful_step_count=60, max_examples=4 * settings.default.max_examples
)
