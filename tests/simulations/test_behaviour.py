"""Behaviour of clients, nodes and faults besides connecting and publishing."""

import pytest

from flowguard.config import FlowSettings, PolicyName
from simulations.crowd.connection import Outcome
from simulations.results.run import Summary, run
from simulations.scenario import (
    Fault,
    NetworkPlan,
    NodePlan,
    PopulationPlan,
    PublishPlan,
    RetryPlan,
    Scenario,
    StorePlan,
    TracePlan,
)
from simulations.world import World


def ended(scenario: Scenario, policy: PolicyName = "flowguard") -> World:
    world = World(scenario, policy)
    world.run()
    return world


def test_steps_change_nothing() -> None:
    scenario = Scenario(nodes=2, duration_s=20.0, node=NodePlan(connect_s=0.02))
    whole, stepped = (
        World(scenario, "flowguard", traced=True),
        World(scenario, "flowguard", traced=True),
    )
    whole.run()
    steps = 0
    while stepped.ended_s is None:
        steps += 1
        stepped.run(0.3 * steps)
    assert steps == 67
    assert stepped.engine.trace == whole.engine.trace
    assert stepped.ended_s == whole.ended_s == 20.0


def test_a_client_gives_up_after_its_tries() -> None:
    scenario = Scenario(
        duration_s=60.0,
        ends_when_connected=True,
        populations={
            "nobody-home": PopulationPlan(clients=5, retry=RetryPlan(kind="fixed", tries=3))
        },
        faults=(Fault(kind="node_down", at_s=0.0),),
    )
    world = ended(scenario)
    (population,) = world.populations
    assert list(population.attempts) == [3] * 5
    assert population.given_up_count == 5
    assert world.ended_s is not None
    assert world.ended_s < 10.0


def test_a_client_leaves_when_it_has_stayed_and_does_not_come_back() -> None:
    guests = PopulationPlan(clients=20, start_over_s=5.0, stay_s=2.0, durable=False)
    world = ended(Scenario(duration_s=10.0, populations={"guests": guests}))
    (population,) = world.populations
    assert list(population.attempts) == [1] * 20
    assert (population.first_connected_count, population.connected_count) == (20, 0)
    broker = world.machines[0].broker
    assert broker is not None
    assert not broker.connections


def test_what_waited_for_a_client_is_sent_to_the_last_message() -> None:
    away = PopulationPlan(clients=4, queued=600, queued_bytes=100)
    world = ended(Scenario(duration_s=30.0, populations={"away": away}))
    (population,) = world.populations
    assert population.replayed_count == 4 * 600
    assert not any(population.queued)
    assert population.replayed_last_s >= 4 * 600 * NodePlan().delivery_s


def test_what_was_not_acknowledged_when_the_node_died_is_sent_by_the_next() -> None:
    away = PopulationPlan(clients=10, queued=10_000)
    faults = (Fault(kind="node_down", node=0, at_s=1.5),)
    scenario = Scenario(nodes=2, duration_s=60.0, populations={"away": away}, faults=faults)
    world = ended(scenario)
    (population,) = world.populations
    assert sum(population.attempts) > 10
    assert population.replayed_count == 10 * 10_000


def test_a_paused_process_answers_nobody_until_its_pause_is_over() -> None:
    crowd = PopulationPlan(clients=20, start_s=2.0, start_over_s=0.5)
    faults = (Fault(kind="pause", at_s=1.0, until_s=6.0),)
    world = ended(Scenario(duration_s=20.0, populations={"crowd": crowd}, faults=faults))
    (population,) = world.populations
    assert population.outcomes[Outcome.CONNECTED] == 20
    assert min(population.first_connected_s) > 6.0
    assert sum(population.attempts) == 20


