"""Cluster pressure (docs/overload.md, "Many nodes"), and what the wire may carry.

Gossip merges in any order; relief on one node never raises the window of a client whose path still
holds a node with P >= 1.2; a dead node's record cannot brake > 5 s; off-path brake >= 0.5. "Relief"
has two parts. A lower pressure with the same window (an alarm clears, RabbitMQ#379) does not raise
the client's window at all. A window that grows as well may raise it, but never beyond that of any
node of the path that still is in distress.
"""

from dataclasses import replace
from itertools import pairwise
from math import inf, nan
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowguard.config import FlowSettings
from flowguard.flow.cluster import (
    BRAKE_MIN,
    FRESH_S,
    GUARD_S,
    LOST_S,
    PRESSED,
    RELEASE_S,
    Cluster,
    PressureRecord,
)
from flowguard.flow.signals import TICK_S, Signal

NODES = ("a", "b", "c", "d")
WINDOW_MAX = 100

windows = st.floats(1.0, WINDOW_MAX)
pressures = st.floats(0.0, 16.0)
paths = st.none() | st.frozensets(st.sampled_from(("own", *NODES)))


def cluster(
    rule: Literal["path", "max"] = "path", floor: float = 0.05, peers_max: int = 256
) -> Cluster:
    settings = FlowSettings(cluster_rule=rule, window_floor=floor, window_max=WINDOW_MAX)
    return Cluster("own", 1, settings, peers_max)


def record(
    node: str, sequence: int = 1, window: float = 100.0, pressure: float = 0.0
) -> PressureRecord:
    return PressureRecord(node, 1, sequence, window, pressure, None, 16)


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
loads = st.dictionaries(st.sampled_from(NODES), st.tuples(windows, pressures))


def heard(told: dict[str, tuple[float, float]], own: tuple[float, float] = (100.0, 0.0)) -> Cluster:
    """A cluster of which each node has just told its window and pressure."""
    here = cluster()
    here.announce(*own, None, 16, 0.0)
    for node, (window, pressure) in told.items():
        here.merge(record(node, 1, window, pressure), 0.0)
    return here


# --- Merge laws


def outcome(batches: list[list[PressureRecord]]) -> list[PressureRecord]:
    here = cluster()
    for batch in batches:
        for one in batch:
            here.merge(one, 0.0)
    return here.peers(0.0)


@given(st.lists(any_numbered), st.randoms(use_true_random=False))
def test_invariant_08_merge_is_commutative(records: list[PressureRecord], random: object) -> None:
    shuffled = list(records)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert outcome([records]) == outcome([shuffled])


@given(st.lists(any_numbered), st.lists(any_numbered), st.lists(any_numbered))
def test_invariant_08_merge_is_associative(
    first: list[PressureRecord], second: list[PressureRecord], third: list[PressureRecord]
) -> None:
    """Whoever relays passes on the newest of each node; who relayed what makes no difference."""

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
def test_invariant_08_merge_is_idempotent(records: list[PressureRecord], choice: int) -> None:
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


# --- Whose window a client has


@given(loads, windows, pressures, paths)
def test_path_is_the_least_window_on_it_times_a_bounded_brake(
    told: dict[str, tuple[float, float]],
    own_window: float,
    own_pressure: float,
    path: frozenset[str] | None,
) -> None:
    here = heard(told, (own_window, own_pressure))
    nodes = {**told, "own": (own_window, own_pressure)}
    on_path = [nodes[n] for n in nodes if path is None or n in path or n == "own"]
    least = min(window for window, _ in on_path)
    on_pressure = max(pressure for _, pressure in on_path)
    worst = max(pressure for _, pressure in nodes.values())
    if on_pressure == worst or on_pressure >= PRESSED:
        brake = 1.0
    else:
        brake = min(1.0, max(0.5, worst**-0.25 if worst > 0 else 1.0))
    assert here.window_for(path, 0.0) == pytest.approx(least * brake)


