"""Retained messages on their way to new subscriptions, one filter after the other.

Finding them is work that no window bounds: a filter may look at every topic there is and match
none. So it is done in slices, and after a few of them the connection has to wait for its next turn.
Each filter is worked off once at a time: whoever subscribes again starts again.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, final

from flowguard.records import Delivery

STEPS_MAX: Final = 1_000
"""Messages per turn, sent or not: some milliseconds."""
SLICE_STEPS: Final = 200
"""What a slice of searching counts, found or not."""


@final
class RetainedSends:
    """The retained messages that one client is still to be sent."""

    __slots__ = ("_by_filter", "_steps_left")

    def __init__(self) -> None:
        self._by_filter: OrderedDict[str, Iterator[Delivery | None]] = OrderedDict()
        self._steps_left = STEPS_MAX

    @property
    def is_done(self) -> bool:
        return not self._by_filter

    def new_turn(self) -> None:
        self._steps_left = STEPS_MAX

    def add(self, filter: str, deliveries: Iterator[Delivery | None]) -> None:
        """`deliveries` gives None after each slice of searching."""
        self._by_filter[filter] = deliveries

    def remove(self, filter: str) -> None:
        """Nobody wants it any more."""
        self._by_filter.pop(filter, None)

    @property
    def is_tired(self) -> bool:
        """It has had its share of this turn."""
        return self._steps_left <= 0

    def next(self) -> Delivery | None:
        """The next message; None: done, or tired."""
        while self._by_filter and self._steps_left > 0:
            deliveries = next(iter(self._by_filter.values()))
            try:
                delivery = next(deliveries)
            except StopIteration:
                self._by_filter.popitem(last=False)
                continue
            if delivery is not None:
                self._steps_left -= 1
                return delivery
            self._steps_left -= SLICE_STEPS
        return None
