"""The cost of a packet in a window: an ordinary one is 1 (docs/explain/overload.md, "What counts").

A PUBLISH that reaches ten thousand subscribers, carries a megabyte, or writes to a thousand queues
of the store is more work than one that does not. `FlowSettings.cost_deliveries` and `cost_bytes`
say how many deliveries, how many bytes are as much work as a packet. Store operations weigh so much
that as many units as all clients may have in process are a quarter of a full journal: clients take
turns long before it is full, and who is served then waits for few that came before. What a packet
weighs has no upper end; a packet that is heavier than its window is admitted alone.
"""

from typing import Final, final

from flowguard.config import FlowSettings

JOURNALS: Final = 4
"""A full one is so many times what all clients may have in process."""


@final
class Cost:
    """Weighs packets, in units of a window."""

    def __init__(self, settings: FlowSettings) -> None:
        self._deliveries = settings.cost_deliveries
        self.unit_bytes = settings.cost_bytes
        """Less weighs nothing, bytes."""
        self.unit_ops = max(1, settings.journal_ops_max // (JOURNALS * settings.unfinished_max))
        """The same, store operations."""

    def of(self, deliveries: int, size_bytes: int, ops: int = 0) -> int:
        """1 and more; `ops`: of the store."""
        return (
            1
            + deliveries // self._deliveries
            + size_bytes // self.unit_bytes
            + ops // self.unit_ops
        )
