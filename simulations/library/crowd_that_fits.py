"""A crowd that one node serves before any client times out."""

from simulations.scenario import NodePlan, NotNegative, PopulationPlan, Positive, Scenario

REFUSE_S = 0.000_03


def scenario(
    clients: int = 5_000, crowd_s: Positive = 7.5, refuse_cost: NotNegative = 0.07
) -> Scenario:
    """`crowd_s` is the time in which the node serves all of them; clients wait 10 s.

    If there are fewer clients, the node is slower by the same factor. `refuse_cost` is a share of
    the cost of serving a CONNECT.
    """
    service_s = crowd_s / clients
    accept_s = max(0.0, refuse_cost * service_s - REFUSE_S)
    return Scenario(
        title=f"{clients:,} clients come within a second, and can be served in {crowd_s:g} s",
        description=(
            "All waiting clients can be served in time. Each rejection makes a client come twice. "
            "Look at: declined, attempts per client, time to 99 %. crowd_s=30 is a crowd that does "
            "not fit."
        ),
        duration_s=120.0,
        ends_when_connected=True,
        node=NodePlan(
            accept_s=accept_s,
            refuse_s=REFUSE_S,
            connect_s=service_s - accept_s,
            accepts_first=True,
        ),
        populations={"crowd": PopulationPlan(clients=clients)},
    )
