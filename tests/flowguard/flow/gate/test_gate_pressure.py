"""The gate under pressure: the outcome of each CONNECT, and the cost of answers."""

from collections import deque
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.config import FlowSettings
from flowguard.flow import ConnectGate, Reason, Verdict
from flowguard.flow.gate.connect_gate import FULL_ABOVE
from flowguard.flow.load.signals import TICK_S, Pressure, Sample, Signal
from flowguard.flow.policy import Arrival
from tests.flowguard.flow.gates import PATIENCE_S, arrival_of, gate_of, tick


@pytest.mark.parametrize("pressure", [0.5, 3.0, 16.0])
def test_connections_beyond_the_budget_stay_in_the_backlog_at_any_pressure(pressure: float) -> None:
    gate = gate_of()
    tick(gate, 0.0, pressure)
    gate.offer("in process", arrival_of(), 0.0)
    gate.offer("waits", arrival_of(), 0.0)
    assert gate.may_accept(0.0)
    gate.spent(10.0, 0.0)
    assert not gate.may_accept(0.0)
    assert not gate.closes(0.0)


ANSWER_S = 0.000_2
"""Cost of accepting and answering one CONNECT, seconds of the loop."""


@given(
    pressures=st.lists(st.floats(0.0, 16.0), min_size=1, max_size=40),
    crowd=st.integers(1, 4_000),
    service_s=st.floats(0.001, 10.0),
    cause=st.sampled_from(Signal),
)
def test_at_any_pressure_whoever_is_at_the_door_has_an_answer_in_time(
    pressures: list[float], crowd: int, service_s: float, cause: Signal
) -> None:
    """Admitted, rejected or closed: no client stays outside as long as clients wait, nor inside
    longer.

    Beyond the timeout it takes the time that the budget needs to answer. The last pressure stays
    for ever.
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


@pytest.mark.parametrize("pressure", [FULL_ABOVE, FULL_ABOVE + 0.1])
def test_full_memory_rejects_a_connect_though_a_slot_is_free(pressure: float) -> None:
    gate = gate_of()
    tick(gate, 0.0, pressure, Signal.MEMORY)
    assert gate.may_accept(0.0)
    verdict = gate.offer("a", arrival_of(), 0.0)
    assert (verdict is Verdict.REJECT) is (pressure > FULL_ABOVE)
    assert gate.refused == ({Reason.GATE_MEMORY: 1} if pressure > FULL_ABOVE else {})


def test_without_memory_a_few_come_in_per_tick_and_all_that_have_waited_long() -> None:
    gate = gate_of(limit=6)
    full = Pressure(1.0, Signal.MEMORY, {})
    gate.tick(Sample(0.0, connect_room_bytes=0.0), full)
    for waited_s in (3.0, 2.0, 1.0, 0.0, 0.0, 0.0):
        assert gate.may_accept(0.0)
        gate.let_in(waited_s)
    assert not gate.may_accept(0.0)
    gate.tick(Sample(TICK_S, connect_room_bytes=0.0), full)
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


@pytest.mark.parametrize("pressure", [FULL_ABOVE, FULL_ABOVE + 0.1])
def test_rejecting_all_connects_for_memory_has_a_budget_though_none_waits(pressure: float) -> None:
    gate = gate_of()
    tick(gate, 0.0, pressure, Signal.MEMORY)
    assert gate.may_accept(0.0)
    gate.spent(10.0, 0.0)
    assert gate.may_accept(0.0) is (pressure <= FULL_ABOVE)
