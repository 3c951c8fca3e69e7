"""Clients of a cluster's shards, in virtual time: who serves them after a death and a return."""

from collections import Counter
from typing import Any

from simulations.scenario import Fault, NetworkPlan, NodePlan, PopulationPlan, Scenario
from simulations.scenario_files.loading import load
from simulations.world import World

CLIENTS = 300
DEAD_S, BACK_S = 20.0, 40.0
CLUSTER = NetworkPlan(shards=6, lease_s=3.0, start_s=2.0)


def cluster(**changes: Any) -> World:
    """Three nodes with two shards each; the first one is dead from 20 s to 40 s."""
    return World(
        Scenario(
            **{
                "nodes": 3,
                "duration_s": 90.0,
                "node": NodePlan(connect_s=0.001),
                "network": CLUSTER,
                "populations": {"devices": PopulationPlan(clients=CLIENTS, node="shard")},
                "faults": (Fault(kind="node_down", node=0, at_s=DEAD_S, until_s=BACK_S),),
                **changes,
            }
        ),
        "flowguard",
    )


def loads_of(world: World) -> Counter[int | None]:
    assert world.places is not None
    return Counter(world.places.node_of(shard) for shard in range(CLUSTER.shards))


def test_shards_have_equal_parts_at_the_start() -> None:
    world = cluster(faults=())
    world.run()
    assert loads_of(world) == {0: 2, 1: 2, 2: 2}
    assert world.populations[0].connected_count == CLIENTS


def test_clients_of_a_dead_node_wait_until_other_nodes_serve_their_shards() -> None:
    world = cluster()
    world.run(DEAD_S + CLUSTER.lease_s - 0.6)
    (population,) = world.populations
    assert loads_of(world) == {0: 2, 1: 2, 2: 2}, "no node knows yet that it is dead"
    left = population.connected_count
    assert left < CLIENTS
    world.run(DEAD_S + CLUSTER.lease_s + 1.1)
    assert loads_of(world) == {None: 2, 1: 2, 2: 2}
    assert population.connected_count == left
    world.run(BACK_S - 0.1)
    assert loads_of(world) == {1: 3, 2: 3}
    assert population.connected_count == CLIENTS


def test_node_that_returns_gets_shards_one_after_the_other() -> None:
    world = cluster()
    world.run(BACK_S)
    moving = []
    for tenths in range(1, 200):
        world.run(BACK_S + tenths / 10)
        moving.append(loads_of(world)[None])
    assert max(moving) == 1
    world.run()
    assert loads_of(world) == {0: 2, 1: 2, 2: 2}
    assert world.populations[0].connected_count == CLIENTS


def test_zone_all_clients_of_the_dead_nodes_are_served_by_the_others() -> None:
    scenario = load("zone", {"clients": 1_000, "nodes": 6, "dead": 2}).scenario
    world = World(scenario, "flowguard")
    killed_s = scenario.faults[0].at_s
    world.run(killed_s + 2.0)
    assert world.populations[0].connected_count < 800
    world.run()
    assert world.populations[0].connected_count == 1_000
    assert world.places is not None
    assert {world.places.node_of(shard) for shard in range(24)} == {2, 3, 4, 5}
