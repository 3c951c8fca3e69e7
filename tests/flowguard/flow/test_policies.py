"""Promises of every policy, with any law (flow/policies, flow/policy).

1. Every name of the settings makes a policy of that name, and no other name does.
2. Its window stays within its documented range; a credit is at least one packet.
3. Same samples, same grants; same seed, same decisions.
4. Its gate gives every CONNECT exactly one outcome, counts the admitted and the waiting ones, holds
   no more than its limits, and ignores the second report of an end; it is invariant 11 of
   docs/explain/overload.md.
5. Rejections are counted by reason, each once.
"""

from dataclasses import replace
from random import Random
from typing import cast, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from flowguard.config import FlowSettings, PolicyName
from flowguard.flow.gate.connect_gate import ConnectGate
from flowguard.flow.load.signals import PRESSURE_MAX, TICK_S, Sample, StoreState
from flowguard.flow.policies import MINDED, POLICIES, make_policy
from flowguard.flow.policy import Arrival, Grant, Policy, Rung
from flowguard.flow.verdict import Reason, Verdict
from simulations.baselines.gates import CONNECTS_UNLIMITED
from tests.flowguard.flow.crowd import Crowd

NAMES: tuple[PolicyName, ...] = get_args(PolicyName)
EXAMPLES = settings.default.max_examples
SMALL = FlowSettings(
    window_max=40,
    window_floor=0.05,
    connects_in_process_max=4,
    connect_buffer_max=3,
    connect_buffer_bytes_max=600,
    connect_patience_s=2.0,
)
RANGES: dict[PolicyName, tuple[float, float]] = {
    "flowguard": (0.05, 40),
    "unlimited": (65_535, 65_535),
    "static-1": (1, 1),
    "static-10": (10, 10),
    "static-100": (100, 100),
    "reject-at-limit": (0.05, 40),
    "rate-limit-v1": (65_535, 65_535),
    "level-map": (1, 40),
    "emqx-flag": (40, 40),
    "flashmq-gate": (40, 40),
    "vegas": (1, 40),
    "gradient2": (1, 40),
}
BUFFERLESS = {"unlimited", "reject-at-limit", "rate-limit-v1", "emqx-flag", "flashmq-gate"}
DURATIONS = st.floats(0.0, 20.0)
SHARES = st.floats(0.0, 1.2)
SAMPLES = st.builds(
    Sample,
    now_s=st.just(0.0),
    sojourn_s=DURATIONS,
    drift_s=DURATIONS,
    commit_s=DURATIONS,
    store_state=st.sampled_from(StoreState),
    replication_age_s=DURATIONS,
    memory_share=SHARES,
    unfinished_share=SHARES,
    response_s=DURATIONS,
    completed=st.integers(0, 100_000),
    in_process=st.integers(0, 100_000),
    clients_active=st.integers(0, 100_000),
)


def grants_of(policy: Policy[str], samples: list[Sample], count: int, seed: int = 0) -> list[Grant]:
    """Return the grants of `count` ticks, each with one of the samples."""
    random = Random(seed)
    grants = []
    for number in range(count):
        grants.append(policy.tick(replace(random.choice(samples), now_s=number * TICK_S)))
    return grants