def test_late_gossip_changes_a_run_and_the_same_seed_makes_the_same_of_it() -> None:
    def trace(late_s: float) -> str:
        populations = {
            "loop": PopulationPlan(clients=200, publish=PublishPlan(outstanding=100)),
        }
        scenario = Scenario(
            nodes=2,
            duration_s=2.0,
            network=NetworkPlan(gossip_late_s=late_s),
            populations=populations,
        )
        world = World(scenario, "flowguard", traced=True)
        world.run()
        return world.engine.trace

    assert trace(0.3) == trace(0.3)
    assert trace(0.3) != trace(0.0)


def test_clients_come_as_in_a_trace() -> None:
    arrivals = TracePlan(points=((0.0, 30.0), (10.0, 0.0), (20.0, 10.0)), squeeze=2.0)
    crowd = PopulationPlan(clients=400, arrivals=arrivals, durable=False)
    world = ended(Scenario(duration_s=20.0, populations={"crowd": crowd}))
    times_s = list(world.populations[0].first_connected_s)
    assert sum(0.0 < t_s < 5.1 for t_s in times_s) == 300
    assert sum(10.0 < t_s < 15.1 for t_s in times_s) == 100


def test_messages_are_due_as_in_a_trace() -> None:
    trace = TracePlan(points=((0.0, 0.0), (5.0, 2_000.0), (10.0, 0.0), (15.0, 500.0)), scale=2.0)
    publishers = PopulationPlan(clients=50, start_over_s=0.1, publish=PublishPlan(trace=trace))
    world = World(Scenario(duration_s=30.0, populations={"all": publishers}), "flowguard")
    population = world.populations[0].publishers
    assert population is not None
    counts = []
    for t_s in (5.0, 11.0, 15.0, 30.0):
        world.run(t_s)
        counts.append(population.due_count)
    assert counts[0] == 0
    assert counts[1] == pytest.approx(4_000, rel=0.1)
    assert counts[2] == counts[1]
    assert counts[3] == pytest.approx(5_000, rel=0.1)


def crowd_at(
    store: StorePlan, timeout_s: float, faults: tuple[Fault, ...] = (), duration_s: float = 35.0
) -> Summary:
    """800 clients come within a second, and no message."""
    crowd = PopulationPlan(
        clients=800, timeout_s=timeout_s, retry=RetryPlan(first_s=1.0, max_s=4.0)
    )
    scenario = Scenario(
        duration_s=duration_s,
        ends_when_connected=True,
        node=NodePlan(connect_s=0.0005),
        store=store,
        flow=FlowSettings(connect_patience_s=0.8 * timeout_s),
        populations={"crowd": crowd},
        faults=faults,
    )
    return run(scenario, "flowguard")


def test_a_store_of_100_connects_per_second_serves_nearly_as_many_after_a_stop() -> None:
    """If all that wait were in process after the stop, a commit would be longer than clients wait,
    and would serve only clients that have left."""
    stop = Fault(kind="store_stop", at_s=1.0, until_s=2.5)
    found = crowd_at(StorePlan(commit_s=0.001, op_s=0.005), 2.0, (stop,))
    assert found.connected_99_s is not None
    assert found.connected_99_s < 1.5 + 1.5 * 800 / 100
    assert found.wasted_count < 300


def test_after_an_outage_clients_that_have_left_do_not_fill_the_journal_again_and_again() -> None:
    stop = Fault(kind="store_stop", at_s=1.0, until_s=31.0)
    found = crowd_at(StorePlan(commit_s=0.001, op_s=0.005), 2.0, (stop,), duration_s=120.0)
    assert found.connected_99_s is not None
    assert found.connected_99_s < 31.0 + 2.0 * 800 / 100
    assert found.wasted_count < 500


def test_a_store_that_needs_as_long_for_one_connect_as_for_a_hundred_serves_hundreds() -> None:
    found = crowd_at(StorePlan(commit_s=0.3, op_s=0.000_02), 10.0)
    assert found.connected_99_s is not None
    assert found.connected_99_s < 10.0
    assert found.attempts_per_client == 1.0
