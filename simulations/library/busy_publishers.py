"""Publishers without end and a crowd that connects: how do they share the loop?"""

from simulations.proportions import among_others
from simulations.scenario import (
    Fault,
    NodePlan,
    PopulationPlan,
    Positive,
    PublishPlan,
    RetryPlan,
    Scenario,
    StorePlan,
)

CROWD_S = 1.2
"""Time in which an otherwise idle node serves the crowd."""
ACCEPT, REFUSE = 0.0215, 0.009_25
"""Costs of accepting and rejecting, as shares of the cost of serving a CONNECT."""


def scenario(clients: int = 2_254, greedy: int = 10, slower: Positive = 8.8) -> Scenario:
    """`clients` is the size of the crowd. For a smaller one, the node serves each CONNECT more
    slowly.

    `greedy` clients publish without end. `slower` is the factor on the disk's times for six
    seconds.
    """
    connect_s = CROWD_S / clients
    node, store = among_others(
        NodePlan(
            accept_s=ACCEPT * connect_s,
            refuse_s=REFUSE * connect_s,
            connect_s=connect_s,
            publish_s=0.002_4,
            delivery_s=0.000_012_3,
            accepts_first=True,
            noise=0.3,
        ),
        StorePlan(),
    )
    return Scenario(
        title=f"{clients:,} clients come to a node that {greedy} publishers keep busy",
        description=(
            f"The node could serve the crowd in {CROWD_S:g} s, but {greedy} clients publish as "
            "fast as they may, 135 steadily, and one to 327 subscribers; later the disk is slow "
            "for a while. Windows hold the node at its objective on purpose. A gate that blames "
            "itself for that load admits no client. Look at: connected, attempts, time to 99 %, "
            "and what the connected clients lose meanwhile."
        ),
        duration_s=35.0,
        node=node,
        store=store,
        populations={
            "crowd": PopulationPlan(
                clients=clients, start_s=7.2, start_over_s=1.7, retry=RetryPlan(first_s=0.5)
            ),
            "steady": PopulationPlan(
                clients=135,
                start_over_s=2.0,
                publish=PublishPlan(rate_per_s=1.37, payload_bytes=16, deadline_s=0.3),
            ),
            "greedy": PopulationPlan(
                clients=greedy,
                start_s=3.0,
                publish=PublishPlan(outstanding=100, payload_bytes=1_024),
            ),
            "listeners": PopulationPlan(
                clients=327, start_over_s=2.0, durable=False, subscribes=True
            ),
            "wide": PopulationPlan(
                clients=1,
                start_s=3.0,
                publish=PublishPlan(
                    rate_per_s=6.2, outstanding=20, to="listeners", deadline_s=1.0, v5=False
                ),
            ),
        },
        faults=(Fault(kind="slow_store", at_s=11.6, until_s=17.1, factor=slower),),
    )