def test_every_name_of_the_settings_has_a_policy_and_no_other_name_has_one() -> None:
    assert set(POLICIES) == set(NAMES) == set(RANGES)
    for name in NAMES:
        policy: Policy[str] = make_policy(name, FlowSettings())
        assert policy.name == name


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(samples=st.lists(SAMPLES, min_size=1, max_size=40), seed=st.integers(0, 1_000))
@settings(max_examples=EXAMPLES // 2)
def test_a_thousand_ticks_of_anything_leave_the_window_in_its_range(
    name: PolicyName, samples: list[Sample], seed: int
) -> None:
    least, most = RANGES[name]
    for grant in grants_of(make_policy(name, SMALL), samples, 1_000, seed):
        assert least <= grant.window <= most
        assert 0 <= grant.pressure.value <= PRESSURE_MAX
        assert grant.why
        assert (grant.credits is not None) == (name == "rate-limit-v1")
        assert grant.credits is None or 1 <= grant.credits <= 100


@pytest.mark.parametrize("name", NAMES)
@given(samples=st.lists(SAMPLES, min_size=1, max_size=40))
@settings(max_examples=EXAMPLES // 2)
def test_the_same_samples_give_the_same_grants(name: PolicyName, samples: list[Sample]) -> None:
    one: Policy[str] = make_policy(name, SMALL)
    other: Policy[str] = make_policy(name, SMALL)
    assert grants_of(one, samples, 100) == grants_of(other, samples, 100)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_decisions(name: PolicyName) -> None:
    traces = [Crowd(make_policy(name, SMALL), seed).run(20.0) for seed in (1, 1, 2)]
    assert traces[0] == traces[1] != traces[2]


@pytest.mark.parametrize("name", ["flowguard", "level-map", "vegas", "gradient2"])
def test_a_law_that_sees_overload_gives_less_than_at_rest(name: PolicyName) -> None:
    """Else nothing here would notice a policy that ignores its samples."""
    policy: Policy[str] = make_policy(name, FlowSettings())
    busy = Sample(
        0.0, sojourn_s=2.0, response_s=2.0, completed=400, in_process=9_000, clients_active=90
    )
    fine = Sample(0.0, response_s=0.01, completed=400, in_process=4_000, clients_active=9)
    at_rest = grants_of(policy, [fine], 100)[-1].window
    assert grants_of(policy, [busy], 100)[-1].window < at_rest


@pytest.mark.parametrize("name", NAMES)
def test_invariant_10_a_node_at_rest_refuses_nobody(name: PolicyName) -> None:
    policy: Policy[int] = make_policy(name, FlowSettings())
    for key in range(100):
        now_s = key * TICK_S
        policy.tick(Sample(now_s))
        assert policy.gate.rung is Rung.BUFFER
        assert policy.gate.may_accept(now_s)
        assert policy.gate.offer(key, Arrival(f"client-{key}", 100), now_s) is Verdict.ADMIT
        policy.gate.settle(key, now_s + 0.01)
    assert not policy.gate.refused


def test_each_flag_rises_by_its_own_rule() -> None:
    for name, drift_s, ticks, rung in (
        ("emqx-flag", 0.2, 60, Rung.CLOSE),
        ("emqx-flag", 3.0, 1, Rung.BUFFER),
        ("flashmq-gate", 0.2, 60, Rung.BUFFER),
        ("flashmq-gate", 3.0, 1, Rung.CLOSE),
    ):
        policy: Policy[str] = make_policy(name, FlowSettings())
        grants_of(policy, [Sample(0.0, drift_s=drift_s)], ticks)
        assert policy.gate.rung is rung, (name, drift_s)


@pytest.mark.parametrize(("name", "limit"), [("vegas", 20 + 9 * 6), ("gradient2", 28)])
def test_each_learned_limit_grows_by_its_own_rule(name: PolicyName, limit: int) -> None:
    fine = Sample(0.0, response_s=0.01, completed=400, in_process=4_000, clients_active=9)
    grant = grants_of(make_policy(name, FlowSettings()), [fine], 10)[-1]
    assert grant.why == f"{limit} in process for 9 active clients"


class GateContract(RuleBasedStateMachine):
    """Any gate, against the places its CONNECTs are in."""

    name: PolicyName

    @initialize()
    def policy_is_made(self) -> None:
        self.policy: Policy[int] = make_policy(self.name, SMALL)
        self.gate = self.policy.gate
        self.now_s = 0.0
        self.sizes: list[int] = []
        self.inside: set[int] = set()
        self.waiting: set[int] = set()
        self.over: set[int] = set()
        self.refused = 0

    @rule(
        client=st.integers(0, 6),
        size_bytes=st.integers(1, 300),
    )
    def connect_arrives(self, client: int, size_bytes: int) -> None:
        key = len(self.sizes)
        self.sizes.append(size_bytes)
        free = self.gate.in_process < self.gate.limit
        arrival = Arrival(f"client-{client}" if client else "", size_bytes)
        verdict = self.gate.offer(key, arrival, self.now_s)
        assert verdict is not Verdict.DROP
        if verdict is Verdict.ADMIT:
            assert free
            self.inside.add(key)
        elif verdict is Verdict.DELAY:
            assert self.name not in BUFFERLESS
            self.waiting.add(key)
        else:
            self.is_over(key)

    def is_over(self, key: int) -> None:
        self.over.add(key)
        self.refused += 1

    @rule(choice=st.integers(min_value=0), again=st.booleans())
    def connack_is_sent_or_connection_breaks(self, choice: int, again: bool) -> None:
        known = sorted(self.inside | self.waiting)
        if known:
            key = known[choice % len(known)]
            for _ in range(1 + again):
                self.gate.settle(key, self.now_s)
            self.inside.discard(key)
            self.waiting.discard(key)
            self.over.add(key)

    @rule(choice=st.integers(min_value=0))
    def who_is_over_or_unknown_is_settled_without_harm(self, choice: int) -> None:
        over = sorted(self.over)
        self.gate.settle(over[choice % len(over)] if over else -1, self.now_s)

    @rule(seconds=st.sampled_from([0.001, 0.5, 2.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(sojourn_s=st.sampled_from([0.0, 0.03, 0.06, 0.5]), drift_s=st.sampled_from([0.0, 3.0]))
    def node_ticks(self, sojourn_s: float, drift_s: float) -> None:
        self.now_s += TICK_S
        self.policy.tick(Sample(self.now_s, sojourn_s=sojourn_s, drift_s=drift_s))

    @rule(cost_s=st.sampled_from([0.0001, 0.05]))
    def refusing_takes_time(self, cost_s: float) -> None:
        self.gate.spent(cost_s, self.now_s)

    @rule()
    def turn(self) -> None:
        ready = self.gate.is_ready
        found = self.gate.admit_next(self.now_s)
        assert found is not None or not ready or not self.gate.is_ready  # All of them were late.
        while found is not None:
            key, verdict = found
            self.waiting.remove(key)  # each key leaves once, after it has entered
            if verdict is Verdict.ADMIT:
                self.inside.add(key)
                assert len(self.inside) <= self.gate.limit
            else:
                assert verdict in (Verdict.REJECT, Verdict.DROP)
                self.is_over(key)
            found = self.gate.admit_next(self.now_s)

    @rule()
    def node_drains(self) -> None:
        while (key := self.gate.abandon_next()) is not None:
            self.waiting.remove(key)
            self.is_over(key)
        assert not self.waiting

    @rule(draw=st.floats(0.0, 1.0, exclude_max=True))
    def refused_client_asks_when_to_return(self, draw: float) -> None:
        assert 0.0 <= self.gate.retry_after_s(draw) <= 60.0

    @invariant()
    def everybody_is_in_exactly_one_place(self) -> None:
        if not hasattr(self, "gate"):
            return
        gate = self.gate
        assert 1 <= gate.limit <= (CONNECTS_UNLIMITED if self.name in BUFFERLESS else 4)
        assert gate.in_process == len(self.inside)
        placed = len(self.inside) + len(self.waiting) + len(self.over)
        assert placed == len(self.sizes)
        # Those who are superseded wait for their answer without an entry or bytes of their own.
        assert gate.buffered <= min(len(self.waiting), SMALL.connect_buffer_max)
        held = sum(self.sizes[key] for key in self.waiting)
        assert gate.buffered_bytes <= min(held, SMALL.connect_buffer_bytes_max)
        assert sum(gate.refused.values()) == self.refused
        assert all(isinstance(reason, Reason) for reason in gate.refused)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_invariant_11_every_connect_has_one_outcome_at_any_gate(name: PolicyName) -> None:
    contract = type(f"Gate_{name}", (GateContract,), {"name": name})
    run_state_machine_as_test(contract, settings=settings(max_examples=EXAMPLES // 2))


def test_the_settings_that_are_minded_are_those_that_policies_read_and_gates_do_not() -> None:
    class Watched:
        """Settings that know who asked."""

        def __init__(self) -> None:
            self.asked: set[str] = set()

        def __getattr__(self, key: str) -> object:
            self.asked.add(key)
            return getattr(FlowSettings(), key)

    watched, by_gate = Watched(), Watched()
    ConnectGate[int](cast(FlowSettings, by_gate))
    for name in POLICIES:
        policy: Policy[int] = make_policy(name, cast(FlowSettings, watched))
        policy.tick(Sample(now_s=1.0))
    assert {"policy"} | watched.asked - by_gate.asked == MINDED
    assert set(FlowSettings.model_fields) > MINDED
