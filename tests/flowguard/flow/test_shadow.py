"""A second policy that sees everything and decides nothing (flow/shadow).

1. With a shadow and without, whatever it is, the decisions are the same.
2. A shadow that is the same policy reports the same, to the last CONNECT.
3. A shadow forgets everybody: nobody stays in its gate whom reality and its own service are done
   with, and the mirror keeps nothing of them.
4. It takes as long to serve a CONNECT as reality took, or as reality takes on average.
5. Pauses are counted where it is the stricter one, and nothing is asked where it is not.
"""

from itertools import product
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowguard.baselines.gates import OpenGate
from flowguard.baselines.static import Static
from flowguard.config import FlowSettings, PolicyName
from flowguard.flow.policies import make_policy
from flowguard.flow.policy import Arrival, Grant, Policy, Rung
from flowguard.flow.shadow import Shadow
from flowguard.flow.signals import TICK_S, Sample
from flowguard.flow.verdict import Reason, Verdict
from tests.flowguard.baselines.samples import judge
from tests.flowguard.flow.crowd import Crowd

NAMES: tuple[PolicyName, ...] = get_args(PolicyName)
CONNECT = Arrival("", 100)
SMALL = FlowSettings(
    connects_in_process_max=4,
    connect_buffer_max=3,
    connect_buffer_bytes_max=600,
    connect_patience_s=2.0,
)
STRICT = FlowSettings(
    connects_in_process_max=1,
    connect_buffer_max=2,
    connect_buffer_bytes_max=400,
    connect_patience_s=1.0,
)


def shadowed(
    real: PolicyName, other: PolicyName, real_settings: FlowSettings, other_settings: FlowSettings
) -> Shadow[int]:
    return Shadow(make_policy(real, real_settings), make_policy(other, other_settings))


@pytest.mark.parametrize(("real", "other"), list(product(NAMES, NAMES)))
def test_a_shadow_never_changes_the_trace(real: PolicyName, other: PolicyName) -> None:
    alone = Crowd(make_policy(real, SMALL), seed=7)
    watched = Crowd(shadowed(real, other, SMALL, STRICT), seed=7)
    assert watched.run(8.0) == alone.run(8.0)


def test_a_shadow_that_is_stricter_or_looser_is_told_apart_in_a_crowd() -> None:
    """Else the test above would pass with a shadow that sees nothing."""
    strict = shadowed("unlimited", "reject-at-limit", SMALL, STRICT)
    Crowd(strict, seed=7).run(8.0)
    assert strict.report().refused[Reason.GATE_LIMIT] > 10
    assert not strict.gate.refused
    loose = shadowed("reject-at-limit", "unlimited", STRICT, SMALL)
    Crowd(loose, seed=7).run(8.0)
    assert not loose.report().refused
    assert loose.gate.refused[Reason.GATE_LIMIT] > 10


@pytest.mark.parametrize("name", NAMES)
def test_a_shadow_that_is_the_same_policy_reports_the_same(name: PolicyName) -> None:
    policy = shadowed(name, name, SMALL, SMALL)
    crowd = Crowd(policy, seed=3)
    for _ in range(100):
        crowd.run(TICK_S)
        report, gate = policy.report(), policy.gate
        assert report.refused == gate.refused
        assert (report.in_process, report.buffered) == (gate.in_process, gate.buffered)
        assert report.window == report.window_real
    assert report.closed == report.stricter_ticks == report.looser_ticks == 0
    assert report.policy == name


