"""Retained messages on their way to new subscriptions, one filter after the other.

No window limits the search for them: a filter may check all topics and match none. So it is done in
slices, and after a few of them the connection has to wait for its next turn. Each filter has one
search at a time: a repeated subscription starts it again.

A search ends with the connection. A durable session records the progress of each filter at QoS 1
and 2 (`Filters.retained_after`), so that the searches of its next connection continue there.
"""

from collections import OrderedDict
from typing import Final, final

from flowguard.records import Delivery
from flowguard.session.host import RetainedSearch

STEPS_MAX: Final = 1_000
"""Maximum number of messages per turn, sent or not: some milliseconds."""
SLICE_STEPS: Final = 200
"""Steps that a slice of searching counts, with or without a result."""


@final
class RetainedSends:
    """The retained messages that remain to be sent to one connection."""

    __slots__ = ("_by_filter", "_steps_left", "filter", "is_storing", "moved")

    def __init__(self) -> None:
        self._by_filter: OrderedDict[str, RetainedSearch] = OrderedDict()
        self.filter = ""
        """The filter of the last result of `peek`."""
        self.moved: dict[str, bool] = {}
        """Filters with progress that is not stored yet; True if their search is done."""
        self._steps_left = STEPS_MAX
        self.is_storing = False
        """True if a page of them must be durable before more follow."""

    @property
    def is_done(self) -> bool:
        return not self._by_filter

    def new_turn(self) -> None:
        self._steps_left = STEPS_MAX

    def __contains__(self, filter: str) -> bool:
        """Return True if the search for a filter is under way."""
        return filter in self._by_filter

    def add(self, filter: str, search: RetainedSearch) -> None:
        self._by_filter[filter] = search

    def remove(self, filter: str) -> None:
        """Stop the search for a filter."""
        self._by_filter.pop(filter, None)
        self.moved.pop(filter, None)

    @property
    def is_tired(self) -> bool:
        """True if its share of this turn is used up."""
        return self._steps_left <= 0

    def peek(self) -> Delivery | None:
        """Return the next message, left in place, or None if done or tired."""
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
        """Go on to the message after the one that `peek` returned."""
        self._steps_left -= 1
        self.moved[self.filter] = False
        self._by_filter[self.filter].take()
