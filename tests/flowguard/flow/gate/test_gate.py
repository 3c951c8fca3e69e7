"""The gate: which CONNECTs are admitted, wait, or are rejected.

`test_concurrency`, `test_waiting` and `test_refusals` test the parts of the gate, and
`test_gate_crowd` its effect on a crowd.
"""

from itertools import pairwise

import pytest

from flowguard.config import FlowSettings
from flowguard.flow import ConnectGate, Reason, Verdict
from flowguard.flow.gate.concurrency import LIMIT_START
from flowguard.flow.gate.connect_gate import UNDER_WAY
from flowguard.flow.load.signals import CALM, TICK_S, Pressure, Sample, Signal
from flowguard.flow.policy import Arrival, Gate
from tests.flowguard.flow.gates import (
    PATIENCE_S,
    Busy,
    arrival_of,
    gate_of,
    settings_of,
    tick,
)


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


def test_nobody_is_refused_because_it_would_be_late_before_somebody_was() -> None:
    """Ten per second are served now, but how many will be is not known while a crowd comes in."""
    busy = Busy(buffer_max=1_000)
    assert {busy.come() for _ in range(75)} == {Verdict.DELAY}
    assert not busy.gate.refused


def test_once_somebody_was_late_who_would_be_is_refused_at_once() -> None:
    """Ten per second are served, and clients wait for eight seconds."""
    busy = Busy(buffer_max=1_000)
    busy.now_s += PATIENCE_S
    while busy.gate.admit_next(busy.now_s) is not None:
        pass
    while busy.come() is Verdict.DELAY:
        pass
    assert busy.gate.refused[Reason.GATE_WAIT] == 1


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


def test_the_hint_counts_those_outside_by_how_long_the_newest_has_waited_there() -> None:
    busy = Busy(buffer_max=50)
    nobody_outside_s = busy.gate.retry_after_s(0.5)
    busy.gate.let_in(3.0)
    assert busy.gate.retry_after_s(0.5) == nobody_outside_s + 3.0
    tick(busy.gate, busy.now_s + TICK_S, 0.0)
    assert busy.gate.retry_after_s(0.5) == pytest.approx(nobody_outside_s + 3.0, rel=0.01)
    busy.gate.let_in(0.0)
    assert busy.gate.retry_after_s(0.5) == pytest.approx(nobody_outside_s, rel=0.02)


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


def test_while_a_store_of_unknown_rate_stands_all_waiting_connects_go_in() -> None:
    gate = gate_of(limit=100, buffer_max=100)
    names = [f"{key}" for key in range(40)]
    for name in names:
        gate.offer(name, arrival_of(), 0.0)
    assert (gate.in_process, gate.buffered) == (LIMIT_START, 40 - LIMIT_START)
    assert gate.late_claims_max == 0
    stored = Pressure(16.0, Signal.STORE, {Signal.STORE: 16.0})
    for now_s in (0.3, 0.4, 0.5):
        gate.tick(Sample(now_s, commit_s=now_s), stored)
        while gate.admit_next(now_s) is not None:
            pass
    assert (gate.limit, gate.in_process, gate.buffered) == (40, 40, 0)
    gate.tick(Sample(0.6, commit_s=0.2), stored)
    assert gate.limit == 20


def test_a_slow_store_gets_as_many_connects_as_it_completes_in_a_quarter_of_the_patience() -> None:
    """As many as wait would make its commits longer than clients wait."""
    gate = gate_of(limit=1_000, buffer_max=1_000)
    for key in range(200):
        gate.offer(f"{key}", arrival_of(), 0.0)
    for step in range(10):  # 30 CONNECTs per second.
        now_s = 0.1 * step + 0.1
        for key in range(3 * step, 3 * step + 3):
            gate.settle(f"{key}", now_s)
            gate.admit_next(now_s)
        gate.tick(Sample(now_s), CALM)
    stored = Pressure(16.0, Signal.STORE, {Signal.STORE: 16.0})
    gate.tick(Sample(1.1, commit_s=4.0), stored)
    assert 50 <= gate.limit <= 60
    assert 100 <= gate.late_claims_max <= 120


