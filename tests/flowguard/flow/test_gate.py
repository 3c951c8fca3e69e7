"""Invariants of the gate (2, 10, 11 and 16 of docs/overload.md, "What must hold"), and its law.

The state machine holds it against plain lists; what it owes to its parts is proved with them
(`test_concurrency`, `test_waiting`, `test_refusals`), what it does to a crowd in `test_gate_crowd`.
"""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from flowguard.config import FlowSettings
from flowguard.flow import ConnectGate, Reason, Verdict
from flowguard.flow.policy import Arrival, Gate, Resumption, Rung
from flowguard.flow.refusals import CLIMB_TICKS
from flowguard.flow.signals import TICK_S

PATIENCE_S = 8.0
SHORT_PATIENCE_S = 2.0
"""The state machine's: there a handful waits too long."""
CALM = 0.5
CLIENT_IDS = st.sampled_from(["", "", "a", "b", "c"])


def settings_of(
    limit: int = 1,
    buffer_max: int = 10,
    buffer_bytes_max: int = 10_000,
    patience_s: float = PATIENCE_S,
) -> FlowSettings:
    return FlowSettings(
        connects_in_process_max=limit,
        connect_buffer_max=buffer_max,
        connect_buffer_bytes_max=buffer_bytes_max,
        connect_patience_s=patience_s,
    )


def gate_of(
    limit: int = 1, buffer_max: int = 10, buffer_bytes_max: int = 10_000
) -> ConnectGate[str]:
    return ConnectGate(settings_of(limit, buffer_max, buffer_bytes_max))


def arrival_of(client_id: str = "", size_bytes: int = 100) -> Arrival:
    return Arrival(client_id, size_bytes)


@dataclass
class Guest:
    """One who waits."""

    key: int
    arrival: Arrival
    since_s: float
    late: bool = False


