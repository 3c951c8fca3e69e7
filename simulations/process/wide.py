"""Messages for more subscribers than one stretch of the loop takes, delivered piece by piece.

As in `flowguard.node.publish.fan_out`: while one is delivered it has its client's window for
itself, and between two pieces everybody else is served.
"""

from collections.abc import Callable
from typing import final

from flowguard.node.publish.plans import DELIVERIES_PIECE, WIDE_DELIVERIES
from flowguard.session.chores import Chore
from simulations.scenario import NodePlan


def is_wide(plan: NodePlan, deliveries: int) -> bool:
    """Whether so many are more than one stretch of the loop, where clients take turns."""
    return deliveries > WIDE_DELIVERIES and plan.takes_turns


@final
class WideDelivery(Chore):
    """The deliveries of one message at one node."""

    def __init__(
        self, deliveries: int, deliver: Callable[[int], None], done: Callable[[], object]
    ) -> None:
        """`deliver` is called for so many at a time, and `done` when everybody has it."""
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