@given(loads, windows, pressures, paths)
def test_invariant_08_distress_off_the_path_takes_at_most_half(
    told: dict[str, tuple[float, float]], window: float, pressure: float, path: frozenset[str]
) -> None:
    here = heard(told, (window, pressure))
    on_path = [told[n][0] for n in told if path is None or n in path]
    least = min([window, *on_path])
    assert BRAKE_MIN * least <= here.window_for(path, 0.0) <= least


def test_the_brake_is_the_fourth_root_of_the_worst_pressure() -> None:
    for pressure, expected in ((1.0, 100.0), (1.1, 97.6), (4.0, 70.7), (16.0, 50.0)):
        here = heard({"a": (1.0, pressure), "b": (100.0, 0.5)})
        assert here.window_for(frozenset({"own", "b"}), 0.0) == pytest.approx(expected, abs=0.1)
        assert here.window_for(frozenset({"own", "a"}), 0.0) == 1.0


@given(loads, windows, pressures, st.frozensets(st.sampled_from(NODES)))
def test_max_is_path_with_every_node_on_it(
    told: dict[str, tuple[float, float]], window: float, pressure: float, path: frozenset[str]
) -> None:
    by_path, by_max = heard(told, (window, pressure)), cluster("max")
    by_max.announce(window, pressure, None, 16, 0.0)
    for node, (its_window, its_pressure) in told.items():
        by_max.merge(record(node, 1, its_window, its_pressure), 0.0)
    for now_s in (0.0, 0.9, 3.0):
        everywhere = by_path.window_for(frozenset({"own", *NODES}), now_s)
        assert everywhere == by_path.window_for(None, now_s)
        assert everywhere == by_max.window_for(path, now_s)
        assert everywhere == by_max.window_for(None, now_s)


@given(loads, windows, pressures, paths, st.data())
def test_invariant_08_relief_of_one_node_raises_nothing_while_the_path_is_in_distress(
    told: dict[str, tuple[float, float]],
    own_window: float,
    own_pressure: float,
    path: frozenset[str] | None,
    data: st.DataObject,
) -> None:
    nodes = {**told, "own": (own_window, own_pressure)}
    relieved = data.draw(st.sampled_from(sorted(nodes)))
    window, pressure = nodes[relieved]
    lower = data.draw(st.floats(0.0, pressure))
    here = heard(told, (own_window, own_pressure))
    before = here.window_for(path, 0.0)
    if relieved == "own":
        here.announce(window, lower, None, 16, TICK_S)
    else:
        here.merge(record(relieved, 2, window, lower), TICK_S)
    after = here.window_for(path, TICK_S)
    nodes[relieved] = (window, lower)
    on_path = {n for n in nodes if path is None or n in path or n == "own"}
    if any(nodes[n][1] >= PRESSED for n in on_path):
        assert after <= before


@given(loads, windows, pressures, paths, windows, pressures, st.sampled_from(NODES))
def test_invariant_08_a_node_in_distress_bounds_its_clients_whatever_the_others_do(
    told: dict[str, tuple[float, float]],
    own_window: float,
    own_pressure: float,
    path: frozenset[str] | None,
    new_window: float,
    new_pressure: float,
    changed: str,
) -> None:
    here = heard(told, (own_window, own_pressure))
    here.window_for(path, 0.0)
    here.merge(record(changed, 2, new_window, new_pressure), TICK_S)
    nodes = {**told, changed: (new_window, new_pressure), "own": (own_window, own_pressure)}
    for node, (window, pressure) in nodes.items():
        if pressure >= PRESSED and (path is None or node in path or node == "own"):
            assert here.window_for(path, TICK_S) <= window


def test_rabbitmq_379_one_of_two_alarms_clears_and_nobody_is_let_go() -> None:
    path = frozenset({"own", "a", "b"})
    here = heard({"a": (2.0, 4.0), "b": (5.0, 2.0), "c": (10.0, 9.0)})
    assert here.window_for(path, 0.0) == 2.0
    here.merge(record("a", 2, 2.0, 0.0), 0.1)
    here.merge(record("c", 2, 10.0, 0.0), 0.1)
    assert here.window_for(path, 0.1) == 2.0
    here.merge(record("a", 3, 100.0, 0.0), 0.2)
    assert here.window_for(path, 0.2) == 5.0


