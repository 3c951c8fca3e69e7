"""Gossip: records are merged in any order; identities of nodes; and the records that are sent."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.cluster.pressure import LOST_S, PressureRecord
from flowguard.flow.load.signals import TICK_S, Signal
from tests.flowguard.cluster.clusters import NODES, cluster, pressures, record, windows


def numbered(node: str, incarnation: int, sequence: int) -> PressureRecord:
    """A node's record of that number: one number never says two things."""
    mix = hash((incarnation, sequence)) % 97
    return PressureRecord(
        node,
        incarnation,
        sequence,
        1.0 + mix,
        mix / 97 * 16,
        Signal.LOOP,
        mix,
        leaving=mix % 5 == 0,
    )


any_numbered = st.builds(
    numbered, st.sampled_from((*NODES, "own")), st.integers(1, 3), st.integers(1, 4)
)


def outcome(batches: list[list[PressureRecord]]) -> list[PressureRecord]:
    here = cluster()
    for batch in batches:
        for one in batch:
            here.merge(one, 0.0)
    return here.peers(0.0)


@given(st.lists(any_numbered), st.randoms(use_true_random=False))
def test_merge_is_commutative(records: list[PressureRecord], random: object) -> None:
    shuffled = list(records)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert outcome([records]) == outcome([shuffled])


@given(st.lists(any_numbered), st.lists(any_numbered), st.lists(any_numbered))
def test_merge_is_associative(
    first: list[PressureRecord], second: list[PressureRecord], third: list[PressureRecord]
) -> None:
    """A relay passes on the newest record of each node, from any sender."""

    def relayed(*batches: list[PressureRecord]) -> list[PressureRecord]:
        newest: dict[str, PressureRecord] = {}
        for one in (one for batch in batches for one in batch):
            if one.node not in newest or one.supersedes(newest[one.node]):
                newest[one.node] = one
        return list(newest.values())

    left = outcome([relayed(relayed(first, second), third)])
    assert left == outcome([relayed(first, relayed(second, third))])
    assert left == outcome([first, second, third])


@given(st.lists(any_numbered, min_size=1), st.integers(min_value=0))
def test_merge_is_idempotent(records: list[PressureRecord], choice: int) -> None:
    again = records[choice % len(records)]
    assert outcome([records]) == outcome([records, [again]])
    here = cluster()
    for one in records:
        here.merge(one, 0.0)
    assert not any(here.merge(one, 1.0) for one in records)


@given(st.lists(any_numbered))
def test_merge_keeps_the_highest_incarnation_and_sequence(records: list[PressureRecord]) -> None:
    newest = {
        node: max(
            (one for one in records if one.node == node),
            key=lambda one: (one.incarnation, one.sequence),
        )
        for node in sorted({one.node for one in records} - {"own"})
    }
    assert outcome([records]) == [one for one in newest.values() if not one.leaving]


def test_an_echo_does_not_make_its_node_younger() -> None:
    here = cluster()
    one = record("a", pressure=16.0, window=1.0)
    assert here.merge(one, 0.0)
    for tick in range(1, 49):
        assert not here.merge(one, tick * TICK_S)
    assert not here.merge(one, LOST_S)
    assert here.peers(LOST_S) == []
    assert here.lost(LOST_S) == 1
    assert not here.merge(one, LOST_S + 1), "nor does it raise the dead"
    assert here.peers(LOST_S + 1) == []


# --- Identities of nodes


def test_a_record_under_our_own_id_is_ignored_and_told() -> None:
    here = cluster()
    mine = here.announce(100.0, 0.0, None, 16, 0.0)
    assert mine is not None
    assert not here.merge(mine, 0.1)
    assert here.duplicates == 0, "an echo"
    other = PressureRecord("own", 7, 1, 1.0, 16.0, Signal.STORE, 4)
    for _ in range(3):
        assert not here.merge(other, 0.2)
    assert (here.duplicate, here.duplicates) == (other, 1)
    here.merge(replace(other, sequence=2), 0.3)
    assert here.duplicates == 2, "it is alive"
    assert here.window_for(None, 0.3) == 100.0