def test_connects_that_went_in_since_the_last_tick_still_hold_their_memory() -> None:
    gate = gate_of(limit=100, buffer_max=100)
    for key in range(LIMIT_START + 4):
        gate.offer(f"{key}", arrival_of(), 0.0)
    gate.tick(Sample(0.5, commit_s=0.5, connect_room_bytes=300.0), CALM)
    while gate.admit_next(0.5) is not None:
        pass
    assert (gate.in_process, gate.buffered) == (LIMIT_START + 4, 0)
    verdicts = [gate.offer(name, arrival_of(), 0.5) for name in "abcd"]
    assert verdicts == [Verdict.DELAY] * 3 + [Verdict.REJECT]
    assert gate.refused == {Reason.GATE_MEMORY: 1}


def test_a_calm_node_accepts_sockets_however_much_memory_connects_in_process_hold() -> None:
    gate = gate_of(limit=100, buffer_max=100)
    heavy = Arrival("", 100, held_bytes=900)
    room_bytes = (UNDER_WAY + 1) * 1_000.0
    gate.tick(Sample(0.0, connect_room_bytes=room_bytes), CALM)
    for key in range(LIMIT_START + 1):
        gate.offer(f"{key}", heavy, 0.0)
    for _ in range(LIMIT_START):
        gate.let_in(0.0)
    gate.settle(f"{LIMIT_START}", 0.0)
    assert (gate.in_process, gate.buffered) == (LIMIT_START, 0)
    assert gate.may_accept(0.0)


@pytest.mark.parametrize(("commit_s", "drift_s"), [(0.2, 0.0), (0.6, 0.2)])
def test_a_commit_that_is_slow_because_the_loop_is_away_is_no_store_that_stands(
    commit_s: float, drift_s: float
) -> None:
    gate = gate_of(limit=100, buffer_max=100)
    for key in range(40):
        gate.offer(f"{key}", arrival_of(), 0.0)
    for now_s in (0.3, 0.4, 0.5):
        gate.tick(Sample(now_s, commit_s=commit_s, drift_s=drift_s), CALM)
    assert gate.limit == LIMIT_START


FULL = Sample(0.0, worked_s=0.096, connecting_s=0.08)


def test_as_many_as_there_are_places_are_in_time_however_long_they_were_outside() -> None:
    """Otherwise a node whose listen backlog is longer than the timeout of some clients has free
    slots, and rejects nearly all clients."""
    gate = gate_of(limit=3, buffer_max=100)
    outside = Arrival("", 100, waited_s=2 * PATIENCE_S)
    verdicts = [gate.offer(name, outside, 0.0) for name in "abcdefg"]
    assert verdicts == [Verdict.ADMIT] * 3 + [Verdict.DELAY] * 3 + [Verdict.REJECT]
    assert gate.refused == {Reason.GATE_DEADLINE: 1}
    for inside, waiting in zip("abc", "def", strict=True):
        gate.settle(inside, 1.0)
        assert gate.admit_next(1.0) == (waiting, Verdict.ADMIT)


def test_as_many_as_are_served_in_a_tick_are_in_time_however_long_they_were_outside() -> None:
    """Sockets may be left outside until the next one."""
    gate = gate_of(limit=1, buffer_max=100)
    for key in range(53):
        gate.offer(f"{key}", arrival_of(), 0.0)
    for key in range(50):
        gate.settle(f"{key}", 0.02 * (key + 1))
        gate.admit_next(0.02 * (key + 1))
    assert (gate.buffered, gate.completion_rate) == (2, pytest.approx(50.0))
    outside = Arrival("", 100, waited_s=2 * PATIENCE_S)
    verdicts = [gate.offer(name, outside, 1.0) for name in "abcde"]
    assert verdicts == [Verdict.DELAY] * 3 + [Verdict.REJECT] * 2


