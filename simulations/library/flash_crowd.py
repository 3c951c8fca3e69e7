"""A crowd that comes in one second: experiment E2."""

from typing import Literal

from flowguard.config import KIB, FlowSettings
from simulations.scenario import (
    NetworkPlan,
    NodePlan,
    NotNegative,
    PopulationPlan,
    Positive,
    RetryPlan,
    Scenario,
)

RETRIES = {
    "backoff": RetryPlan(kind="backoff", first_s=1.0, max_s=60.0),
    "fixed": RetryPlan(kind="fixed", first_s=2.0),
    "hints": RetryPlan(kind="backoff", first_s=1.0, max_s=60.0, obedient=1.0),
}
REFUSE_S = 0.000_03
WAIT_S, PATIENCE = 60.0, 0.8
"""Connect timeout of clients if the crowd fits, and the share of it that the node keeps them."""


def scenario(
    clients: int = 200_000,
    nodes: int = 3,
    connects_per_s: Positive = 667.0,
    retry: Literal["backoff", "fixed", "hints"] = "backoff",
    refuse_cost: NotNegative = 0.07,
    acceptors_first: bool = True,
    fits: bool = False,
) -> Scenario:
    """`connects_per_s` is a node's capacity, `refuse_cost` the share of a CONNECT's cost for a
    rejection.

    `acceptors_first`: sockets are accepted before any work is done, as acceptor threads do it.
    `fits`: clients wait for a minute, and the connect queue holds all of them.
    """
    service_s = 1.0 / connects_per_s
    accept_s = max(0.0, refuse_cost * service_s - REFUSE_S)
    crowd, flow = PopulationPlan(clients=clients, retry=RETRIES[retry]), FlowSettings()
    if fits:
        crowd = crowd.model_copy(update={"timeout_s": WAIT_S})
        flow = FlowSettings(
            connect_patience_s=PATIENCE * WAIT_S,
            connect_buffer_max=clients,
            connect_buffer_bytes_max=clients * KIB,
        )
    return Scenario(
        title=f"{clients:,} clients come within one second",
        description=(
            "Persistent sessions on two of the nodes each; clients wait 10 s for an answer and "
            "come back later and later. A policy that only rejects has to reject again and again. "
            "Serving a client that has given up is wasted. Look at: time to 99 %, attempts per "
            "client, wasted. retry=fixed: clients retry every 2 s; retry=hints: they obey the "
            "retry-after hint; refuse_cost=0.22: rejecting is expensive, as with TLS; "
            "acceptors_first=false: sockets wait in the kernel, as flowguard's own reactor has it; "
            "fits=true with connects_per_s=2000: all of them are served in time."
        ),
        nodes=nodes,
        duration_s=600.0,
        ends_when_connected=True,
        node=NodePlan(
            accept_s=accept_s,
            refuse_s=REFUSE_S,
            connect_s=service_s - accept_s,
            accepts_first=acceptors_first,
        ),
        network=NetworkPlan(replicas=2 if nodes > 1 else 1),
        flow=flow,
        populations={"crowd": crowd},
    )
