"""The gate under pressure: what becomes of who is at the door, and what answering may cost."""

from collections import deque
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.config import FlowSettings
from flowguard.flow import ConnectGate, Reason, Verdict
from flowguard.flow.policy import Arrival, Rung
from flowguard.flow.refusals import CLIMB_TICKS
from flowguard.flow.signals import TICK_S, Signal
from tests.flowguard.flow.gates import PATIENCE_S, arrival_of, gate_of, tick

CALM = 0.5


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
        tick(gate, 0.0, pressure)
    assert gate.rung is rung
    assert gate.may_accept(0.0)
    assert not gate.closes(0.0)
    gate.spent(10.0, 0.0)
    assert gate.may_accept(0.0) is accepts_when_spent
    assert gate.closes(0.0) is closes_when_spent
    for _ in range(CLIMB_TICKS):
        tick(gate, 0.0, CALM)
    assert gate.rung is Rung.BUFFER
    assert gate.may_accept(0.0)
    assert not gate.closes(0.0)


def test_closing_costs_nothing_while_nobody_waits() -> None:
    """Else a crowd that is closed would spend what the next one could be answered with."""
    gate = gate_of()
    for _ in range(CLIMB_TICKS):
        tick(gate, 0.0, 3.0)
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
    cause=st.sampled_from(Signal),
)
def test_at_any_pressure_whoever_is_at_the_door_has_an_answer_in_time(
    pressures: list[float], crowd: int, service_s: float, cause: Signal
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
        tick(gate, now_s, pressures[min(number, len(pressures) - 1)], cause)
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
        tick(gate, 0.0, 16.0)
    places = gate.limit
    verdicts = [gate.offer(number, arrival_of(), 0.0) for number in range(places + 3)]
    assert verdicts == [Verdict.ADMIT] * places + [Verdict.REJECT] * 3
    assert gate.refused == {Reason.GATE_PRESSURE: 3}
    assert gate.buffered == 0


def test_where_memory_presses_newcomers_are_answered_and_none_is_taken_in() -> None:
    gate = gate_of()
    for _ in range(CLIMB_TICKS):
        tick(gate, 0.0, 16.0, Signal.MEMORY)
    assert gate.may_accept(0.0)
    assert gate.offer("a", arrival_of(), 0.0) is Verdict.REJECT
    assert gate.refused == {Reason.GATE_MEMORY: 1}


def test_on_the_top_rung_a_few_come_in_per_tick_and_whoever_has_waited_long() -> None:
    gate = gate_of(limit=6)
    for _ in range(CLIMB_TICKS):
        tick(gate, 0.0, 16.0)
    for waited_s in (3.0, 2.0, 1.0, 0.0):
        assert gate.may_accept(0.0)
        gate.let_in(waited_s)
    assert not gate.may_accept(0.0), "the limit is at its minimum of 4"
    tick(gate, TICK_S, 16.0)
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