def test_who_is_late_when_it_comes_is_refused_at_once() -> None:
    """It would stand behind those that are in time, and count as one of those that may come in."""
    gate = gate_of(limit=1, buffer_max=100)
    for name in "ab":
        gate.offer(name, arrival_of(), 0.0)
    just_in_time, late = (Arrival("", 100, waited_s=PATIENCE_S - left_s) for left_s in (0.1, 0.0))
    assert gate.offer("c", just_in_time, 0.0) is Verdict.DELAY
    assert gate.offer("d", late, 0.0) is Verdict.REJECT
    assert gate.buffered == 2


def test_a_crowd_that_gives_up_earlier_teaches_the_gate_to_refuse_earlier() -> None:
    gate: ConnectGate[int] = ConnectGate(settings_of(1, 1_000))
    for key in range(40):
        gate.offer(key, arrival_of(), 0.0)
    for key in range(1, 21):
        gate.settle(key, 3.0)
    tick(gate, 3.0, 0.0)
    assert gate.admit_next(3.0) == (21, Verdict.REJECT)
    assert gate.refused == {Reason.GATE_DEADLINE: 1}


def test_who_gives_up_tells_of_all_the_time_that_it_has_waited() -> None:
    """Here four seconds, one of them outside; the limit is four fifths of that."""
    gate: ConnectGate[int] = ConnectGate(settings_of(1, 1_000))
    for key in range(2):
        gate.offer(key, arrival_of(), 0.0)
    for key in range(2, 22):
        gate.offer(key, Arrival("", 100, waited_s=1.0), 0.0)
        gate.settle(key, 3.0)
    tick(gate, 3.0, 0.0)
    assert gate.admit_next(3.1) is None
    assert gate.admit_next(3.3) == (1, Verdict.REJECT)


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
    gate.peer_lost(0.1)
    assert (gate.limit, gate.in_process) == (4, 16)
    for name in "abcdefghijkl":
        gate.settle(name, 0.1)
        assert gate.admit_next(0.1) is None
    gate.settle("m", 0.1)
    assert gate.admit_next(0.1) == ("q", Verdict.ADMIT)


def test_fast_service_opens_the_gate_and_a_tick_under_pressure_closes_it_a_little() -> None:
    gate: ConnectGate[int] = ConnectGate(FlowSettings())
    for key in range(16):
        gate.offer(key, arrival_of(), 0.0)
    for key in range(16):
        gate.settle(key, 0.01)
    assert gate.limit == 32
    tick(gate, 0.1, 16.0)
    assert gate.limit == 16


def test_who_waits_holds_no_more_than_memory_has_left_between_two_ticks() -> None:
    gate = gate_of(limit=1)
    gate.offer("in", arrival_of(), 0.0)
    gate.tick(Sample(0.0, connect_room_bytes=2_500.0), CALM)
    heavy = Arrival("", 100, held_bytes=900)
    verdicts = [gate.offer(key, heavy, 0.0) for key in "abc"]
    assert verdicts == [Verdict.DELAY, Verdict.DELAY, Verdict.REJECT]
    assert gate.refused == {Reason.GATE_MEMORY: 1}
    assert (gate.held_bytes, gate.buffered_bytes) == (2_000, 200)
    gate.settle("a", 0.0)
    assert gate.offer("d", heavy, 0.0) is Verdict.DELAY


def test_where_memory_has_nothing_left_newcomers_wait_outside() -> None:
    gate = gate_of(limit=4)
    gate.tick(Sample(0.0, connect_room_bytes=0.0), CALM)
    for _ in range(4):
        assert gate.may_accept(0.0)
        gate.let_in(0.0)
    assert not gate.may_accept(0.0)
    gate.tick(Sample(TICK_S, connect_room_bytes=0.0), CALM)
    gate.let_in(PATIENCE_S)
    assert gate.may_accept(TICK_S), "whoever has waited for long is let in, to be told"


def test_whoever_got_its_place_leaves_room_at_the_door_for_the_next() -> None:
    gate = gate_of(limit=4)
    gate.tick(Sample(0.0, connect_room_bytes=0.0), CALM)
    for key in "abcdefgh":
        assert gate.may_accept(0.0), "nobody waits, and places are free"
        gate.let_in(0.0)
        assert gate.offer(key, arrival_of(), 0.0) is Verdict.ADMIT
        gate.settle(key, 0.0)