class Worlds(RuleBasedStateMachine):
    """One gate with a shadow, the same one without: they answer alike; the shadow keeps nobody."""

    @initialize(
        real=st.sampled_from(NAMES),
        other=st.sampled_from(NAMES),
        real_settings=st.sampled_from([SMALL, STRICT]),
        other_settings=st.sampled_from([SMALL, STRICT]),
        same=st.booleans(),
    )
    def worlds_begin(
        self,
        real: PolicyName,
        other: PolicyName,
        real_settings: FlowSettings,
        other_settings: FlowSettings,
        same: bool,
    ) -> None:
        self.same = same
        if same:
            other, other_settings = real, real_settings
        self.watched = shadowed(real, other, real_settings, other_settings)
        self.alone: Policy[int] = make_policy(real, real_settings)
        self.now_s = 0.0
        self.offered = 0
        self.held: set[int] = set()

    @rule(client=st.integers(0, 6), size_bytes=st.integers(1, 300))
    def connect_arrives(self, client: int, size_bytes: int) -> None:
        arrival = Arrival(f"client-{client}" if client else "", size_bytes)
        self.offered += 1
        verdict = self.alone.gate.offer(self.offered, arrival, self.now_s)
        assert self.watched.gate.offer(self.offered, arrival, self.now_s) is verdict
        if verdict in (Verdict.ADMIT, Verdict.DELAY):
            self.held.add(self.offered)

    @rule(choice=st.integers(min_value=0))
    def connack_is_sent_or_connection_breaks(self, choice: int) -> None:
        keys = sorted(self.held)
        key = keys[choice % len(keys)] if keys else -1
        self.held.discard(key)
        for _ in range(2):
            self.alone.gate.settle(key, self.now_s)
            self.watched.gate.settle(key, self.now_s)

    @rule(seconds=st.sampled_from([0.001, 0.3, 1.0, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(sojourn_s=st.sampled_from([0.0, 0.03, 0.06, 0.5]), drift_s=st.sampled_from([0.0, 3.0]))
    def node_ticks(self, sojourn_s: float, drift_s: float) -> None:
        self.now_s += TICK_S
        sample = Sample(self.now_s, sojourn_s=sojourn_s, drift_s=drift_s)
        assert self.watched.tick(sample) == self.alone.tick(sample)

    @rule(cost_s=st.sampled_from([0.0001, 0.05]))
    def refusing_takes_time(self, cost_s: float) -> None:
        self.alone.gate.spent(cost_s, self.now_s)
        self.watched.gate.spent(cost_s, self.now_s)

    @rule(at_most=st.integers(1, 10))
    def turn(self, at_most: int) -> None:
        for _ in range(at_most):
            found = self.alone.gate.admit_next(self.now_s)
            assert self.watched.gate.admit_next(self.now_s) == found
            if found is None:
                break
            if found[1] is not Verdict.ADMIT:
                self.held.remove(found[0])

    @precondition(lambda self: not self.same)  # reality counts those it abandons, a shadow does not
    @rule()
    def node_drains(self) -> None:
        while (key := self.alone.gate.abandon_next()) is not None:
            assert self.watched.gate.abandon_next() == key
            self.held.remove(key)
        assert self.watched.gate.abandon_next() is None

    @invariant()
    def both_look_the_same_and_an_equal_shadow_does_as_well(self) -> None:
        if not hasattr(self, "watched"):
            return
        one, other = self.alone.gate, self.watched.gate
        for name in ("limit", "in_process", "buffered", "buffered_bytes", "rung", "is_ready"):
            assert getattr(one, name) == getattr(other, name), name
        assert one.refused == other.refused
        assert one.may_accept(self.now_s) == other.may_accept(self.now_s)
        assert one.retry_after_s(0.5) == other.retry_after_s(0.5)
        report = self.watched.report()
        if self.same:
            assert (report.in_process, report.buffered) == (one.in_process, one.buffered)
            assert report.refused == one.refused

    def teardown(self) -> None:
        """Everybody leaves, and all the time that serving may take passes."""
        if not hasattr(self, "watched"):
            return
        for key in self.held:
            self.watched.gate.settle(key, self.now_s)
        for _ in range(200):
            self.now_s += 1.0
            self.watched.tick(Sample(self.now_s))
            assert self.watched.gate.admit_next(self.now_s) is None
        report, mirror = self.watched.report(), self.watched._mirror
        assert report.in_process == report.buffered == 0
        assert not mirror._twins
        assert not mirror._waiting
        assert not mirror._due
        # One outcome each: closed, refused, admitted, or gone while it waited.
        assert report.closed + sum(report.refused.values()) + report.admitted <= self.offered


TestWorlds = pytest.mark.slow(Worlds.TestCase)
TestWorlds.settings = settings(max_examples=100, deadline=None)


def test_a_connect_that_only_the_shadow_delays_is_served_there_as_long_as_in_reality() -> None:
    policy = shadowed("unlimited", "flowguard", SMALL, STRICT)
    gate = policy.gate
    gate.offer(1, CONNECT, 0.0)
    gate.offer(2, CONNECT, 0.0)
    assert (policy.report().in_process, policy.report().buffered) == (1, 1)
    gate.settle(2, 0.4)  # served in 0.4 s, while the shadow has not begun
    assert (policy.report().in_process, policy.report().buffered) == (1, 1)
    gate.settle(1, 0.5)
    assert (policy.report().in_process, policy.report().buffered) == (1, 0)  # begins with 2
    policy.tick(Sample(0.8))
    assert policy.report().in_process == 1
    policy.tick(Sample(0.9))
    assert policy.report().in_process == 0


def test_a_connect_that_only_reality_refused_is_served_in_the_mean_time() -> None:
    policy = shadowed("reject-at-limit", "unlimited", STRICT, SMALL)
    gate = policy.gate
    gate.offer(1, CONNECT, 0.0)
    gate.settle(1, 0.3)
    gate.offer(2, CONNECT, 1.0)
    assert gate.offer(3, CONNECT, 1.0) is Verdict.REJECT
    assert policy.report().in_process == 2
    gate.settle(3, 1.1)  # reality's connection closes; the shadow is still at it
    assert policy.report().in_process == 2
    policy.tick(Sample(1.3))
    assert policy.report().in_process == 1


def test_a_connect_that_waited_in_vain_in_reality_is_served_on_in_the_shadow() -> None:
    policy = shadowed("flowguard", "unlimited", STRICT, SMALL)
    gate = policy.gate
    gate.offer(1, CONNECT, 0.0)
    gate.settle(1, 3.0)
    gate.offer(2, CONNECT, 3.0)
    assert gate.offer(3, CONNECT, 3.0) is Verdict.DELAY
    assert gate.admit_next(4.1) == (3, Verdict.REJECT)
    assert policy.report().in_process == 2
    policy.tick(Sample(5.9))
    assert policy.report().in_process == 2
    policy.tick(Sample(6.0))
    assert policy.report().in_process == 1


def test_rounding_does_not_keep_a_connect_in_the_shadow() -> None:
    policy = shadowed("unlimited", "unlimited", SMALL, SMALL)
    since_s, until_s = 0.008, 0.074
    assert since_s + (until_s - since_s) > until_s
    policy.gate.offer(1, CONNECT, since_s)
    policy.gate.settle(1, until_s)
    assert policy.report().in_process == 0


def test_who_is_too_late_in_the_shadow_is_refused_there_with_the_next_tick() -> None:
    policy = shadowed("unlimited", "flowguard", SMALL, STRICT)
    policy.gate.offer(1, CONNECT, 0.0)
    policy.gate.offer(2, CONNECT, 0.0)
    policy.tick(Sample(0.9))
    assert policy.report().refused == {}
    policy.tick(Sample(1.0))
    assert policy.report().refused == {Reason.GATE_DEADLINE: 1}


def test_who_is_too_late_in_the_shadow_is_refused_there_although_reality_lets_it_wait() -> None:
    policy = shadowed("flowguard", "flowguard", FlowSettings(connects_in_process_max=1), STRICT)
    policy.gate.offer(1, CONNECT, 0.0)
    assert policy.gate.offer(2, CONNECT, 0.0) is Verdict.DELAY
    policy.tick(Sample(1.0))
    assert policy.gate.admit_next(1.0) is None
    assert policy.report().refused == {Reason.GATE_DEADLINE: 1}


def test_what_reality_spent_on_refusing_is_spent_in_the_shadow_as_well() -> None:
    policy = shadowed("unlimited", "flowguard", SMALL, STRICT)
    policy.gate.offer(1, CONNECT, 0.0)
    policy.gate.offer(2, CONNECT, 0.0)
    policy.gate.spent(10.0, 0.5)
    policy.tick(Sample(2.0))
    assert policy.report().refused == {}  # it is too late for 2, but nobody has time to say so


def test_a_client_that_leaves_while_it_waits_leaves_the_shadow() -> None:
    policy = shadowed("flowguard", "unlimited", STRICT, SMALL)
    gate = policy.gate
    gate.offer(1, CONNECT, 0.0)
    assert gate.offer(2, CONNECT, 0.0) is Verdict.DELAY
    assert policy.report().in_process == 2
    gate.settle(2, 0.1)
    assert policy.report().in_process == 1


def test_a_socket_that_only_the_shadow_would_have_closed_counts_as_closed() -> None:
    policy = shadowed("unlimited", "flashmq-gate", SMALL, SMALL)
    policy.tick(Sample(0.0, drift_s=3.0))
    assert policy.gate.rung is Rung.BUFFER
    assert policy.gate.offer(1, CONNECT, 0.1) is Verdict.ADMIT
    policy.tick(Sample(0.2))
    assert policy.gate.offer(2, CONNECT, 0.3) is Verdict.ADMIT
    assert policy.report().closed == 1
    assert policy.report().in_process == 1


class Asked:
    """Clients with 3, 30 and 80 packets in process."""

    def __init__(self) -> None:
        self.windows: list[float] = []

    def __call__(self, window: float) -> int:
        self.windows.append(window)
        return sum(in_process > window for in_process in (3, 30, 80))


def fixed(window: int) -> Static[int]:
    gate: OpenGate[int] = OpenGate()
    return Static(f"static-{window}", window, gate, judge)


def test_clients_above_the_window_of_a_stricter_shadow_count_as_paused() -> None:
    policy = Shadow(fixed(100), fixed(10), Asked())
    policy.tick(Sample(0.0, in_process=113))
    policy.tick(Sample(0.1, in_process=113))
    report = policy.report()
    assert (report.paused, report.paused_ticks) == (2, 4)
    assert (report.stricter_ticks, report.looser_ticks) == (2, 0)
    assert (report.window, report.window_real) == (10.0, 100.0)
    policy.tick(Sample(0.2, in_process=10))  # nobody can have more than 10
    assert (policy.report().paused, policy.report().paused_ticks) == (0, 4)


@pytest.mark.parametrize("window", [100, 1_000])
def test_nobody_is_counted_while_the_shadow_is_not_the_stricter_one(window: int) -> None:
    asked = Asked()
    policy = Shadow(fixed(100), fixed(window), asked)
    policy.tick(Sample(0.0, in_process=113))
    assert asked.windows == []
    assert policy.report().paused_ticks == 0
    assert policy.report().looser_ticks == (window > 100)


class Taking:
    """A policy with a window below one."""

    name = "turns"

    def __init__(self) -> None:
        self.gate: OpenGate[int] = OpenGate()

    def tick(self, sample: Sample) -> Grant:
        return Grant(0.05)


def test_one_packet_is_never_a_pause_however_small_the_window() -> None:
    asked = Asked()
    Shadow(fixed(100), Taking(), asked).tick(Sample(0.0, in_process=113))
    assert asked.windows == [1.0]


def test_a_report_before_the_first_tick_says_that_nothing_has_happened() -> None:
    report = shadowed("flowguard", "vegas", SMALL, SMALL).report()
    assert (report.policy, report.window, report.window_real, report.why) == ("vegas", 0.0, 0.0, "")
    assert report.admitted == report.closed == report.paused_ticks == 0
    assert report.refused == {}
