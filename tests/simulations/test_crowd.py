import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from flowguard.config import PolicyName
from simulations.crowd.connection import Attempt, Outcome
from simulations.scenario import (
    Fault,
    NetworkPlan,
    NodePlan,
    PopulationPlan,
    RetryPlan,
    Scenario,
)
from simulations.world import World

POLICIES: tuple[PolicyName, ...] = ("flowguard", "reject-at-limit")
CLIENTS = 500


def flash_crowd(**changes: Any) -> Scenario:
    """500 clients in a second on three nodes that serve 50 CONNECTs a second each."""
    return Scenario(
        **{
            "nodes": 3,
            "duration_s": 300.0,
            "ends_when_connected": True,
            "node": NodePlan(connect_s=0.02, listen_backlog=64),
            "network": NetworkPlan(replicas=2),
            "populations": {"crowd": PopulationPlan(clients=CLIENTS, node="random")},
            **changes,
        }
    )


def run(scenario: Scenario, policy: PolicyName) -> tuple[World, list[Attempt]]:
    attempts: list[Attempt] = []
    world = World(scenario, policy, on_attempt=attempts.append)
    world.run()
    return world, attempts


def assert_each_attempt_has_one_outcome(world: World, attempts: list[Attempt]) -> None:
    """Attempts that were under way at the end of the run have none."""
    (population,) = world.populations
    ended = Counter((attempt.client, attempt.number) for attempt in attempts)
    under_way = Counter(
        (connection.client, connection.attempt)
        for connection in population.connections
        if connection is not None and connection.outcome is None
    )
    assert ended + under_way == Counter(
        (client, number)
        for client in range(population.clients)
        for number in range(population.attempts[client])
    )
    outcomes = Counter(attempt.outcome for attempt in attempts)
    assert population.outcomes == [outcomes[outcome] for outcome in Outcome]
    assert all(attempt.started_s <= attempt.ended_s for attempt in attempts)