def test_a_single_node_has_its_own_window_always() -> None:
    here = cluster()
    assert here.window_for(None, 0.0) == WINDOW_MAX
    for tick, (window, pressure) in enumerate([(7.3, 16.0), (0.05, 2.0), (100.0, 0.0)]):
        now_s = tick * 1000.0
        here.announce(window, pressure, Signal.STORE, 16, now_s)
        for path in (None, frozenset[str](), frozenset({"own"}), frozenset({"own", "unheard"})):
            assert here.window_for(path, now_s) == window
        assert here.lost(now_s) == 0
        assert not here.is_guarded(now_s)


def test_no_brake_takes_a_window_below_the_floor() -> None:
    here = cluster(floor=1.0)
    here.announce(1.0, 0.5, None, 16, 0.0)
    here.merge(record("a", 1, 1.0, 16.0), 0.0)
    assert here.window_for(frozenset({"own"}), 0.0) == 1.0


# --- Age


def test_a_record_holds_for_a_second_then_drifts_to_the_local_window() -> None:
    here = heard({"a": (1.0, 16.0)})
    path = frozenset({"own", "a"})
    assert here.window_for(path, 0.0) == 1.0
    assert here.window_for(path, FRESH_S) == 1.0
    assert here.window_for(path, 1.1) == pytest.approx(100**0.025)
    assert here.window_for(path, 2.0) == pytest.approx(100**0.25)
    assert here.window_for(path, 3.0) == pytest.approx(10.0)
    here.announce(25.0, 0.0, None, 16, 3.0)
    assert here.window_for(path, 3.0) == pytest.approx(5.0), "the local window of now"
    (aged,) = here.peers(3.0)
    assert aged == replace(record("a", pressure=8.0), window=aged.window)
    assert aged.window == pytest.approx(5.0)


@given(loads, windows, pressures, paths)
@example({"a": (1.0, 2.0)}, 1.0, 1.125, frozenset())
def test_a_silent_node_ends_in_a_step_of_less_than_a_twentieth(
    told: dict[str, tuple[float, float]], window: float, pressure: float, path: frozenset[str]
) -> None:
    """What is left of the step: from 1 to 1.2 on the path the brake is on, or off, not between."""
    here, alone = heard(told, (window, pressure)), heard({}, (window, pressure))
    last = here.window_for(path, LOST_S - 1e-6)
    after = alone.window_for(path, LOST_S)
    assert after * PRESSED**-0.25 <= last * (1 + 1e-5)
    assert last <= after * (1 + 1e-5)


@given(loads, windows, pressures, paths)
def test_invariant_08_a_dead_nodes_record_brakes_no_longer_than_five_seconds(
    told: dict[str, tuple[float, float]], window: float, pressure: float, path: frozenset[str]
) -> None:
    here = heard(told, (window, pressure))
    here.window_for(path, 4.0)
    cap = WINDOW_MAX / 2 if told else inf
    assert here.window_for(path, LOST_S) == min(window, cap)
    assert here.peers(LOST_S) == []
    assert here.window_for(path, LOST_S + GUARD_S + RELEASE_S) == window


def test_a_lost_peer_caps_windows_for_30_s_and_is_released_slowly() -> None:
    here = heard({"a": (100.0, 0.0), "b": (100.0, 0.0)})
    assert (here.lost(4.9), here.is_guarded(4.9)) == (0, False)
    here.merge(record("b", 2), 4.9)
    assert (here.lost(LOST_S), here.is_guarded(LOST_S)) == (1, True)
    seen = []
    for tick in range(450):
        now_s = LOST_S + tick * TICK_S
        here.merge(record("b", 3 + tick), now_s)
        seen.append(here.window_for(None, now_s))
        assert here.lost(now_s) == 1, "counted once"
        assert here.is_guarded(now_s) == (seen[-1] < WINDOW_MAX)
    assert set(seen[:300]) == {50.0}
    assert seen[350] == pytest.approx(100 / 2**0.5)
    assert seen[401] == 100.0
    assert max(later / earlier for earlier, later in pairwise(seen)) < 1.01


