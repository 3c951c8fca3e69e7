"""A crowd in which each connection needs much memory until its CONNECT is accepted."""

from flowguard.config import KIB, MIB
from simulations.proportions import among_others
from simulations.scenario import (
    Fault,
    NodePlan,
    PopulationPlan,
    PublishPlan,
    RetryPlan,
    Scenario,
    StorePlan,
)

CROWD_S = 4.3
"""Time in which an otherwise idle node serves the crowd."""
ACCEPT, REFUSE = 0.0515, 0.022
"""Costs of accepting and rejecting, as shares of the cost of serving a CONNECT."""
HELD_MIB = 138.5
"""Memory of the whole crowd if all of it waited in the process."""


def scenario(
    clients: int = 2_216, memory_max_mib: int = 160, acceptors_first: bool = False
) -> Scenario:
    """`clients` is the size of the crowd. In a smaller one each connection holds more memory, and
    the node is slower, by the same factor."""
    connect_s = CROWD_S / clients
    node, store = among_others(
        NodePlan(
            accept_s=ACCEPT * connect_s,
            refuse_s=REFUSE * connect_s,
            connect_s=connect_s,
            publish_s=0.001_2,
            accepts_first=acceptors_first,
            connecting_bytes=int(HELD_MIB * MIB / clients),
            memory_max_bytes=memory_max_mib * MIB,
            restart_s=8.0,
        ),
        StorePlan(commit_s=0.003),
    )
    publish = PublishPlan(rate_per_s=0.966, outstanding=1, payload_bytes=16 * KIB, deadline_s=0.3)
    return Scenario(
        title=f"{clients:,} clients come that hold {HELD_MIB:.0f} MiB until they are in",
        description=(
            f"The node could serve the crowd in {CROWD_S:g} s, but has {memory_max_mib} MiB, and "
            "dies if it needs more. 451 clients publish steadily. A waiting connection holds its "
            "buffers and its TLS state. Neither a smaller window nor fewer slots free them: "
            "serving it does, or leaving it in the listen backlog. Look at: nodes died, most "
            "memory, time to 99 %."
        ),
        duration_s=35.0,
        node=node,
        store=store,
        populations={
            "crowd": PopulationPlan(
                clients=clients,
                start_s=5.5,
                start_over_s=1.9,
                timeout_s=20.0,
                retry=RetryPlan(kind="fixed", first_s=2.0, obedient=0.5),
            ),
            "steady": PopulationPlan(clients=451, start_over_s=2.0, publish=publish),
        },
        faults=(Fault(kind="slow_cpu", at_s=12.0, until_s=16.5, factor=1.8),),
    )
