"""A node held under pressure, whatever it is really under.

The one place that knows how the node observes itself.
"""

import trio

from flowguard.flow.signals import PRESSURE_MAX, TICK_S
from flowguard.node.node import Node


async def hold(
    node: Node, *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
) -> None:
    """Until the scope that it reports is cancelled: replicas that are far too late."""
    observer = node.guard.observer
    late_s = node.settings.flow.replication_objective_s * PRESSURE_MAX
    with trio.CancelScope() as scope:
        task_status.started(scope)
        try:
            while True:
                observer.replication(late_s)
                await trio.sleep(TICK_S / 2)
        finally:
            observer.replication(0.0)
