"""Invariants of the gate: 2, 10, 11 and 16 of docs/explain/overload.md, "What must hold"."""

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
from flowguard.flow.load.signals import TICK_S
from flowguard.flow.policy import Arrival
from tests.flowguard.flow.gates import CLIENT_IDS, PATIENCE_S, Guest, arrival_of, settings_of, tick

SHORT_PATIENCE_S = 2.0
"""The state machine's: there a handful waits too long."""


class GateMachine(RuleBasedStateMachine):
    """The gate against a set of admitted and a list of waiting connections."""

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
        if len(self.waiting) >= self.buffer_max:
            return Reason.GATE_BUFFER_FULL
        if sum(g.arrival.size_bytes for g in self.waiting) + size_bytes > self.bytes_max:
            return Reason.GATE_BUFFER_BYTES
        return None

    @rule(
        crowd=st.lists(
            st.tuples(CLIENT_IDS, st.integers(1, 120)),
            min_size=1,
            max_size=8,
        )
    )
    def connects_arrive(self, crowd: list[tuple[str, int]]) -> None:
        for one in crowd:
            self.connect_arrives(*one)

    def connect_arrives(self, client_id: str, size_bytes: int) -> None:
        key = self.offered
        self.offered += 1
        arrival = Arrival(client_id, size_bytes)
        verdict = self.gate.offer(key, arrival, self.now_s)
        for guest in list(self.waiting):
            if client_id and guest.arrival.client_id == client_id:
                self.waiting.remove(guest)
                self.superseded.append(guest.key)
        reason = self.why_not(size_bytes)
        if reason is None and verdict is Verdict.REJECT:
            # A forecast rejects no client before one was late, or if none is ahead of it.
            assert self.hopeful
            assert self.refused.get(Reason.GATE_DEADLINE)
            reason = Reason.GATE_WAIT
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
        tick(self.gate, self.now_s, pressure)
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
        if self.gate.may_accept(self.now_s):
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
            assert guest is self.hopeful[0]
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
    run_state_machine_as_test(GateMachine)  # type: ignore[no-untyped-call]


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
    """After any script, when the last connection has ended, the gate is as at its start."""
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
            tick(gate, now_s, number / 10.0)
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
    """After any history: P < 0.8, no CONNECT waits, a slot is free."""
    gate: ConnectGate[int] = ConnectGate(settings_of(limit=40, buffer_max=20))
    now_s, key = 0.0, 0
    for size, service_s, before in crowds:
        tick(gate, now_s, before)
        for _ in range(size):
            gate.offer(key, arrival_of(f"{key % 7}"), now_s)
            key += 1
        gate.spent(0.01 * size, now_s)
        now_s += service_s
        for done in range(key):
            gate.settle(done, now_s)
    tick(gate, now_s, pressure)
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
