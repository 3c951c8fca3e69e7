"""The common behaviour of all layouts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.errors import CorruptionError, StoreError
from flowguard.stores.log.generations import Generation, Retention
from flowguard.stores.log.iterators import Ahead
from flowguard.stores.log.layout import instant_of, stamp_at
from flowguard.stores.log.logged import decode_logged
from flowguard.stores.log.message_log import MessageLog, shard_of
from flowguard.stores.log.replays import LogPlace, read_next
from tests.flowguard.stores.log.logs import LAYOUTS, NOW_S, MemoryLog, stamps
from tests.flowguard.stores.log.texts import TOPICS, filters, match_any

pytestmark = pytest.mark.parametrize("layout", LAYOUTS)
PUBLISHERS = st.sampled_from(["p", "q", "r"])
MANY = st.lists(st.tuples(PUBLISHERS, TOPICS, st.sampled_from([0, 0, 0.02, 1])), max_size=40)


@given(MANY, st.lists(filters(), min_size=1, max_size=3), st.integers(0, 40))
def test_a_replay_is_what_a_plain_list_says(
    layout: str, many: list[tuple[str, str, float]], wanted: list[str], first: int
) -> None:
    log = MemoryLog(layout)
    plain = []
    for publisher, topic, pause_s in many:
        log.pass_s(pause_s)
        plain.append((*log.append(publisher, topic), publisher, topic))
    start = plain[first][0] if first < len(plain) else 0
    expected = [each for each in plain if each[0] >= start and match_any(wanted, each[2])]
    found = log.replay(*wanted, start=start)
    described = [(each.stamp, each.publisher, each.message.topic) for each in found]
    assert sorted(described) == expected
    for publisher in "pqr":
        for topic in {each[2] for each in expected}:
            of_both = [each[0] for each in described if each[1:] == (publisher, topic)]
            assert of_both == sorted(of_both)


@given(MANY, filters(), st.integers(1, 7))
def test_reading_in_pieces_is_reading_at_once(
    layout: str, many: list[tuple[str, str, float]], wanted: str, count: int
) -> None:
    log = MemoryLog(layout)
    for publisher, topic, pause_s in many:
        log.pass_s(pause_s)
        log.append(publisher, topic)
    for iterator in log.iterators(wanted).values():
        assert log.read(iterator, count) == log.read(iterator)


def test_who_has_no_filter_any_more_in_the_middle_of_a_pass_reads_to_its_end(layout: str) -> None:
    log = MemoryLog(layout)
    log.append("p", "a", "b", "c")
    place = LogPlace(0).encode()
    batch = read_next(log.log, place, {}, ["#"], 1, 10_000)
    assert (len(batch.messages), batch.is_done) == (1, False)
    rest = read_next(log.log, batch.place, {}, [], 10, 10_000)
    assert (rest.messages, rest.is_done) == ([], True)


def test_a_restart_goes_on_where_the_iterator_stands(layout: str) -> None:
    log = MemoryLog(layout, shards=1)
    written = log.append("p", "a", "b", "c", "a", "b")
    page = log.log.next(log.iterators("#").popitem()[1], 2, 10_000)
    log.reopen()
    rest, _, _ = log.read(page.iterator)
    assert sorted(stamps([*page.messages, *rest])) == written


def test_nothing_is_passed_over_because_it_was_written_late(layout: str) -> None:
    """The published problem: `foo/1` gets a message while the reader is at `foo/2` already."""
    log = MemoryLog(layout, shards=1)
    (iterator,) = log.iterators("foo/+").values() or [None]
    log.append("p", *["foo/1", "foo/2", "foo/3"] * 2)
    (iterator,) = log.iterators("foo/+").values()
    found = []
    while True:
        page = log.log.next(iterator, 1, 10_000)
        found += page.messages
        iterator = page.iterator
        if len(found) < 60:
            log.append("p", "foo/1", "foo/2", "foo/3")
        elif page.ahead is Ahead.TAIL:
            break
    everything = stamps(log.replay("foo/+"))
    assert sorted(stamps(found)) == sorted(everything)
    assert len(set(everything)) == len(everything)


def test_an_idle_shard_moves_on_by_itself(layout: str) -> None:
    log = MemoryLog(layout, shards=2)
    log.append("p", "t")
    idle = 1 - shard_of("p", 2)
    iterator = {s.shard: i for s, i in log.iterators("#").items()}[idle]
    for _ in range(3):
        log.append("p", "t")
        found, iterator, ahead = log.read(iterator)
        assert (found, ahead, iterator.after) == ([], Ahead.TAIL, log.stamp)


def test_messages_of_a_publisher_are_in_one_shard(layout: str) -> None:
    log = MemoryLog(layout, shards=4)
    log.append("p", "a", "b/c", "d")
    found = {s: stamps(log.read(i)[0]) for s, i in log.iterators("#").items()}
    assert [len(each) for each in found.values() if each] == [3]
    assert [s.shard for s, each in found.items() if each] == [shard_of("p", 4)]


def test_a_message_is_stored_once_for_any_number_of_subscribers(layout: str) -> None:
    """Source: EMQX, "Regular Sessions" and "Durable Sessions": stored exactly once per replica."""
    log = MemoryLog(layout)
    log.append("p", "t/1", "t/2")
    (space,) = log.home.spaces.values()
    before = len(space._keys)
    readers = [stamps(log.replay(f"t/{n % 2 + 1}")) for n in range(100)]
    assert readers[0] == readers[2] != readers[1]
    assert len(space._keys) == before
    assert sum(map(log.log.count_in, log.log.get_streams())) == 2


def test_ids_are_deterministic(layout: str) -> None:
    one, other = MemoryLog(layout), MemoryLog(layout)
    for log in (one, other):
        log.append("p", "a/b", "$x", "a")
    assert [s._keys for s in one.home.spaces.values()] == [
        s._keys for s in other.home.spaces.values()
    ]


def test_a_sealed_generation_ends_and_the_next_one_goes_on(layout: str) -> None:
    log = MemoryLog(layout, shards=1)
    first = log.append("p", "t", "t")
    log.log.roll()
    second = log.append("p", "t")
    low, high = log.log.get_streams()
    assert (low.generation, high.generation) == (1, 2)
    found, iterator, ahead = log.read(log.log.make_iterator(low, ["t"]))
    assert (stamps(found), ahead) == (first, Ahead.END)
    assert log.read(iterator) == ([], iterator, Ahead.END)
    found, _, ahead = log.read(log.log.make_iterator(high, ["t"]))
    assert (stamps(found), ahead) == (second, Ahead.TAIL)
    assert log.log.get_streams(second[0]) == [high]


def test_a_pass_that_was_under_way_when_its_generation_ended_goes_on(layout: str) -> None:
    log = MemoryLog(layout, shards=1)
    written = log.append("p", "a", "b")
    page = log.log.next(log.iterators("#").popitem()[1], 1, 10_000)
    written += log.append("p", "a", "b")
    log.log.roll()
    log.append("p", "a")
    found, _, ahead = log.read(page.iterator)
    assert ahead is Ahead.END
    assert sorted(stamps([*page.messages, *found])) == written


def test_the_layout_of_a_generation_stays_as_it_was(layout: str) -> None:
    log = MemoryLog("reference")
    first = log.append("p", "a/b")
    log.layout, log.shards = layout, 7
    log.reopen()
    second = log.append("p", "a/b")
    log.log.roll()
    third = log.append("p", "a/b")
    assert [(each.layout, each.shards) for each in log.log.generations] == [
        ("reference", 2),
        (layout, 7),
    ]
    assert stamps(log.replay("a/+")) == first + second + third


def test_a_generation_lasts_an_eighth_of_the_period(layout: str) -> None:
    log = MemoryLog(layout, retention=Retention(800, 2**40))
    assert not log.log.maintain(NOW_S)
    log.append("p", "t")
    assert not log.log.maintain(NOW_S + 99)
    log.pass_s(100)
    assert log.log.maintain(NOW_S + 100)
    assert not log.log.maintain(NOW_S + 799), "one without messages stays the current one"
    log.append("p", "t")
    assert not log.log.maintain(NOW_S + 199)


def test_what_is_older_than_the_period_is_dropped_and_counted(layout: str) -> None:
    log = MemoryLog(layout, shards=1, retention=Retention(800, 2**40))
    log.append("p", "t", "t")
    (iterator,) = log.iterators("t").values()
    log.pass_s(100)
    log.append("p", "t")
    while log.log.maintain(instant_of(log.stamp)):
        pass
    assert len(log.replay("t")) == 3
    log.pass_s(801)
    kept = log.append("p", "t")
    while log.log.maintain(instant_of(log.stamp)):
        pass
    assert stamps(log.replay("t")) == kept
    page = log.log.next(iterator, 9, 10_000)
    assert (page.messages, page.ahead, page.lost_count) == ([], Ahead.END, 3)
    assert log.log.lost_count(iterator.after) == 3
    log.reopen()
    assert log.log.lost_count(iterator.after) == 3
    assert log.log.lost_count(log.stamp) == 0
    assert list(log.home.spaces) == [2]


def test_what_is_beyond_the_bytes_is_dropped(layout: str) -> None:
    log = MemoryLog(layout, retention=Retention(2**40, 4_000))
    for _ in range(200):
        log.append("p", "some/topic")
        while log.log.maintain(instant_of(log.stamp)):
            pass
        assert sum(each.size_bytes for each in log.log.generations) <= 4_000
    found = stamps(log.replay("#"))
    assert found == list(range(found[0], log.stamp + 1))
    assert len(log.log.generations) > 4


def test_a_drop_or_creation_that_was_cut_short_is_finished(layout: str) -> None:
    log = MemoryLog(layout)
    log.append("p", "t")
    log.log.roll()
    spaces = dict(log.home.spaces)
    log.log.drop(1)
    log.home.spaces.update(spaces)
    log.home.create(9)
    log.reopen()
    assert list(log.home.spaces) == [2]
    assert log.replay("#") == []
    for number in (1, 2):
        with pytest.raises(StoreError, match="not sealed"):
            log.log.drop(number)


def test_records_that_are_damaged_are_refused(layout: str) -> None:
    record = Generation(1, layout, 4, 1).encode()
    assert Generation.decode(1, record) == Generation(1, layout, 4, 1)
    for damaged in (record[:-1], b"\x09" + record[1:], record[:1] + b"\x77" + record[2:]):
        with pytest.raises(CorruptionError):
            Generation.decode(1, damaged)
    log = MemoryLog(layout)
    log.append("publisher", "t", expires_at_s=5.5)
    value = max(log.home.spaces[1]._values.values(), key=len)
    assert decode_logged(7, value).expires_at_s == 5.5
    for damaged in (value[:2], value[:8], value[:14], b"\x7f" + value[1:]):
        with pytest.raises(CorruptionError):
            decode_logged(7, damaged)


def test_stamps_are_instants_and_back(layout: str) -> None:
    assert instant_of(stamp_at(NOW_S)) == NOW_S
    assert stamp_at(0) == 0
    assert isinstance(MemoryLog(layout).log, MessageLog)
