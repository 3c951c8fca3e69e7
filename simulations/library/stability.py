"""A node that is suddenly four times slower, then four times faster: experiment E10."""

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


def scenario(
    publishers: int = 60,
    step: Positive = 4.0,
    noise: NotNegative = 0.3,
    gossip_late_s: NotNegative = 0.2,
    nodes: int = 3,
) -> Scenario:
    """Publishers that always have something to send; only windows hold them back."""
    publish = PublishPlan(outstanding=200, v5=False, deadline_s=10.0)
    probe = PublishPlan(rate_per_s=2.0, deadline_s=0.25)
    return Scenario(
        title=f"node 0 slows down {step:g} times, then speeds up {step:g} times",
        description=(
            "Publishers that always have more to send, so that the window alone decides how long "
            "messages wait. Node 0 is slower from second 20 to 40, and faster from 60 to 80. A "
            "law that is too eager swings, one that is too lazy lets a queue stand. Look at: the "
            "window before and during the steps, and messages in time (250 ms) of the probes, "
            "which send two a second and wait in the same queues."
        ),
        nodes=nodes,
        duration_s=100.0,
        node=NodePlan(publish_s=0.002, noise=noise),
        network=NetworkPlan(gossip_late_s=gossip_late_s),
        populations={
            "publishers": PopulationPlan(clients=publishers, node="round-robin", publish=publish),
            "probes": PopulationPlan(clients=10 * nodes, node="round-robin", publish=probe),
        },
        faults=(
            Fault(kind="slow_cpu", node=0, at_s=20.0, until_s=40.0, factor=step),
            Fault(kind="slow_cpu", node=0, at_s=60.0, until_s=80.0, factor=1.0 / step),
        ),
    )