def test_each_loss_begins_the_guard_anew() -> None:
    here = heard({"a": (100.0, 0.0), "b": (100.0, 0.0)})
    here.merge(record("b", 2), 30.0)
    assert here.lost(30.0) == 1
    assert here.lost(35.0) == 2
    assert here.window_for(None, 64.9) == 50.0
    assert not here.is_guarded(75.0)


def test_a_goodbye_is_not_a_loss() -> None:
    here = heard({"a": (1.0, 16.0)})
    assert here.merge(replace(record("a", 2, 1.0, 16.0), leaving=True), 0.5)
    for now_s in (0.5, 5.0, 100.0):
        assert here.window_for(None, now_s) == 100.0
        assert here.window_for(frozenset({"own"}), now_s) == 100.0
        assert here.lost(now_s) == 0
    assert not here.merge(record("a", 1, 1.0, 16.0), 101.0), "its older words come too late"
    assert here.window_for(None, 101.0) == 100.0


def test_a_node_that_comes_back_counts_again() -> None:
    here = heard({"a": (10.0, 0.0)})
    assert here.lost(6.0) == 1
    assert here.merge(replace(record("a", 1, 3.0), incarnation=2), 7.0)
    assert here.window_for(None, 7.0) == 3.0
    assert here.is_guarded(7.0)


# --- Who is who


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


# --- The wire

records = st.builds(
    PressureRecord,
    node=st.text(st.characters(codec="utf-8"), min_size=1, max_size=63),
    incarnation=st.integers(0, 2**64 - 1),
    sequence=st.integers(0, 2**64 - 1),
    window=st.floats(0.0, 65_535.0, exclude_min=True),
    pressure=pressures,
    cause=st.none() | st.sampled_from(Signal),
    connects_limit=st.integers(0, 2**32 - 1),
    leaving=st.booleans(),
)


@given(records)
def test_what_is_decoded_is_what_was_encoded(one: PressureRecord) -> None:
    data = one.to_bytes()
    assert PressureRecord.from_bytes(data) == one
    assert len(data) == 40 + len(one.node.encode())


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda tail: b"\x01\x00" + tail))
def test_any_bytes_are_a_record_or_a_value_error(data: bytes) -> None:
    try:
        one = PressureRecord.from_bytes(data)
    except ValueError:
        return
    assert one.to_bytes() == data


@given(records, st.integers(min_value=0), st.binary(min_size=1, max_size=8))
def test_a_record_cut_short_or_with_a_tail_is_refused(
    one: PressureRecord, cut: int, tail: bytes
) -> None:
    data = one.to_bytes()
    for wrong in (data[: cut % len(data)], data + tail):
        with pytest.raises(ValueError, match="pressure record"):
            PressureRecord.from_bytes(wrong)


def test_every_wrong_field_is_named() -> None:
    good = record("a")
    data = bytearray(good.to_bytes())

    def changed(at: int, value: int) -> bytes:
        wrong = bytearray(data)
        wrong[at] = value
        return bytes(wrong)

    for wrong, text in (
        (b"", "version 1 expected, found none"),
        (changed(0, 2), "version 1 expected, found 2"),
        (changed(1, 3), "unknown flags 0x03"),
        (changed(34, 6), "unknown cause 6"),
        (changed(39, 0), "1 bytes of node, 1 expected"),
        (changed(39, 0)[:40], "0 bytes of node, 1 expected"),
        (changed(39, 9), "1 bytes of node, 9 expected"),
        (changed(40, 0xFF), "not UTF-8"),
        (replace(good, window=0.0).to_bytes(), "window 0.0"),
        (replace(good, window=nan).to_bytes(), "window nan"),
        (replace(good, window=inf).to_bytes(), "window inf"),
        (replace(good, window=65_536.0).to_bytes(), "window 65536.0"),
        (replace(good, pressure=-1.0).to_bytes(), "pressure -1.0"),
        (replace(good, pressure=nan).to_bytes(), "pressure nan"),
        (replace(good, pressure=16.1).to_bytes(), "pressure 16.1"),
    ):
        with pytest.raises(ValueError, match=text):
            PressureRecord.from_bytes(wrong)


