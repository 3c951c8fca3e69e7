"""The topics that a change of subscriptions concerns, for users who keep what `match` returned.

A filter without wildcard concerns one topic: whoever keeps a result for that topic drops it
directly. Filters with wildcards are kept here with the version at which each changed last. What
was worked out for a topic at some version is still right if no filter that matches it has
changed since: a walk over the changed filters, however many topics are kept and however many
subscribers they have. So nothing is done for all topics at once, and only what is asked for
again is looked at again.

Only the last `CHANGES_MAX` filters are known, and no more than `bytes_max` of them. With one
more all of them are forgotten, and with them everything that was worked out before.
"""

from typing import Final, final

from flowguard.routing.index import TopicIndex

CHANGES_MAX: Final = 1_024
"""Maximum number of changed filters kept; a walk takes some hundred microseconds."""
FILTER_BYTES: Final = 150
LEVEL_BYTES: Final = 200
"""Memory for a filter, and for each of its levels, besides its text, rounded up."""
ANYBODY: Final = ""
"""Stands for the subscriber where it does not matter whose subscription changed."""


@final
class ChangedFilters:
    def __init__(self, bytes_max: int) -> None:
        self.version = 0
        """A number that grows with every change."""
        self.size_bytes = 0
        """Memory for the filters that are known."""
        self._bytes_max = bytes_max
        self._filters: TopicIndex[str, int] = TopicIndex()
        self._known_since = 0

    def note(self, filter: str) -> None:
        """Note that somebody has subscribed to `filter` anew, or no longer does. O(levels)."""
        self.version += 1
        size_bytes = FILTER_BYTES + filter.__sizeof__() + LEVEL_BYTES * filter.count("/")
        if len(self._filters) == CHANGES_MAX or self.size_bytes + size_bytes > self._bytes_max:
            self._filters = TopicIndex()
            self.size_bytes = 0
            self._known_since = self.version
        if size_bytes <= self._bytes_max and self._filters.subscribe(filter, ANYBODY, self.version):
            self.size_bytes += size_bytes

    def concern(self, topic: str, version: int) -> bool:
        """Whether `topic` may be matched by a filter that has changed after `version`."""
        if version < self._known_since:
            return True
        return any([changed > version for _, changed in self._filters.match(topic)])
