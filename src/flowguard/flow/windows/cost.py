"""The cost of a packet in a window: an ordinary one is 1 (docs/explain/overload.md, "What counts").

Store operations weigh so much that the units of all clients in process are a quarter of a full
journal: clients take turns long before it is full. The weight of a packet has no upper end.
"""

from typing import Final, final

from flowguard.config import FlowSettings

JOURNALS: Final = 4
"""A full journal is this many times what all clients may have in process."""


@final
class Cost:
    """Weighs packets, in units of a window."""

    def __init__(self, settings: FlowSettings) -> None:
        self._deliveries = settings.cost_deliveries
        self.unit_bytes = settings.cost_bytes
        """Payload bytes per unit; fewer weigh nothing."""
        self.unit_ops = max(1, settings.journal_ops_max // (JOURNALS * settings.unfinished_max))
        """Store operations per unit; fewer weigh nothing."""

    def of(self, deliveries: int, size_bytes: int, ops: int = 0) -> int:
        """Return the cost, at least 1; `ops` are operations of the store."""
        return (
            1
            + deliveries // self._deliveries
            + size_bytes // self.unit_bytes
            + ops // self.unit_ops
        )