def test_the_layout_on_the_wire_is_stable() -> None:
    one = PressureRecord("n1", 2, 3, 100.0, 1.5, Signal.STORE, 16, leaving=True)
    assert one.to_bytes().hex(" ", 8) == bytes.fromhex(
        "01 01 0000000000000002 0000000000000003 4059000000000000 3ff8000000000000"
        "03 00000010 02 6e31"
    ).hex(" ", 8)


# --- All of it, over time


class Gossip(RuleBasedStateMachine):
    """One node, and what three others say through a net that delays, repeats and reorders."""

    @initialize()
    def node_starts(self) -> None:
        self.here = cluster()
        self.now_s = 0.0
        self.own = (100.0, 0.0)
        self.sequence = 0
        self.sent: list[PressureRecord] = []
        self.newest: dict[str, PressureRecord] = {}
        self.heard_s: dict[str, float] = {}
        self.losses = 0
        self.lost_s = -inf

    def alive(self) -> dict[str, float]:
        return {n: s for n, s in self.heard_s.items() if self.now_s - s < LOST_S}

    @rule(node=st.sampled_from(NODES), window=windows, pressure=pressures, leaving=st.booleans())
    def peer_speaks(self, node: str, window: float, pressure: float, leaving: bool) -> None:
        self.sequence += 1
        one = record(node, self.sequence, window, pressure)
        self.sent.append(replace(one, leaving=leaving))

    @precondition(lambda self: self.sent)
    @rule(choice=st.integers(0, 5))
    def net_delivers(self, choice: int) -> None:
        one = self.sent[-1 - choice % len(self.sent)]
        known = self.newest.get(one.node)
        is_news = known is None or one.sequence > known.sequence
        assert self.here.merge(one, self.now_s) is is_news
        if is_news:
            self.newest[one.node] = one
            self.heard_s.pop(one.node, None)
            if not one.leaving:
                self.heard_s[one.node] = self.now_s

    @rule(window=windows, pressure=pressures)
    def law_steps(self, window: float, pressure: float) -> None:
        self.own = (window, pressure)
        self.here.announce(window, pressure, None, 16, self.now_s)

    @rule(seconds=st.sampled_from([TICK_S, 0.5, 1.0, 3.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        gone = set(self.heard_s) - set(self.alive())
        if gone:
            self.losses += len(gone)
            self.lost_s = self.now_s
            for node in gone:
                del self.heard_s[node]

    @invariant()
    def losses_are_those_who_fell_silent(self) -> None:
        assert self.here.lost(self.now_s) == self.losses
        assert [one.node for one in self.here.peers(self.now_s)] == sorted(self.alive())

    @invariant()
    def fresh_words_count_as_they_were_said(self) -> None:
        for one in self.here.peers(self.now_s):
            if self.now_s - self.heard_s[one.node] <= FRESH_S:
                assert one == self.newest[one.node]
            bounds = sorted((self.newest[one.node].window, self.own[0]))
            assert bounds[0] - 1e-9 <= one.window <= bounds[1] + 1e-9

    @invariant()
    def windows_are_bounded_by_their_path_and_by_the_guard(self) -> None:
        told = {one.node: one for one in self.here.peers(self.now_s)}
        capped = self.now_s < self.lost_s + GUARD_S
        cap = WINDOW_MAX / 2 if capped else WINDOW_MAX
        for path in (None, frozenset[str](), frozenset({"a"}), frozenset({"b", "c"})):
            on_path = [told[n] for n in told if path is None or n in path]
            least = min([self.own[0], *(one.window for one in on_path)])
            window = self.here.window_for(path, self.now_s)
            assert window <= min(least, cap)
            if not self.here.is_guarded(self.now_s):
                assert window >= BRAKE_MIN * least


TestGossip = Gossip.TestCase