@pytest.mark.parametrize("accepts_first", [False, True], ids=["by turns", "acceptor first"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_flash_crowd_is_connected_to_the_last_client_and_every_attempt_has_one_outcome(
    policy: PolicyName, accepts_first: bool
) -> None:
    node = NodePlan(connect_s=0.02, listen_backlog=64, accepts_first=accepts_first)
    world, attempts = run(flash_crowd(node=node), policy)
    (population,) = world.populations
    assert population.first_connected_count == population.connected_count == CLIENTS
    assert sum(population.connects.counts) == CLIENTS
    assert world.ended_s is not None
    assert world.ended_s >= CLIENTS / 3 * node.connect_s
    assert not any(c is None or c.outcome is not Outcome.CONNECTED for c in population.connections)
    assert_each_attempt_has_one_outcome(world, attempts)


def test_flowguard_lets_a_crowd_wait_that_a_limit_turns_away() -> None:
    patient, _ = run(flash_crowd(), "flowguard")
    strict, _ = run(flash_crowd(), "reject-at-limit")
    assert patient.populations[0].outcomes[Outcome.REFUSED] == 0
    assert strict.populations[0].outcomes[Outcome.REFUSED] > 0
    assert patient.ended_s is not None
    assert strict.ended_s is not None
    assert patient.ended_s < strict.ended_s


def test_two_policies_meet_the_same_clients_at_the_same_times_on_the_same_nodes() -> None:
    arrivals = []
    for policy in POLICIES:
        _, attempts = run(flash_crowd(), policy)
        arrivals.append({a.client: (a.started_s, a.node) for a in attempts if a.number == 0})
    assert arrivals[0] == arrivals[1]
    assert sorted(arrivals[0]) == list(range(CLIENTS))
    assert {node for _, node in arrivals[0].values()} == {0, 1, 2}
    assert all(-1e-9 < started_s < 1.0 for started_s, _ in arrivals[0].values())


@pytest.mark.parametrize("policy", POLICIES)
def test_every_attempt_has_one_outcome_while_a_node_is_down_and_clients_lose_patience(
    policy: PolicyName,
) -> None:
    crowd = PopulationPlan(
        clients=CLIENTS, node="round-robin", timeout_s=1.0, retry=RetryPlan(max_s=4.0)
    )
    scenario = flash_crowd(
        populations={"crowd": crowd},
        duration_s=8.0,
        ends_when_connected=False,
        faults=(
            Fault(kind="node_down", node=1, at_s=0.7, until_s=6.0),
            Fault(kind="slow_cpu", node=2, at_s=0.5, factor=20.0),
        ),
    )
    world, attempts = run(scenario, policy)
    assert {a.outcome for a in attempts} >= {
        Outcome.CONNECTED,
        Outcome.CLOSED,
        Outcome.TIMED_OUT,
        Outcome.UNREACHABLE,
    }
    (population,) = world.populations
    assert population.first_connected_count <= CLIENTS
    assert_each_attempt_has_one_outcome(world, attempts)


def test_a_process_that_runs_out_of_memory_loses_its_connections_and_comes_back() -> None:
    node = NodePlan(
        process_bytes=2**20,
        memory_max_bytes=4 * 2**20,
        connection_bytes=64 * 2**10,
        restart_s=1.0,
    )
    crowd = PopulationPlan(clients=100, node="balanced")
    scenario = flash_crowd(
        nodes=1,
        node=node,
        network=NetworkPlan(),
        populations={"crowd": crowd},
        duration_s=20.0,
        ends_when_connected=False,
    )
    world, attempts = run(scenario, "unlimited")
    assert world.machines[0].deaths_count > 0
    assert world.populations[0].outcomes[Outcome.UNREACHABLE] > 0
    assert_each_attempt_has_one_outcome(world, attempts)


def test_clients_that_do_not_retry_give_up_and_the_run_ends_without_them() -> None:
    crowd = PopulationPlan(clients=CLIENTS, node="random", retry=RetryPlan(kind="none"))
    world, _ = run(flash_crowd(populations={"crowd": crowd}), "reject-at-limit")
    (population,) = world.populations
    assert population.given_up_count > 0
    assert population.given_up_count + population.first_connected_count == CLIENTS
    assert world.ended_s is not None
    assert world.ended_s < world.scenario.duration_s


TRACED = """
import sys

from simulations.scenario import NetworkPlan, NodePlan, PopulationPlan, Scenario
from simulations.world import World

scenario = Scenario(
    seed=int(sys.argv[1]),
    nodes=3,
    duration_s=300.0,
    ends_when_connected=True,
    node=NodePlan(connect_s=0.02, listen_backlog=64, noise=0.1),
    network=NetworkPlan(replicas=2),
    populations={"crowd": PopulationPlan(clients=500, node="random")},
)
for policy in ("flowguard", "reject-at-limit"):
    world = World(scenario, policy, traced=True)
    world.run()
    population = world.populations[0]
    print(world.engine.trace, world.ended_s, population.outcomes, sum(population.first_connected_s))
"""


def _trace(seed: int, hash_seed: int) -> str:
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-c", TRACED, str(seed)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_the_same_seed_gives_the_same_crowd_event_for_event_whatever_the_hash_seed() -> None:
    first = _trace(1, 0)
    assert len(first.splitlines()) == len(POLICIES)
    assert _trace(1, 0) == first
    assert _trace(1, 12_345) == first
    assert _trace(2, 0) != first


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"nodes": 0}, "nodes"),
        ({"nodess": 1}, "nodess"),
        ({"node": {"connect_ms": 1}}, "node.connect_ms"),
        ({"populations": {"crowd": {"clients": 0}}}, "populations.crowd.clients"),
        ({"network": {"replicas": 2}}, "network.replicas is 2: there are 1 nodes"),
        ({"faults": [{"kind": "node_down", "at_s": 1, "node": 1}]}, "faults.0.node is 1"),
        ({"populations": {"a": {"publish": {"to": "b"}}}}, "populations.a.publish.to is b"),
    ],
)
def test_an_impossible_scenario_is_refused_with_a_line_that_names_the_key(
    keys: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Scenario.model_validate(keys)
    assert any(named in line for line in str(caught.value).splitlines())
