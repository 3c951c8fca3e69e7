"""A message for thousands is delivered piece by piece, as by the broker itself."""

from itertools import pairwise

import pytest

from flowguard.config import FlowSettings
from flowguard.flow import Cost
from flowguard.node.publish.plans import DELIVERIES_PIECE, WIDE_DELIVERIES
from simulations.crowd.topics import ALL, Message
from simulations.results.run import run
from simulations.scenario import (
    Fault,
    NodePlan,
    PopulationPlan,
    PublishPlan,
    Scenario,
    StorePlan,
)
from simulations.world import World

COUNT = 4 * WIDE_DELIVERIES + 1
DELIVERY_S = 0.000_05
PIECE_S = DELIVERIES_PIECE * DELIVERY_S


def scenario(*, takes_turns: bool = True, publisher: int = 0, **changes: object) -> Scenario:
    """Somebody publishes for all of `COUNT` at node 0 now and then, which takes 0.2 s; a
    bystander wants an answer within eight pieces."""
    populations = {
        "many": PopulationPlan(clients=COUNT, durable=False, subscribes=True, at=(0,)),
        "one": PopulationPlan(
            clients=1,
            start_s=10.0,
            stay_s=20.0,
            publish=PublishPlan(rate_per_s=2.0, to="many"),
            at=(publisher,),
        ),
        "bystander": PopulationPlan(
            clients=1,
            start_s=9.0,
            publish=PublishPlan(rate_per_s=20.0, deadline_s=8 * PIECE_S),
            at=(0,),
        ),
    }
    node = NodePlan(delivery_s=DELIVERY_S, takes_turns=takes_turns)
    made = Scenario(nodes=publisher + 1, duration_s=40.0, populations=populations, node=node)
    return made.model_copy(update=changes)


def test_others_are_served_between_two_pieces() -> None:
    by_turns = run(scenario(), "flowguard").in_time_shares["bystander"]
    in_one_stretch = run(scenario(takes_turns=False), "flowguard").in_time_shares["bystander"]
    assert in_one_stretch < 0.9 < by_turns == 1.0


def test_everybody_gets_it_once_before_it_is_acknowledged() -> None:
    world = World(scenario(), "flowguard")
    world.run()
    counters = world.machines[0].counters
    one = world.populations[1]
    assert one.topic is not None
    assert one.topic.delivered_count > 0
    assert one.topic.delivered_count % COUNT == 0
    assert counters.lost_count == 0


def test_what_another_node_has_acknowledged_and_a_dying_one_not_delivered_is_lost() -> None:
    dies = Fault(kind="node_down", node=0, at_s=15.0)  # While it delivers.
    world = World(scenario(publisher=1, faults=(dies,)), "flowguard")
    world.run()
    assert world.machines[1].counters.lost_count % COUNT > 0


def test_each_piece_of_a_turn_is_sent_to_subscribers_of_its_own() -> None:
    node = NodePlan(delivery_s=DELIVERY_S, send_s=2 * DELIVERY_S)
    world = World(scenario(node=node), "flowguard")
    world.run(8.0)
    broker, topic = world.machines[0].broker, world.populations[1].topic
    assert broker is not None
    assert topic is not None
    started_s = broker.loop.clock_s
    broker.packets.arrived(Message(topic, started_s, 0, ((0, COUNT),), [], ALL), COUNT)
    while broker.chores:
        broker.chores.step(broker.loop.clock_s)
    assert broker.loop.clock_s - started_s == pytest.approx(COUNT * 3 * DELIVERY_S)


# --- for hundreds of durable subscribers -------------------------------------------------------

DURABLE = 500


def durable_scenario(publishers: int) -> Scenario:
    """Publishers without end for `DURABLE` subscribers; a message takes 25 ms."""
    return Scenario(
        duration_s=10.0,
        node=NodePlan(connect_s=1e-4, delivery_s=DELIVERY_S, subscribe_s=1e-5),
        store=StorePlan(commit_s=0.001, op_s=0.0),
        populations={
            "many": PopulationPlan(clients=DURABLE, subscribes=True),
            "endless": PopulationPlan(
                clients=publishers, start_s=5.0, publish=PublishPlan(outstanding=20, to="many")
            ),
        },
    )


def test_store_operations_count_in_the_window_of_a_publisher() -> None:
    world = World(durable_scenario(1), "flowguard")
    world.run()
    publishers = world.populations[1].publishers
    assert publishers is not None
    assert publishers.acknowledged_count > 100
    cost = Cost(FlowSettings()).of(DURABLE, publishers.plan.payload_bytes, DURABLE)
    assert publishers.weights[0] == cost
    assert publishers.cost_units[0] == cost * publishers.acknowledged_count


def test_a_turn_delivers_one_heavy_message_of_a_commit() -> None:
    world = World(durable_scenario(20), "flowguard")
    topic = world.populations[1].topic
    assert topic is not None
    counts = []
    for step in range(2_000):
        world.run(6.0 + 0.001 * step)
        counts.append(topic.delivered_count)
    assert max(after - before for before, after in pairwise(counts)) == DURABLE