class Doors(RuleBasedStateMachine):
    """The gate against a set of those inside and a list of those who wait."""

    @initialize(
        limit=st.sampled_from([1, 2, 6, 20]),
        buffer_max=st.integers(0, 8),
        bytes_max=st.sampled_from([0, 200, 1_000]),
    )
    def gate_is_built(self, limit: int, buffer_max: int, bytes_max: int) -> None:
        self.limit_max, self.buffer_max, self.bytes_max = limit, buffer_max, bytes_max
        self.gate: ConnectGate[int] = ConnectGate(
            settings_of(limit, buffer_max, bytes_max, SHORT_PATIENCE_S)
        )
        self.now_s = 0.0
        self.offered = 0
        self.inside: set[int] = set()
        self.waiting: list[Guest] = []
        self.superseded: list[int] = []
        self.outcomes: dict[int, Verdict] = {}
        self.left: set[int] = set()
        self.refused: dict[Reason, int] = {}

    @property
    def has_place(self) -> bool:
        return len(self.inside) < self.gate.limit

    @property
    def hopeful(self) -> list[Guest]:
        return [guest for guest in self.waiting if not guest.late]

    def decide(self, key: int, verdict: Verdict, reason: Reason | None = None) -> None:
        """The one outcome of a CONNECT whose connection still lives."""
        assert key not in self.outcomes
        assert key not in self.left
        self.outcomes[key] = verdict
        if verdict is Verdict.ADMIT:
            self.inside.add(key)
        else:
            assert reason is not None
            self.refused[reason] = self.refused.get(reason, 0) + 1

    def why_not(self, size_bytes: int) -> Reason | None:
        rate = self.gate.completion_rate
        if len(self.waiting) >= self.buffer_max:
            return Reason.GATE_BUFFER_FULL
        if sum(g.arrival.size_bytes for g in self.waiting) + size_bytes > self.bytes_max:
            return Reason.GATE_BUFFER_BYTES
        if rate and len(self.hopeful) + 1 > rate * SHORT_PATIENCE_S:
            return Reason.GATE_WAIT
        return None

    @rule(
        crowd=st.lists(
            st.tuples(CLIENT_IDS, st.integers(1, 120), st.sampled_from(Resumption)),
            min_size=1,
            max_size=8,
        )
    )
    def connects_arrive(self, crowd: list[tuple[str, int, Resumption]]) -> None:
        for one in crowd:
            self.connect_arrives(*one)

    def connect_arrives(self, client_id: str, size_bytes: int, resumption: Resumption) -> None:
        key = self.offered
        self.offered += 1
        arrival = Arrival(client_id, size_bytes, resumption)
        verdict = self.gate.offer(key, arrival, self.now_s)
        for guest in list(self.waiting):
            if client_id and guest.arrival.client_id == client_id:
                self.waiting.remove(guest)
                self.superseded.append(guest.key)
        reason = self.why_not(size_bytes)
        if self.has_place and not self.hopeful:
            assert verdict is Verdict.ADMIT
            self.decide(key, verdict)
        elif reason is None:
            assert verdict is Verdict.DELAY
            self.waiting.append(Guest(key, arrival, self.now_s))
        else:
            assert verdict is Verdict.REJECT
            self.decide(key, verdict, reason)

    @rule(choice=st.integers(min_value=0))
    def connack_is_sent_or_connection_breaks(self, choice: int) -> None:
        known = [*sorted(self.inside), *(g.key for g in self.waiting), *self.superseded]
        if known:
            self.settle(known[choice % len(known)])

    @rule()
    def all_in_process_are_done(self) -> None:
        for key in sorted(self.inside):
            self.settle(key)

    def settle(self, key: int) -> None:
        self.gate.settle(key, self.now_s)
        self.gate.settle(key, self.now_s)  # Safe to repeat: an end and an answer may both report.
        self.inside.discard(key)
        self.waiting = [guest for guest in self.waiting if guest.key != key]
        self.superseded = [other for other in self.superseded if other != key]
        self.left.add(key)

    @rule(seconds=st.sampled_from([0.01, 0.5, SHORT_PATIENCE_S - 0.1, 9.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(pressure=st.sampled_from([0.0, 1.0, 1.5, 3.0, 8.0]))
    def tick(self, pressure: float) -> None:
        self.now_s += TICK_S
        self.gate.tick(self.now_s, pressure)
        self.turn()

    @rule(each_s=st.sampled_from([0.1, 0.4, 1.0]), count=st.integers(1, 4))
    def some_are_served(self, each_s: float, count: int) -> None:
        for key in sorted(self.inside)[:count]:
            self.now_s += each_s
            self.settle(key)
            self.turn()

    @rule(cost_s=st.sampled_from([0.001, 0.1, 1.0]))
    def refusing_took_its_time(self, cost_s: float) -> None:
        self.gate.spent(cost_s, self.now_s)

    @rule()
    def peer_is_lost(self) -> None:
        self.gate.peer_lost(self.now_s)
        assert self.gate.limit == min(4, self.limit_max)

    @rule()
    def turn(self) -> None:
        while (found := self.gate.admit_next(self.now_s)) is not None:
            self.next_goes(*found)
        self.notice_who_is_late()
        assert not self.gate.is_ready
        assert not self.superseded
        assert not (self.hopeful and self.has_place)
        if self.gate.rung is not Rung.STOP and self.gate.may_accept(self.now_s):
            assert not any(guest.late for guest in self.waiting)

    def next_goes(self, key: int, verdict: Verdict) -> None:
        if self.superseded:
            assert (key, verdict) == (self.superseded.pop(0), Verdict.DROP)
            self.decide(key, verdict, Reason.GATE_SUPERSEDED)
            return
        self.notice_who_is_late()
        guest = next(guest for guest in self.waiting if guest.key == key)
        if guest.late:
            assert verdict is Verdict.REJECT
            self.decide(key, verdict, Reason.GATE_DEADLINE)
        else:
            assert verdict is Verdict.ADMIT
            assert self.has_place
            ranks = [(g.since_s + 2.0 * g.arrival.resumption, g.since_s) for g in self.hopeful]
            assert (guest.since_s + 2.0 * guest.arrival.resumption, guest.since_s) == min(ranks)
            self.decide(key, verdict)
        self.waiting.remove(guest)

    def notice_who_is_late(self) -> None:
        for guest in self.waiting:
            guest.late = self.now_s - guest.since_s >= SHORT_PATIENCE_S

    @rule()
    def node_drains(self) -> None:
        while (key := self.gate.abandon_next()) is not None:
            self.decide(key, Verdict.REJECT, Reason.DRAINING)
            self.waiting = [guest for guest in self.waiting if guest.key != key]
            self.superseded = [other for other in self.superseded if other != key]
        assert not self.waiting
        assert not self.superseded
        assert not self.gate.is_ready

    @invariant()
    def everybody_is_in_exactly_one_place(self) -> None:
        if not hasattr(self, "gate"):
            return
        gate = self.gate
        assert gate.in_process == len(self.inside)
        assert gate.buffered == len(self.waiting) <= self.buffer_max
        assert gate.buffered_bytes == sum(g.arrival.size_bytes for g in self.waiting)
        assert gate.buffered_bytes <= self.bytes_max
        assert gate.refused == self.refused
        assert gate.is_ready == bool(self.superseded or (self.hopeful and self.has_place))
        named = [g.arrival.client_id for g in self.waiting if g.arrival.client_id]
        assert len(named) == len(set(named))
        undecided = {g.key for g in self.waiting} | set(self.superseded)
        assert undecided | set(self.outcomes) | self.left == set(range(self.offered))
        assert not undecided & (set(self.outcomes) | self.left)


def test_invariant_11_each_connect_has_exactly_one_outcome_and_none_after_its_end() -> None:
    run_state_machine_as_test(Doors)  # type: ignore[no-untyped-call]


SCRIPTS = st.lists(
    st.tuples(
        st.sampled_from(["offer", "offer", "offer", "settle", "turn", "tick"]),
        st.integers(0, 30),
        st.floats(0.0, 3.0),
    ),
    max_size=80,
)


@given(SCRIPTS, st.integers(1, 20), st.integers(0, 10))
def test_invariant_02_every_place_entry_and_byte_is_given_back(
    script: list[tuple[str, int, float]], limit: int, buffer_max: int
) -> None:
    """Whatever happened: when the last connection is gone, the gate is as it was."""
    gate: ConnectGate[int] = ConnectGate(settings_of(limit, buffer_max))
    now_s, keys = 0.0, 0
    for event, number, seconds in script:
        now_s += seconds
        if event == "offer":
            gate.offer(keys, Arrival(f"{number}" if number else "", 10 + number), now_s)
            keys += 1
        elif event == "settle":
            gate.settle(keys - number, now_s)
        elif event == "turn":
            gate.admit_next(now_s)
        else:
            gate.tick(now_s, number / 10.0)
    for key in range(keys):
        gate.settle(key, now_s)
    assert (gate.in_process, gate.buffered, gate.buffered_bytes) == (0, 0, 0)
    assert gate.admit_next(now_s) is None
    assert gate.abandon_next() is None
    assert not gate.is_ready


@given(
    st.lists(st.tuples(st.integers(1, 60), st.floats(0.0, 2.0), st.floats(0.0, 16.0)), max_size=20),
    st.floats(0.0, 0.79),
)
def test_invariant_10_nobody_is_refused_or_paused_while_the_node_is_idle(
    crowds: list[tuple[int, float, float]], pressure: float
) -> None:
    """Whatever was before: P < 0.8, nobody waits, a place is free."""
    gate: ConnectGate[int] = ConnectGate(settings_of(limit=40, buffer_max=20))
    now_s, key = 0.0, 0
    for size, service_s, before in crowds:
        gate.tick(now_s, before)
        for _ in range(size):
            gate.offer(key, arrival_of(f"{key % 7}"), now_s)
            key += 1
        gate.spent(0.01 * size, now_s)
        now_s += service_s
        for done in range(key):
            gate.settle(done, now_s)
    gate.tick(now_s, pressure)
    assert gate.buffered == 0
    for _ in range(gate.limit):
        assert gate.may_accept(now_s)
        assert gate.offer(key, arrival_of(), now_s) is Verdict.ADMIT
        key += 1


@given(st.lists(st.floats(0.000_1, 0.02), min_size=1, max_size=60), st.integers(0, 60))
def test_invariant_16_accepting_and_refusing_take_30_percent_while_somebody_waits(
    costs: list[float], late: int
) -> None:
    """The loop does nothing but accept, refuse, and answer the late, wherever the gate lets it."""
    gate: ConnectGate[int] = ConnectGate(FlowSettings(connects_in_process_max=1))
    gate.offer(-1, arrival_of(), 0.0)
    for key in range(late):
        gate.offer(key, arrival_of(), 0.0)
    gate.offer(late, arrival_of(), PATIENCE_S - 0.5)
    start_s = now_s = PATIENCE_S
    worked_s = 0.0
    for cost_s in costs:
        asked_s = now_s
        if gate.admit_next(now_s) is not None or gate.may_accept(now_s):
            assert worked_s <= 0.3 * (asked_s - start_s + TICK_S) + 1e-9
            now_s += cost_s
            worked_s += cost_s
            gate.spent(cost_s, now_s)
        else:
            now_s += 0.001
    assert gate.buffered > 0


def test_it_is_a_gate() -> None:
    gate: Gate[str] = gate_of()
    assert gate.limit == 1


def test_beyond_the_places_connects_wait_and_beyond_the_buffer_they_are_refused() -> None:
    gate = gate_of(limit=1, buffer_max=1)
    verdicts = [gate.offer(name, arrival_of(), 0.0) for name in "abc"]
    assert verdicts == [Verdict.ADMIT, Verdict.DELAY, Verdict.REJECT]
    assert gate.refused == {Reason.GATE_BUFFER_FULL: 1}


def test_a_buffer_full_of_bytes_refuses_although_entries_are_free() -> None:
    gate = gate_of(limit=1, buffer_bytes_max=150)
    sizes = {"a": 100, "b": 100, "c": 100, "d": 50}
    verdicts = [gate.offer(name, arrival_of("", size), 0.0) for name, size in sizes.items()]
    assert verdicts == [Verdict.ADMIT, Verdict.DELAY, Verdict.REJECT, Verdict.DELAY]
    assert gate.refused == {Reason.GATE_BUFFER_BYTES: 1}


class Busy:
    """A gate with one place that serves ten CONNECTs per second; twice as many have come."""

    def __init__(self, buffer_max: int) -> None:
        self.gate: ConnectGate[int] = ConnectGate(settings_of(1, buffer_max))
        self.keys = 0
        self.now_s = 0.0
        self.come()
        for inside in range(20):
            assert self.come() is self.come() is Verdict.DELAY
            self.now_s += 0.1
            self.gate.settle(inside, self.now_s)
            assert self.gate.admit_next(self.now_s) == (inside + 1, Verdict.ADMIT)
        assert 9.0 <= self.gate.completion_rate <= 11.0
        assert self.gate.buffered == 20

    def come(self) -> Verdict:
        self.keys += 1
        return self.gate.offer(self.keys - 1, arrival_of(), self.now_s)


def test_who_would_wait_longer_than_its_patience_is_refused_at_once() -> None:
    busy = Busy(buffer_max=1_000)
    while busy.come() is Verdict.DELAY:
        pass
    assert busy.gate.refused == {Reason.GATE_WAIT: 1}
    assert 75 <= busy.gate.buffered <= 85


def test_the_hint_grows_with_those_who_wait_and_those_who_were_refused() -> None:
    busy = Busy(buffer_max=50)
    hints = [busy.gate.retry_after_s(0.5)]
    for _ in range(30 + 50):
        busy.come()
        hints.append(busy.gate.retry_after_s(0.5))
    assert busy.gate.refused == {Reason.GATE_BUFFER_FULL: 50}
    assert all(shorter < longer for shorter, longer in pairwise(hints))
    assert 1.8 <= hints[0] <= 2.2
    assert 9.0 <= hints[-1] <= 11.0


def test_what_is_served_while_nobody_waits_says_nothing_of_what_a_crowd_gets() -> None:
    busy = Busy(buffer_max=1_000)
    for key in range(busy.keys):
        busy.gate.settle(key, busy.now_s)
    for _ in range(500):
        assert busy.come() is Verdict.ADMIT
        busy.gate.settle(busy.keys - 1, busy.now_s)
    assert 9.0 <= busy.gate.completion_rate <= 12.0


def test_who_waits_goes_before_who_comes_even_if_a_place_is_free() -> None:
    gate = gate_of(limit=1)
    gate.offer("a", arrival_of(), 0.0)
    gate.offer("b", arrival_of(), 0.0)
    gate.settle("a", 0.0)
    assert gate.offer("c", arrival_of(), 0.0) is Verdict.DELAY
    assert gate.admit_next(0.0) == ("b", Verdict.ADMIT)
    assert gate.admit_next(0.0) is None


def test_a_connect_that_waited_too_long_is_refused_although_no_place_is_free() -> None:
    gate = gate_of(limit=1)
    gate.offer("a", arrival_of(), 0.0)
    gate.offer("b", arrival_of(), 0.0)
    assert gate.admit_next(PATIENCE_S - 0.1) is None
    assert gate.admit_next(PATIENCE_S) == ("b", Verdict.REJECT)
    assert gate.refused == {Reason.GATE_DEADLINE: 1}


def test_patience_begins_in_the_listen_backlog() -> None:
    gate = gate_of(limit=1)
    for name, waited_s in (("a", 0.0), ("b", 0.0), ("c", 2.0)):
        assert gate.offer(name, Arrival("", 100, waited_s=waited_s), 0.0) is not Verdict.REJECT
    gate.settle("a", 1.0)
    assert gate.admit_next(1.0) == ("b", Verdict.ADMIT)
    assert gate.admit_next(PATIENCE_S - 2.1) is None
    assert gate.admit_next(PATIENCE_S - 2.0) == ("c", Verdict.REJECT)


def test_whoever_is_next_is_in_time_however_long_the_kernel_kept_it() -> None:
    gate = gate_of(limit=1)
    gate.offer("a", arrival_of(), 0.0)
    assert gate.offer("b", Arrival("", 100, waited_s=2 * PATIENCE_S), 0.0) is Verdict.DELAY
    gate.settle("a", 1.0)
    assert gate.admit_next(1.0) == ("b", Verdict.ADMIT)


def test_who_has_waited_in_the_backlog_is_refused_earlier_behind_others() -> None:
    busy = Busy(buffer_max=1_000)
    while busy.gate.offer(busy.keys, Arrival("", 100, waited_s=4.0), 2.0) is Verdict.DELAY:
        busy.keys += 1
    assert busy.gate.refused == {Reason.GATE_WAIT: 1}
    assert 35 <= busy.gate.buffered <= 45


def test_a_crowd_that_gives_up_earlier_teaches_the_gate_to_refuse_earlier() -> None:
    gate: ConnectGate[int] = ConnectGate(settings_of(1, 1_000))
    for key in range(40):
        gate.offer(key, arrival_of(), 0.0)
    for key in range(1, 21):
        gate.settle(key, 3.0)
    gate.tick(3.0, 0.0)
    assert gate.admit_next(3.0) == (21, Verdict.REJECT)
    assert gate.refused == {Reason.GATE_DEADLINE: 1}


def test_a_late_connect_is_not_admitted_even_if_nobody_has_time_to_refuse_it() -> None:
    gate = gate_of(limit=1)
    for name in "ab":
        gate.offer(name, arrival_of(), 0.0)
    gate.offer("c", arrival_of(), 1.0)
    gate.spent(1.0, PATIENCE_S)
    gate.settle("a", PATIENCE_S)
    assert gate.admit_next(PATIENCE_S) == ("c", Verdict.ADMIT)
    assert gate.admit_next(PATIENCE_S) is None
    assert not gate.is_ready
    assert gate.admit_next(PATIENCE_S + 4.0) == ("b", Verdict.REJECT)


def test_a_newer_connect_of_a_client_supersedes_the_one_that_waits() -> None:
    gate = gate_of(limit=1, buffer_max=1)
    gate.offer("inside", arrival_of("other"), 0.0)
    gate.offer("old", arrival_of("client", 100), 0.0)
    assert not gate.is_ready
    assert gate.offer("new", arrival_of("client", 50), 0.0) is Verdict.DELAY
    assert gate.is_ready
    assert (gate.buffered, gate.buffered_bytes) == (1, 50)
    assert gate.admit_next(0.0) == ("old", Verdict.DROP)
    assert gate.admit_next(0.0) is None
    assert gate.refused == {Reason.GATE_SUPERSEDED: 1}


def test_who_is_superseded_and_gone_is_not_heard_of_again() -> None:
    gate = gate_of(limit=1)
    gate.offer("inside", arrival_of(), 0.0)
    gate.offer("old", arrival_of("client"), 0.0)
    gate.offer("new", arrival_of("client"), 0.0)
    gate.settle("old", 0.0)
    assert not gate.is_ready
    assert gate.admit_next(0.0) is None
    assert gate.refused == {}


def test_clients_without_an_id_supersede_nobody() -> None:
    gate = gate_of(limit=1)
    for name in "abc":
        gate.offer(name, arrival_of(""), 0.0)
    assert gate.buffered == 2


def test_a_client_that_leaves_the_buffer_frees_its_bytes_and_is_never_admitted() -> None:
    gate = gate_of(limit=1)
    for name in "abc":
        gate.offer(name, arrival_of(), 0.0)
    gate.settle("b", 0.0)
    assert gate.buffered_bytes == 100
    gate.settle("a", 0.0)
    assert gate.admit_next(0.0) == ("c", Verdict.ADMIT)


def test_without_a_buffer_the_gate_refuses_at_its_limit() -> None:
    gate = gate_of(limit=2, buffer_max=0)
    verdicts = [gate.offer(name, arrival_of(), 0.0) for name in "abc"]
    assert verdicts == [Verdict.ADMIT, Verdict.ADMIT, Verdict.REJECT]


def test_a_shrink_cancels_nobody_and_admits_nobody() -> None:
    gate = gate_of(limit=16)
    for name in "abcdefghijklmnop":
        assert gate.offer(name, arrival_of(), 0.0) is Verdict.ADMIT
    assert gate.offer("q", arrival_of(), 0.0) is Verdict.DELAY
    gate.peer_lost(0.0)
    assert (gate.limit, gate.in_process) == (4, 16)
    for name in "abcdefghijkl":
        gate.settle(name, 0.0)
        assert gate.admit_next(0.0) is None
    gate.settle("m", 0.0)
    assert gate.admit_next(0.0) == ("q", Verdict.ADMIT)


def test_fast_service_opens_the_gate_and_a_tick_under_pressure_closes_it_a_little() -> None:
    gate: ConnectGate[int] = ConnectGate(FlowSettings())
    for key in range(16):
        gate.offer(key, arrival_of(), 0.0)
    for key in range(16):
        gate.settle(key, 0.01)
    assert gate.limit == 32
    gate.tick(0.1, 16.0)
    assert gate.limit == 16


@pytest.mark.parametrize(
    ("pressure", "rung", "accepts_when_spent", "closes_when_spent"),
    [
        (CALM, Rung.BUFFER, True, False),
        (3.0, Rung.CLOSE, True, True),
        (5.0, Rung.STOP, False, False),
    ],
)
def test_the_ladder_decides_what_happens_beyond_the_budget(
    pressure: float, rung: Rung, accepts_when_spent: bool, closes_when_spent: bool
) -> None:
    gate = gate_of()
    for _ in range(CLIMB_TICKS):
        gate.tick(0.0, pressure)
    assert gate.rung is rung
    assert gate.may_accept(0.0)
    assert not gate.closes(0.0)
    gate.spent(10.0, 0.0)
    assert gate.may_accept(0.0) is accepts_when_spent
    assert gate.closes(0.0) is closes_when_spent
    for _ in range(CLIMB_TICKS):
        gate.tick(0.0, CALM)
    assert gate.rung is Rung.BUFFER
    assert gate.may_accept(0.0)
    assert not gate.closes(0.0)


def test_closing_costs_nothing_while_nobody_waits() -> None:
    """Else a crowd that is closed would spend what the next one could be answered with."""
    gate = gate_of()
    for _ in range(CLIMB_TICKS):
        gate.tick(0.0, 3.0)
    gate.spent(0.05, 0.0)
    assert gate.closes(0.0)
    gate.spent(10.0, 0.0)
    assert not gate.closes(1.0)


ANSWER_S = 0.000_2
"""What accepting and answering one costs the loop."""


@given(
    pressures=st.lists(st.floats(0.0, 16.0), min_size=1, max_size=40),
    crowd=st.integers(1, 4_000),
    service_s=st.floats(0.001, 10.0),
    is_full=st.booleans(),
)
def test_at_any_pressure_whoever_is_at_the_door_has_an_answer_in_time(
    pressures: list[float], crowd: int, service_s: float, is_full: bool
) -> None:
    """Admitted, refused or closed: nobody stays outside as long as clients wait, nor inside longer.

    Beyond patience comes what the budget needs to say so; the last pressure stays for ever.
    """
    flow = FlowSettings(connect_patience_s=PATIENCE_S)
    to_refuse_s = 2 * TICK_S + crowd * ANSWER_S / flow.refusal_share
    gate: ConnectGate[int] = ConnectGate(flow)
    outside = deque(range(crowd))
    inside: deque[tuple[float, int]] = deque()
    unanswered = set(outside)
    now_s = 0.0
    for number in range(ceil((PATIENCE_S + to_refuse_s) / TICK_S)):
        now_s = number * TICK_S
        gate.tick(now_s, pressures[min(number, len(pressures) - 1)], is_full=is_full)
        while inside and inside[0][0] <= now_s:
            gate.settle(inside.popleft()[1], now_s)
        while outside and gate.may_accept(now_s):
            key = outside.popleft()
            if gate.closes(now_s):
                unanswered.discard(key)
                continue
            gate.let_in(now_s)
            verdict = gate.offer(key, Arrival("", 100, waited_s=now_s), now_s)
            gate.spent(ANSWER_S, now_s)
            if verdict is Verdict.ADMIT:
                inside.append((now_s + service_s, key))
            if verdict is not Verdict.DELAY:
                unanswered.discard(key)
        while (found := gate.admit_next(now_s)) is not None:
            key, verdict = found
            unanswered.discard(key)
            if verdict is Verdict.ADMIT:
                inside.append((now_s + service_s, key))
            else:
                gate.spent(ANSWER_S, now_s)
        assert not outside or now_s < PATIENCE_S
    assert not unanswered


def test_under_the_worst_pressure_a_free_place_is_given_and_nobody_waits_for_one() -> None:
    gate = gate_of(limit=1)
    for _ in range(CLIMB_TICKS):
        gate.tick(0.0, 16.0)
    places = gate.limit
    verdicts = [gate.offer(number, arrival_of(), 0.0) for number in range(places + 3)]
    assert verdicts == [Verdict.ADMIT] * places + [Verdict.REJECT] * 3
    assert gate.refused == {Reason.GATE_PRESSURE: 3}
    assert gate.buffered == 0


def test_where_memory_presses_newcomers_are_answered_and_none_is_taken_in() -> None:
    gate = gate_of()
    for _ in range(CLIMB_TICKS):
        gate.tick(0.0, 16.0, is_full=True)
    assert gate.may_accept(0.0)
    assert gate.offer("a", arrival_of(), 0.0) is Verdict.REJECT
    assert gate.refused == {Reason.GATE_MEMORY: 1}


def test_on_the_top_rung_a_few_come_in_per_tick_and_whoever_has_waited_long() -> None:
    gate = gate_of(limit=6)
    for _ in range(CLIMB_TICKS):
        gate.tick(0.0, 16.0)
    for waited_s in (3.0, 2.0, 1.0, 0.0):
        assert gate.may_accept(0.0)
        gate.let_in(waited_s)
    assert not gate.may_accept(0.0), "the limit is at its minimum of 4"
    gate.tick(TICK_S, 16.0)
    for _ in range(100):
        assert gate.may_accept(0.0)
        gate.let_in(PATIENCE_S / 2)


def test_accepting_is_limited_only_while_somebody_waits() -> None:
    gate = gate_of(limit=1)
    gate.spent(10.0, 0.0)
    gate.offer("a", arrival_of(), 0.0)
    assert gate.may_accept(0.0)
    gate.offer("b", arrival_of(), 0.0)
    assert gate.may_accept(0.0)
    gate.spent(0.05, 0.0)
    assert not gate.may_accept(0.0)
    gate.settle("b", 0.0)
    assert gate.may_accept(0.0)
