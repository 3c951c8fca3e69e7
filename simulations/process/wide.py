"""Messages with more subscribers than one time slice serves, delivered piece by piece.

As in `flowguard.node.publish.fan_out`, such a message has its client's window for itself while it
is delivered, and all other clients are served between two pieces.
"""

from collections.abc import Callable
from typing import final

from flowguard.node.publish.plans import DELIVERIES_PIECE, WIDE_DELIVERIES
from simulations.scenario import NodePlan


def is_wide(plan: NodePlan, deliveries: int) -> bool:
    """Return True if the deliveries exceed one time slice and the clients take turns."""
    return deliveries > WIDE_DELIVERIES and plan.takes_turns


@final
class WideDelivery:
    """The deliveries of one message at one node."""

    def __init__(
        self, deliveries: int, deliver: Callable[[int], None], done: Callable[[], object]
    ) -> None:
        """`deliver` is called with the size of each piece, and `done` after the last one."""
        self.left = deliveries
        self._deliver = deliver
        self._done = done

    def step(self, now_s: float) -> bool:
        piece = min(DELIVERIES_PIECE, self.left)
        self.left -= piece
        self._deliver(piece)
        if self.left:
            return True
        self._done()
        return False
