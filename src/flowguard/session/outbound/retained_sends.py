"""Retained messages on their way to new subscriptions, one filter after the other.

Finding them is work that no window bounds: a filter may look at every topic there is and match
none. So it is done in slices, and after a few of them the connection has to wait for its next turn.
Each filter is worked off once at a time: whoever subscribes again starts again.

A search ends with the connection. What a durable session is owed at QoS 1 and 2 it remembers
itself, by filter, and how far that has come (`Filters.retained_after`): so the searches of its next
connection go on there.
"""

from collections import OrderedDict
from typing import Final, final

from flowguard.records import Delivery
from flowguard.session.host import RetainedSearch

STEPS_MAX: Final = 1_000
"""Messages per turn, sent or not: some milliseconds."""
SLICE_STEPS: Final = 200
"""What a slice of searching counts, found or not."""


@final
class RetainedSends:
    """The retained messages that one connection is still to be sent."""

    __slots__ = ("_by_filter", "_steps_left", "filter", "is_storing", "moved")

    def __init__(self) -> None:
        self._by_filter: OrderedDict[str, RetainedSearch] = OrderedDict()
        self.filter = ""
        """That `peek` found something for."""
        self.moved: dict[str, bool] = {}
        """Filters for which something was found that the store has not heard of; True: and nothing
        is left for them."""
        self._steps_left = STEPS_MAX
        self.is_storing = False
        """A page of them is to be durable before more follow."""

    @property
    def is_done(self) -> bool:
        return not self._by_filter

    def new_turn(self) -> None:
        self._steps_left = STEPS_MAX

    def __contains__(self, filter: str) -> bool:
        """Whether its messages are being looked for."""
        return filter in self._by_filter

    def add(self, filter: str, search: RetainedSearch) -> None:
        self._by_filter[filter] = search

    def remove(self, filter: str) -> None:
        """Nobody wants it any more."""
        self._by_filter.pop(filter, None)
        self.moved.pop(filter, None)

    @property
    def is_tired(self) -> bool:
        """It has had its share of this turn."""
        return self._steps_left <= 0

    def peek(self) -> Delivery | None:
        """The next message, left in place; None: done, or tired."""
        while self._by_filter and self._steps_left > 0:
            filter, search = next(iter(self._by_filter.items()))
            delivery = search.peek()
            if delivery is not None:
                self.filter = filter
                return delivery
            if search.is_done:
                del self._by_filter[filter]
                self.moved[filter] = True
            else:
                self._steps_left -= SLICE_STEPS
        return None

    def take(self) -> None:
        """On with the message after the one that `peek` gave."""
        self._steps_left -= 1
        self.moved[self.filter] = False
        self._by_filter[self.filter].take()
