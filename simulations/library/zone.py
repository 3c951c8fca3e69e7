"""A zone with a third of a cluster's nodes dies, and its clients reconnect: experiment E14."""

from flowguard.config import KIB, MIB, FlowSettings
from simulations.scenario import Fault, NetworkPlan, NodePlan, PopulationPlan, Positive, Scenario

CALM_S, DEAD_S = 10.0, 180.0
CONNECTING = 2
"""Memory of a connection that is not accepted yet, as a multiple of an idle one's."""


def scenario(
    clients: int = 20_000,
    nodes: int = 10,
    dead: int = 3,
    connects_per_s: Positive = 50.0,
    connection_kib: int = 1_125,
    memory_max_mib: int = 4_096,
) -> Scenario:
    """`dead` nodes are killed at once. `connects_per_s` is what a node has left for CONNECTs beside
    its messages, which are not simulated."""
    size = min(1.0, connects_per_s / 1_000.0)
    calm = FlowSettings()
    kill_s = 2.5 * clients / nodes / connects_per_s + CALM_S
    return Scenario(
        title=f"{dead} of {nodes} nodes die, with {clients * dead // nodes:,} clients",
        description=(
            "The shards of the dead nodes move to the others after a lease and a start, and the "
            "clients reconnect. Look at: 99 % back after, memory, nodes died."
        ),
        nodes=nodes,
        duration_s=kill_s + DEAD_S,
        node=NodePlan(
            accept_s=0.05 / connects_per_s,
            refuse_s=0.02 / connects_per_s,
            connect_s=0.95 / connects_per_s,
            connection_bytes=connection_kib * KIB,
            connecting_bytes=CONNECTING * connection_kib * KIB,
            memory_max_bytes=memory_max_mib * MIB,
            listen_backlog=max(1, round(NodePlan().listen_backlog * size)),
        ),
        network=NetworkPlan(shards=4 * nodes),
        flow=FlowSettings(connect_buffer_max=max(1, round(calm.connect_buffer_max * size))),
        populations={
            "devices": PopulationPlan(
                clients=clients, start_over_s=2.5 * clients / nodes / connects_per_s, node="shard"
            )
        },
        faults=tuple(Fault(kind="node_down", node=node, at_s=kill_s) for node in range(dead)),
    )
