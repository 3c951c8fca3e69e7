"""Costs of the simulated loop besides those of its packets."""

import pytest

from simulations.scenario import (
    NetworkPlan,
    NodePlan,
    PopulationPlan,
    PublishPlan,
    Scenario,
    StorePlan,
)
from simulations.world import World

LOOP = PopulationPlan(clients=5, publish=PublishPlan(outstanding=1))
FREE = {"publish_s": 1e-6, "delivery_s": 0.0, "subscribe_s": 0.0, "connect_s": 1e-6}


def goodput_per_s(node: NodePlan, store: StorePlan, outstanding: int, to: str | None) -> float:
    """10 clients in a closed loop, far from any other bound."""
    scenario = Scenario(
        duration_s=4.0,
        node=node,
        store=store,
        network=NetworkPlan(latency_s=0.0001),
        populations={
            "subscribers": PopulationPlan(clients=10, subscribes=True),
            "loop": PopulationPlan(
                clients=10,
                start_s=1.5,
                publish=PublishPlan(outstanding=outstanding, to=to, spread="one"),
            ),
        },
    )
    world = World(scenario, "flowguard")
    world.engine.run(3.0)
    publishers = world.populations[1].publishers
    assert publishers is not None
    before = publishers.acknowledged_count
    world.engine.run(4.0)
    return publishers.acknowledged_count - before


def test_a_read_costs_the_same_however_many_packets_it_brings() -> None:
    node = NodePlan(**FREE, read_s=0.001)
    store = StorePlan(commit_s=0.0, op_s=0.0)
    assert 900 < goodput_per_s(node, store, 1, None) < 1_001
    assert 9_000 < goodput_per_s(node, store, 10, None) < 10_001


def test_what_a_subscriber_gets_at_once_is_one_send() -> None:
    node = NodePlan(**FREE, send_s=0.001)
    store = StorePlan(commit_s=0.0, op_s=0.0)
    assert 900 < goodput_per_s(node, store, 1, "subscribers") < 1_001
    assert 9_000 < goodput_per_s(node, store, 10, "subscribers") < 10_001


def test_what_a_subscriber_gets_in_two_slices_of_a_turn_is_acknowledged_once() -> None:
    """Packets of a client are run in pieces of 16; the four that are left follow in the turn."""
    node = NodePlan(**FREE, send_s=0.0004)
    goodput = goodput_per_s(node, StorePlan(commit_s=0.0005, op_s=0.0), 20, "subscribers")
    assert 12 < goodput * node.send_s < 20


def test_loop_and_store_work_at_the_same_time_and_the_slower_one_counts() -> None:
    node = NodePlan(**FREE | {"publish_s": 0.0001})
    for op_s, at_most in ((2e-5, 10_001), (2e-4, 5_001)):
        goodput = goodput_per_s(node, StorePlan(commit_s=0.0005, op_s=op_s), 50, None)
        assert 0.9 * at_most < goodput < at_most


def test_a_message_to_another_node_costs_the_loop_its_forwarding() -> None:
    """Two nodes, and a subscriber on each: one message is forwarded."""
    scenario = Scenario(
        nodes=2,
        duration_s=4.0,
        node=NodePlan(**FREE, forward_s=0.01),
        store=StorePlan(commit_s=0.0, op_s=0.0),
        network=NetworkPlan(latency_s=0.0001),
        populations={
            "subscribers": PopulationPlan(clients=2, subscribes=True, node="round-robin"),
            "loop": PopulationPlan(
                clients=1, start_s=1.5, publish=PublishPlan(outstanding=10, to="subscribers")
            ),
        },
    )
    world = World(scenario, "flowguard")
    world.engine.run(3.0)
    publishers = world.populations[1].publishers
    assert publishers is not None
    before = publishers.acknowledged_count
    world.engine.run(4.0)
    assert 90 < publishers.acknowledged_count - before < 102


def test_a_commit_costs_the_loop_its_handoff() -> None:
    """One commit at a time: with a free store and free packets it is all there is."""
    node = NodePlan(**FREE, handoff_s=0.01)
    store = StorePlan(commit_s=0.0, op_s=0.0)
    assert 800 < goodput_per_s(node, store, 10, None) < 10_001


def test_an_immediate_store_costs_the_loop_what_another_takes_beside_it() -> None:
    store = StorePlan(commit_s=0.0, op_s=0.001, immediate=True)
    assert 900 < goodput_per_s(NodePlan(**FREE), store, 10, None) < 1_001
    assert 900 < goodput_per_s(NodePlan(**FREE, handoff_s=1.0), store, 10, None) < 1_001


def test_a_further_durable_subscriber_costs_the_loop_its_queue_before_the_commit() -> None:
    def used(queue_s: float) -> tuple[float, float]:
        """Times of the loop, and until PUBACK, for one message to 11 subscribers."""
        scenario = Scenario(
            duration_s=4.0,
            node=NodePlan(**FREE, queue_s=queue_s),
            populations={
                "subscribers": PopulationPlan(clients=11, subscribes=True),
                "lone": PopulationPlan(
                    clients=1,
                    start_s=2.0,
                    publish=PublishPlan(rate_per_s=0.001, collected=1, to="subscribers"),
                ),
            },
        )
        world = World(scenario, "flowguard")
        world.run()
        broker = world.machines[0].broker
        assert broker is not None
        return broker.loop.busy_s, broker.packets.acknowledgements.total

    (loop_s, puback_s), (free_s, soon_s) = used(0.01), used(0.0)
    assert loop_s - free_s == pytest.approx(10 * 0.01)
    assert puback_s - soon_s == pytest.approx(10 * 0.01)


def test_commits_take_the_times_that_a_scenario_has() -> None:
    times = ((0.001, 3.0), (0.01, 1.0))
    store = StorePlan(commit_times=times, op_s=0.0)
    scenario = Scenario(duration_s=3.0, store=store, populations={"loop": LOOP})
    world = World(scenario, "flowguard")
    world.run()
    broker = world.machines[0].broker
    assert broker is not None
    latency = broker.journal.written.latency
    assert latency.total / sum(latency.counts) == pytest.approx(0.00325, rel=0.2)


def test_messages_that_no_session_stores_wait_for_no_commit() -> None:
    latencies_s = []
    for stored in (True, False):
        publish = PublishPlan(rate_per_s=5.0, stored=stored)
        plans = {"clients": PopulationPlan(clients=5, durable=False, publish=publish)}
        scenario = Scenario(duration_s=4.0, store=StorePlan(commit_s=0.05), populations=plans)
        world = World(scenario, "flowguard")
        world.run()
        latencies_s.append(world.acknowledgements.percentile(0.5))
    stored_s, other_s = latencies_s
    assert stored_s is not None
    assert other_s is not None
    assert other_s < 0.01 < 0.05 < stored_s


def test_even_messages_have_equal_gaps() -> None:
    publish = PublishPlan(rate_per_s=4.0, even=True)
    plans = {"clients": PopulationPlan(clients=3, publish=publish)}
    world = World(Scenario(duration_s=11.0, populations=plans), "flowguard")
    world.run(1.5)
    publishers = world.populations[0].publishers
    assert publishers is not None
    for number in range(8):
        before = publishers.due_count
        world.run(2.5 + number)
        assert publishers.due_count - before == 3 * 4
