"""Which topics a change of subscriptions concerns, for whoever keeps what `match` said of them.

A filter without wildcard concerns one topic: who keeps something for it forgets that by itself.
Filters with wildcards are kept here with the version at which each changed last. What was worked
out for a topic at some version is still right if no filter that matches it has changed since: a
walk over the changed filters, however many topics are kept and however many subscribers they have.
So nothing is done for all topics at once, and only what is asked for again is looked at again.

Only the last `CHANGES_MAX` filters are known. With one more all of them are forgotten, and with
them everything that was worked out before.
"""

from typing import Final, final

from flowguard.routing.index import TopicIndex

CHANGES_MAX: Final = 1_024
"""So many filters differ in all levels that a walk meets at most: some hundred microseconds."""
ANYBODY: Final = ""
"""Whose subscription it was does not matter."""


@final
class Changes:
    """Filters with wildcards that have changed."""

    __slots__ = ("_filters", "_known_since", "version")

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change."""
        self._filters: TopicIndex[str, int] = TopicIndex()
        self._known_since = 0

    def note(self, filter: str) -> None:
        """Somebody has subscribed to `filter` anew, or no longer. O(levels)."""
        self.version += 1
        if len(self._filters) == CHANGES_MAX:
            self._filters = TopicIndex()
            self._known_since = self.version
        self._filters.subscribe(filter, ANYBODY, self.version)

    def concern(self, topic: str, version: int) -> bool:
        """Whether `topic` may be matched by a filter that has changed after `version`."""
        if version < self._known_since:
            return True
        return any([changed > version for _, changed in self._filters.match(topic)])
