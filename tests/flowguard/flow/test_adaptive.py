"""Flowguard's policy: what it puts together (the parts have their own tests).

1. Alone it grants what the law says, with its reason, and its gate sees the same pressure.
2. In a cluster of one it grants the same, and says the same.
3. In a cluster it grants what the cluster leaves, but tells the others of its own window; the own
   window does not wind up beyond twice of what is in force.
4. The loss of a peer halves window and restarts the gate, once per loss.
"""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.cluster.pressure import Cluster, PressureRecord
from flowguard.config import FlowSettings
from flowguard.flow.adaptive import Flowguard
from flowguard.flow.gate.concurrency import LIMIT_MIN, LIMIT_START
from flowguard.flow.gate.connect_gate import ConnectGate
from flowguard.flow.law import WindowLaw
from flowguard.flow.load.pressure import pressure_of
from flowguard.flow.load.signals import TICK_S, Objectives, Sample, Signal
from flowguard.flow.policy import Arrival
from flowguard.flow.verdict import Reason, Verdict
from simulations.baselines.gates import RejectGate

SETTINGS = FlowSettings(window_floor=0.5)
SOJOURNS = st.lists(st.floats(0.0, 0.5), min_size=1, max_size=200)


def flowguard(
    cluster: Cluster | None = None,
    tell: Callable[[PressureRecord], None] | None = None,
    places: int = SETTINGS.connects_in_process_max,
) -> Flowguard[str]:
    law = WindowLaw(SETTINGS.window_max, SETTINGS.window_floor)
    settings = SETTINGS.model_copy(update={"connects_in_process_max": places})
    gate: ConnectGate[str] = ConnectGate(settings)
    said: list[PressureRecord] = []
    return Flowguard("flowguard", law, gate, Objectives(), cluster, tell or said.append)


def own_cluster() -> Cluster:
    return Cluster("own", 1, SETTINGS)


def peer(sequence: int, window: float, pressure: float, node: str = "peer") -> PressureRecord:
    return PressureRecord(node, 1, sequence, window, pressure, Signal.STORE, 16)


def sample(tick: int, sojourn_s: float) -> Sample:
    return Sample(tick * TICK_S, sojourn_s=sojourn_s)


@given(SOJOURNS)
def test_alone_it_grants_what_the_law_says_and_why(sojourns: list[float]) -> None:
    policy, law = flowguard(), WindowLaw(SETTINGS.window_max, SETTINGS.window_floor)
    for tick, sojourn_s in enumerate(sojourns):
        seen = sample(tick, sojourn_s)
        pressure = pressure_of(seen, Objectives())
        grant = policy.tick(seen)
        assert (grant.window, grant.why) == law.step(pressure, seen)
        assert grant.pressure == pressure


def test_memory_of_those_who_wait_cuts_neither_windows_nor_places_but_takes_nobody_in() -> None:
    policy, crowded = flowguard(), 0.75
    for tick in range(20):
        seen = Sample(
            tick * TICK_S, memory_share=crowded, waiting_share=0.5, connect_room_bytes=0.0
        )
        grant = policy.tick(seen)
    assert grant.pressure.cause is Signal.MEMORY
    assert grant.pressure.value > 1.0
    assert grant.window == flowguard().tick(Sample(0.0)).window
    assert grant.why.endswith("CONNECTs that wait hold 50% of the memory")
    assert policy.gate.limit == LIMIT_START
    arrivals = [Arrival("", 100, held_bytes=1_000) for _ in range(LIMIT_START + 1)]
    verdicts = [
        policy.gate.offer(str(number), arrival, 2.0) for number, arrival in enumerate(arrivals)
    ]
    assert verdicts == [Verdict.ADMIT] * LIMIT_START + [Verdict.REJECT]
    assert policy.gate.reason is Reason.GATE_MEMORY


@given(SOJOURNS)
def test_a_cluster_of_one_changes_nothing(sojourns: list[float]) -> None:
    alone, clustered = flowguard(), flowguard(own_cluster())
    for tick, sojourn_s in enumerate(sojourns):
        seen = sample(tick, sojourn_s)
        assert clustered.tick(seen) == alone.tick(seen)


def test_the_gate_sees_the_pressure_of_the_same_tick() -> None:
    policy = flowguard()
    policy.tick(sample(0, 0.2))  # eight times the objective
    assert policy.gate.limit < LIMIT_START


def test_a_node_of_unknown_path_grants_the_least_window_of_all_nodes() -> None:
    cluster = own_cluster()
    cluster.path = None
    policy = flowguard(cluster)
    cluster.merge(peer(1, 7.0, 3.0), 0.0)
    grant = policy.tick(sample(0, 0.0))
    assert grant.window == 7.0
    assert grant.why.endswith("; the cluster leaves 7 of 100")
    assert grant.pressure.value == 0.0


