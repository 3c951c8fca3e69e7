"""A node that loses its links to all other nodes: experiment E13."""

from flowguard.config import KIB
from simulations.scenario import (
    Fault,
    NetworkPlan,
    PopulationPlan,
    Positive,
    PublishPlan,
    Scenario,
)

CUT_AT_S = 20.0
AFTER_S = 30.0


def scenario(cut_s: Positive = 30.0, nodes: int = 3, replicas: int = 2) -> Scenario:
    """All links of node 0 to the others are cut for `cut_s`; clients still reach it."""
    until_s = CUT_AT_S + cut_s
    publish = PublishPlan(rate_per_s=10.0, outstanding=100, payload_bytes=16 * KIB, deadline_s=1.0)
    return Scenario(
        title=f"node 0 loses all links to its peers for {cut_s:g} s",
        description=(
            "Every message is stored on two nodes before it is acknowledged. Cut off, node 0 and "
            "the node that copies to it wait, five seconds at most, then go on without the other; "
            "what nodes tell each other of their load is lost as well. Nothing may be unlimited "
            "meanwhile. Look at: messages in time, the window of node 0, memory. cut_s=5 ends "
            "before the other is given up; replicas=1 loses nothing but gossip."
        ),
        nodes=nodes,
        duration_s=until_s + AFTER_S,
        network=NetworkPlan(replicas=replicas),
        populations={
            "publishers": PopulationPlan(clients=100 * nodes, node="round-robin", publish=publish)
        },
        faults=(Fault(kind="link_cut", node=0, at_s=CUT_AT_S, until_s=until_s),),
    )
