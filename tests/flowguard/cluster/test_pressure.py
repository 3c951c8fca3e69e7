"""The window of a client from the records that its node has (docs/explain/overload.md, "Many
nodes").

A lower pressure of a node with the same window (an alarm clears, RabbitMQ#379) raises no window. A
window that grows may raise a client's, but never beyond that of any node of its path. The record of
a dead node limits windows for at most 5 s.
"""

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowguard.cluster.pressure import (
    FRESH_S,
    GUARD_S,
    LOST_S,
    RELEASE_S,
    PressureRecord,
)
from flowguard.flow.load.signals import TICK_S, Signal
from tests.flowguard.cluster.clusters import (
    NODES,
    WINDOW_MAX,
    cluster,
    heard,
    is_guarded,
    loads,
    paths,
    pressures,
    record,
    windows,
)

# --- Whose window a client has


@given(loads, windows, pressures, paths)
def test_window_is_the_least_of_the_path(
    told: dict[str, tuple[float, float]],
    own_window: float,
    own_pressure: float,
    path: frozenset[str] | None,
) -> None:
    here = heard(told, (own_window, own_pressure))
    on_path = [told[node][0] for node in told if path is None or node in path]
    assert here.window_for(path, 0.0) == min([own_window, *on_path])


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
def test_lower_pressure_of_a_node_with_the_same_window_changes_no_window(
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
    assert here.window_for(path, TICK_S) == before


@given(loads, windows, pressures, paths, windows, pressures, st.sampled_from(NODES))
def test_each_node_of_the_path_bounds_a_window_whatever_the_others_do(
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
    for node, (window, _) in nodes.items():
        if path is None or node in path or node == "own":
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
        assert not is_guarded(here, now_s)


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
def test_a_silent_node_ends_without_a_step(
    told: dict[str, tuple[float, float]], window: float, pressure: float, path: frozenset[str]
) -> None:
    here, alone = heard(told, (window, pressure)), heard({}, (window, pressure))
    last = here.window_for(path, LOST_S - 1e-6)
    assert last == pytest.approx(alone.window_for(path, LOST_S), rel=1e-5)


@given(loads, windows, pressures, paths)
def test_a_dead_nodes_record_limits_windows_no_longer_than_five_seconds(
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
    assert (here.lost(4.9), is_guarded(here, 4.9)) == (0, False)
    here.merge(record("b", 2), 4.9)
    assert (here.lost(LOST_S), is_guarded(here, LOST_S)) == (1, True)
    seen = []
    for tick in range(450):
        now_s = LOST_S + tick * TICK_S
        here.merge(record("b", 3 + tick), now_s)
        seen.append(here.window_for(None, now_s))
        assert here.lost(now_s) == 1, "counted once"
        assert is_guarded(here, now_s) == (seen[-1] < WINDOW_MAX)
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
    assert not is_guarded(here, 75.0)


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
    assert is_guarded(here, 7.0)


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
            if not is_guarded(self.here, self.now_s):
                assert window == least


TestGossip = Gossip.TestCase