def test_a_replica_in_distress_limits_its_node_and_no_other_does() -> None:
    cluster = own_cluster()
    policy = flowguard(cluster)
    cluster.merge(peer(1, 7.0, 3.0), 0.0)
    assert policy.tick(sample(0, 0.0)).window == 100.0
    cluster.path = frozenset({"own", "peer"})
    assert policy.tick(sample(1, 0.0)).window == 7.0


@given(st.floats(0.5, 100.0), st.floats(0.0, 16.0), SOJOURNS)
def test_a_node_off_the_path_takes_nothing_of_the_grant(
    window: float, pressure: float, sojourns: list[float]
) -> None:
    cluster = own_cluster()
    policy = flowguard(cluster)
    for tick, sojourn_s in enumerate(sojourns):
        cluster.merge(peer(tick + 1, window, pressure), tick * TICK_S)
        granted = policy.tick(sample(tick, sojourn_s)).window
        assert granted == pytest.approx(max(SETTINGS.window_floor, policy._law.window))


def test_under_rule_max_every_node_is_on_the_path() -> None:
    cluster = Cluster("own", 1, FlowSettings(cluster_rule="max"))
    cluster.merge(peer(1, 7.0, 3.0), 0.0)
    assert flowguard(cluster).tick(sample(0, 0.0)).window == 7.0


def test_the_others_hear_of_the_nodes_own_window_not_of_what_they_leave_it() -> None:
    told: list[PressureRecord] = []
    cluster = own_cluster()
    policy = flowguard(cluster, told.append)
    cluster.merge(peer(1, 7.0, 3.0), 0.0)
    policy.tick(Sample(0.0, commit_s=0.06))
    (record,) = told
    assert (record.node, record.window, record.cause) == ("own", 100.0, Signal.STORE)
    assert record.pressure == pytest.approx(0.8)
    assert record.connects_limit == policy.gate.limit


def test_behind_a_bottleneck_the_own_window_stays_at_twice_of_what_is_in_force() -> None:
    """Five seconds in the dead band, behind a replica at 7."""
    cluster = own_cluster()
    cluster.path = frozenset({"own", "peer"})
    policy = flowguard(cluster)
    for tick in range(50):
        cluster.merge(peer(tick + 1, 7.0, 3.0), tick * TICK_S)
        policy.tick(sample(tick, 0.025))
    assert policy._law.window == pytest.approx(14.0)


def test_a_lost_peer_halves_the_window_and_restarts_the_gate_once() -> None:
    cluster = own_cluster()
    policy = flowguard(cluster)
    cluster.merge(peer(1, 100.0, 0.0), 0.0)
    for tick in range(49):
        assert policy.tick(sample(tick, 0.0)).window == 100.0
    assert policy.gate.limit == LIMIT_START
    grants = [policy.tick(sample(tick, 0.0)) for tick in range(49, 60)]
    assert min(grant.window for grant in grants) == 50.0
    assert policy.gate.limit == LIMIT_MIN
    assert policy._law.window > 50.0  # it grows again, under the guard of the cluster
    cluster.merge(peer(1, 100.0, 0.0, "another"), 6.0)
    assert policy.tick(sample(61, 0.0)).window == 50.0


def test_the_second_loss_counts_as_the_first_did() -> None:
    cluster = own_cluster()
    policy = flowguard(cluster)
    for name, lost_tick in (("one", 51), ("other", 700)):
        cluster.merge(peer(1, 100.0, 0.0, name), (lost_tick - 51) * TICK_S)
        policy.tick(sample(lost_tick - 51, 0.0))
        policy._law._controller.value = 100.0
        policy.tick(sample(lost_tick, 0.0))
        assert policy._law.window <= 51.0
        assert policy.gate.limit == LIMIT_MIN


def test_a_gate_that_borrows_its_limit_restarts_with_the_lender() -> None:
    lender: ConnectGate[str] = ConnectGate(SETTINGS)
    gate: RejectGate[str] = RejectGate(lender)
    cluster = own_cluster()
    law = WindowLaw(SETTINGS.window_max, SETTINGS.window_floor)
    policy = Flowguard("reject-at-limit", law, gate, Objectives(), cluster)
    cluster.merge(peer(1, 100.0, 0.0), 0.0)
    policy.tick(sample(0, 0.0))
    policy.tick(sample(60, 0.0))
    assert gate.limit == LIMIT_MIN
