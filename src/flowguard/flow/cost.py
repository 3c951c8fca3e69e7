"""What a packet weighs in a window: an ordinary one is 1 (design/overload.md 5.7).

A PUBLISH that reaches ten thousand subscribers, carries a megabyte, or writes to a thousand queues
of the store is more work than one that does not. `FlowSettings.cost_deliveries` and `cost_bytes`
say how many deliveries, how many bytes are as much work as a packet. Store operations weigh as much
as it takes for a journal that is full of them to be as many units as all clients may have in
process: before it is, clients take turns. What a packet weighs has no upper end; a packet that is
heavier than its window is admitted alone.
"""

from typing import final

from flowguard.config import FlowSettings


@final
class Cost:
    """Weighs packets, in units of a window."""

    __slots__ = ("_deliveries", "unit_bytes", "unit_ops")

    def __init__(self, settings: FlowSettings) -> None:
        self._deliveries = settings.cost_deliveries
        self.unit_bytes = settings.cost_bytes
        """Less weighs nothing, bytes."""
        self.unit_ops = max(1, settings.journal_ops_max // settings.unfinished_max)
        """The same, store operations."""

    def of(self, deliveries: int, size_bytes: int, ops: int = 0) -> int:
        """1 and more; `ops`: of the store."""
        return (
            1
            + deliveries // self._deliveries
            + size_bytes // self.unit_bytes
            + ops // self.unit_ops
        )