def test_a_twin_that_even_has_our_incarnation_is_told() -> None:
    here = cluster()
    here.announce(100.0, 0.0, None, 16, 0.0)
    here.merge(record("own", sequence=2), 0.1)
    assert here.duplicates == 1


def test_peers_are_bounded_and_those_beyond_are_counted() -> None:
    here = cluster(peers_max=2)
    assert here.merge(record("a"), 0.0)
    assert here.merge(record("b"), 1.0)
    assert not here.merge(record("c", window=1.0), 1.0)
    assert here.dropped == 1
    assert here.merge(record("a", 2), 1.0), "who is known is heard"
    assert [one.node for one in here.peers(1.0)] == ["a", "b"]
    here.merge(record("a", 3), 5.0)
    assert here.lost(6.5) == 1
    assert here.merge(record("c"), 6.5), "in the place of the lost one"
    assert [one.node for one in here.peers(6.5)] == ["a", "c"]


def test_of_those_who_are_gone_the_one_gone_for_longest_makes_room() -> None:
    here = cluster(peers_max=2)
    here.merge(record("b"), 0.0)
    here.merge(record("a"), 1.0)
    assert here.lost(10.0) == 2
    assert here.merge(record("c"), 10.0)
    assert not here.merge(record("a"), 10.0), "an echo, and known to be one"


# --- What we say


def test_news_is_told_at_the_next_tick_and_nothing_new_within_a_second() -> None:
    here = cluster()
    told = []
    for tick in range(50):
        window = 100.0 if tick < 20 else 85.0
        one = here.announce(window, 0.2, None, 16, tick * TICK_S)
        if one is not None:
            told.append((tick, one.window, one.sequence))
    assert told[0] == (0, 100.0, 1)
    assert (20, 85.0) in [(tick, window) for tick, window, _ in told]
    assert all(later[0] - earlier[0] <= 10 for earlier, later in pairwise(told))
    assert [sequence for _, _, sequence in told] == list(range(1, len(told) + 1))
    assert len(told) <= 7


@pytest.mark.parametrize(
    ("window", "pressure", "is_told"),
    [
        (90.1, 1.0, False),
        (89.9, 1.0, True),
        (100.0, 1.09, False),
        (100.0, 1.11, True),
        (100.0, 0.89, True),
    ],
)
def test_news_is_a_change_by_more_than_a_tenth(
    window: float, pressure: float, is_told: bool
) -> None:
    here = cluster()
    here.announce(100.0, 1.0, None, 16, 0.0)
    assert (here.announce(window, pressure, None, 16, TICK_S) is not None) is is_told


def test_many_small_changes_add_up_to_news() -> None:
    here = cluster()
    here.announce(100.0, 1.0, None, 16, 0.0)
    told = [here.announce(100.0 * 0.97**n, 1.0, None, 16, n * TICK_S) for n in range(1, 5)]
    assert [one is not None for one in told] == [False, False, False, True]


def test_a_pressure_that_is_nearly_nothing_is_no_news() -> None:
    here = cluster()
    here.announce(100.0, 0.01, None, 16, 0.0)
    assert here.announce(100.0, 0.04, None, 16, TICK_S) is None


@given(st.lists(st.tuples(st.floats(0.0, 0.2), windows, pressures), max_size=100))
def test_records_are_at_most_one_a_tick_and_the_silence_at_most_a_second(
    steps: list[tuple[float, float, float]],
) -> None:
    here, now_s, sent_s = cluster(), 0.0, None
    for after_s, window, pressure in steps:
        now_s += after_s
        one = here.announce(window, pressure, None, 16, now_s)
        if one is not None:
            assert sent_s is None or now_s - sent_s >= TICK_S / 2
            assert (one.window, one.pressure) == (window, pressure)
            sent_s = now_s
        assert sent_s is not None
        assert now_s + 1.1 * TICK_S <= sent_s + 1.0 + 1e-9


def test_who_has_left_says_nothing_more() -> None:
    here = cluster()
    here.announce(42.0, 3.0, Signal.MEMORY, 16, 0.0)
    last = here.leave(0.05)
    assert (last.leaving, last.sequence, last.window) == (True, 2, 42.0)
    assert here.announce(1.0, 16.0, None, 16, 10.0) is None
