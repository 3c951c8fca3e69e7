"""A node dies, and its clients reconnect to the others: experiment E4."""

from flowguard.config import KIB, MIB, FlowSettings
from simulations.scenario import (
    Fault,
    NetworkPlan,
    NodePlan,
    NotNegative,
    PopulationPlan,
    Positive,
    PublishPlan,
    Scenario,
)

CONNECTING = 20
"""Memory of a connection that is not accepted yet, as a multiple of an idle one's."""
DEAD_AT_S = 60.0
"""Instant of the first death, after all are connected."""
DEAD_S = 120.0
FULL, CONNECTS_PER_S, CONNECTION_KIB = 200_000, 667.0, 2
"""Clients at full size, and a node's capacity and a client's memory there."""


def scenario(
    clients: int = FULL,
    nodes: int = 3,
    load: NotNegative = 0.6,
    second_after_s: NotNegative = 0.0,
    connects_per_s: Positive | None = None,
    messages_per_s: Positive = 200.0,
    connection_kib: int | None = None,
    memory_max_mib: int = 640,
) -> Scenario:
    """`second_after_s` after the first node a second one is killed; 0 kills none.

    A small copy of the crowd meets a small copy of the nodes. Unless they are given,
    `connects_per_s` is lower and `connection_kib` is higher by the same factor. Slots, connect
    queue and backlog are smaller by it, and each client publishes more, so that `messages_per_s`
    keep the nodes as busy. Objectives stay: below a tenth of the full size a single CONNECT takes
    so long that it makes loops lag.
    """
    size = clients / FULL
    if connects_per_s is None:
        connects_per_s = CONNECTS_PER_S * size
    if connection_kib is None:
        connection_kib = max(1, round(CONNECTION_KIB / size))
    calm = FlowSettings()
    warm_s = 2.5 * clients / nodes / connects_per_s
    kill_s = warm_s + DEAD_AT_S
    faults = [Fault(kind="node_down", node=0, at_s=kill_s, until_s=kill_s + DEAD_S)]
    if second_after_s:
        second_s = kill_s + second_after_s
        faults.append(Fault(kind="node_down", node=1, at_s=second_s, until_s=second_s + DEAD_S))
    publish = PublishPlan(
        rate_per_s=load * nodes * messages_per_s / clients, outstanding=10, payload_bytes=16 * KIB
    )
    return Scenario(
        title=f"one of {nodes} nodes dies, {clients // nodes:,} clients fall on the others",
        description=(
            f"Every node is busy to {load:.0%} with messages. One dies for two minutes: its "
            "clients come to the others, which have to serve their messages as well. Acceptors "
            "take in whoever comes; a node that admits them all at once runs out of memory, and "
            "hands its own clients on to the next. Look at: "
            "nodes died, 99 % back after, messages in time. second_after_s=20 kills a second one, "
            "--nodes 18 is the same in a large cluster, --clients 20000 in small."
        ),
        nodes=nodes,
        duration_s=kill_s + DEAD_S + 60.0,
        node=NodePlan(
            accept_s=0.05 / connects_per_s,
            refuse_s=0.02 / connects_per_s,
            connect_s=0.95 / connects_per_s,
            accepts_first=True,
            listen_backlog=max(1, round(NodePlan().listen_backlog * min(1.0, size))),
            publish_s=1.0 / messages_per_s,
            connection_bytes=connection_kib * KIB,
            connecting_bytes=CONNECTING * connection_kib * KIB,
            memory_max_bytes=memory_max_mib * MIB,
            restart_s=30.0,
        ),
        network=NetworkPlan(replicas=2 if nodes > 1 else 1),
        flow=FlowSettings(
            connects_in_process_max=max(4, round(calm.connects_in_process_max * min(1.0, size))),
            connect_buffer_max=round(calm.connect_buffer_max * min(1.0, size)),
        ),
        populations={
            "devices": PopulationPlan(
                clients=clients, start_over_s=warm_s, node="balanced", publish=publish
            )
        },
        faults=tuple(faults),
    )
