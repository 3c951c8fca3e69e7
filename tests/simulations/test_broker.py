from simulations.crowd.connection import ENDED, Connection
from simulations.scenario import PopulationPlan, PublishPlan, Scenario
from simulations.world import World


def queued_connection() -> tuple[World, Connection]:
    """Return a connection that has sent a PUBLISH, and is to be run in the next turn."""
    crowd = PopulationPlan(clients=1, start_over_s=0.0, publish=PublishPlan(rate_per_s=0.001))
    world = World(Scenario(populations={"crowd": crowd}, duration_s=1.0), "flowguard")
    world.engine.run(0.5)
    connection = world.populations[0].connections[0]
    assert connection is not None
    connection.broker.receive(connection, world.engine.now_s)
    connection.schedule()
    return world, connection


def test_an_end_of_stream_that_comes_while_its_connection_is_queued_is_read_later() -> None:
    world, connection = queued_connection()
    connection.broker.hang_up(connection)
    world.run()
    assert connection.state == ENDED
    broker = world.machines[0].broker
    assert broker is not None
    assert connection not in broker.connections


def test_a_ping_that_comes_while_its_connection_is_queued_is_read_later() -> None:
    world, connection = queued_connection()
    connection.broker.ping(connection)
    world.run()
    assert connection.pings == 0
    assert not connection.is_ready
