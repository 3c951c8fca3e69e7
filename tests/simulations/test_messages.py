from simulations.scenario import Fault, NetworkPlan, PopulationPlan, PublishPlan, Scenario
from simulations.world import World


def test_what_is_published_is_acknowledged_and_reaches_every_subscriber_on_every_node() -> None:
    scenario = Scenario(
        nodes=3,
        duration_s=10.0,
        populations={
            "subscribers": PopulationPlan(clients=10, node="round-robin", subscribes=True),
            "publishers": PopulationPlan(
                clients=20, start_s=2.0, publish=PublishPlan(rate_per_s=2.0, to="subscribers")
            ),
        },
    )
    world = World(scenario, "flowguard")
    world.run()
    _, population = world.populations
    publishers, topic = population.publishers, population.topic
    assert publishers is not None
    assert topic is not None
    under_way = publishers.due_count - publishers.acknowledged_count
    assert publishers.due_count > 200
    assert 0 <= under_way <= 5
    assert publishers.in_time_count == publishers.acknowledged_count
    assert sum(world.acknowledgements.counts) == publishers.acknowledged_count
    assert topic.delivered_count == sum(world.deliveries.counts)
    assert 10 * (publishers.due_count - 5) <= topic.delivered_count <= 10 * publishers.due_count
    assert (world.deliveries.percentile(0.99) or 1.0) < 0.1


def test_nothing_is_acknowledged_while_a_replica_cannot_be_reached() -> None:
    """Until the replica is given up for lost, or the link is whole again."""
    populations = {"loop": PopulationPlan(clients=5, publish=PublishPlan(outstanding=3))}
    counts = []
    for faults in ((), (Fault(kind="link_cut", at_s=2.0, until_s=4.0),)):
        scenario = Scenario(
            nodes=2,
            duration_s=5.0,
            network=NetworkPlan(replicas=2),
            populations=populations,
            faults=faults,
        )
        world = World(scenario, "flowguard")
        world.run()
        publishers = world.populations[0].publishers
        assert publishers is not None
        assert publishers.due_count - publishers.acknowledged_count <= 5 * 3
        counts.append((publishers.acknowledged_count, world.acknowledgements.percentile(1.0)))
    (whole_count, whole_s), (cut_count, cut_s) = counts
    assert cut_count < 0.8 * whole_count
    assert whole_s is not None
    assert cut_s is not None
    assert whole_s < 0.5 < 1.9 < cut_s


def test_what_a_client_has_collected_is_due_at_once_when_it_first_connects() -> None:
    publish = PublishPlan(rate_per_s=0.001, collected=30, outstanding=20)
    populations = {"devices": PopulationPlan(clients=5, start_over_s=0.0, publish=publish)}
    death = Fault(kind="node_down", at_s=3.0, until_s=3.5)
    for faults in ((), (death,)):
        scenario = Scenario(duration_s=9.0, populations=populations, faults=faults)
        world = World(scenario, "flowguard")
        world.engine.run(1.0)
        publishers = world.populations[0].publishers
        assert publishers is not None
        assert publishers.acknowledged_count == 5 * 30
        world.engine.run(9.0)
        assert publishers.acknowledged_count == publishers.due_count < 5 * 30 + 3
