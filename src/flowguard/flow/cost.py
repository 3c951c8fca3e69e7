"""What a packet weighs in a window: an ordinary one is 1 (design/overload.md 5.7).

A PUBLISH that reaches ten thousand subscribers, or carries a megabyte, is more work than one that
does not. `FlowSettings.cost_deliveries` and `cost_bytes` say how many deliveries, how many bytes
are as much work as a packet. No packet weighs more than a full window.
"""

from typing import final

from flowguard.config import FlowSettings


@final
class Cost:
    """Weighs packets, in units of a window."""

    __slots__ = ("_cost_max", "_deliveries", "unit_bytes")

    def __init__(self, settings: FlowSettings) -> None:
        self._deliveries = settings.cost_deliveries
        self.unit_bytes = settings.cost_bytes
        """Less weighs nothing, bytes."""
        self._cost_max = settings.window_max

    def of(self, deliveries: int, size_bytes: int) -> int:
        """1 up to the window's maximum."""
        cost = 1 + deliveries // self._deliveries + size_bytes // self.unit_bytes
        return cost if cost < self._cost_max else self._cost_max
