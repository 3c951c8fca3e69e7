"""The topics that a change of subscriptions concerns, for callers that keep results of `match`.

A filter without wildcard concerns one topic, and the caller drops the result for that topic itself.
`ChangedFilters` has the filters with wildcards and the version at which each changed last. A result
is still right if no filter that matches its topic has changed since. The check walks over the
changed filters; its cost does not depend on the number of topics and subscribers. So no change
costs work for all topics at once, and a result is only checked when it is needed again.

Only the last `CHANGES_MAX` filters are known, and at most `bytes_max` of them. One more filter
clears them, and outdates all earlier results.
"""

from typing import Final, final

from flowguard.routing.index import TopicIndex

CHANGES_MAX: Final = 1_024
"""Maximum number of changed filters kept; a walk takes some hundred microseconds."""
FILTER_BYTES: Final = 150
LEVEL_BYTES: Final = 200
"""Memory for a filter, and for each of its levels, besides its text, rounded up."""
ANYBODY: Final = ""
"""Replaces the subscriber, as only the filter of a changed subscription matters."""


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
        """Note a new or removed subscription to `filter`. O(levels)."""
        self.version += 1
        size_bytes = FILTER_BYTES + filter.__sizeof__() + LEVEL_BYTES * filter.count("/")
        if len(self._filters) == CHANGES_MAX or self.size_bytes + size_bytes > self._bytes_max:
            self._filters = TopicIndex()
            self.size_bytes = 0
            self._known_since = self.version
        if size_bytes <= self._bytes_max and self._filters.subscribe(filter, ANYBODY, self.version):
            self.size_bytes += size_bytes

    def concern(self, topic: str, version: int) -> bool:
        """Return True if a filter that has changed after `version` may match `topic`."""
        if version < self._known_since:
            return True
        return any([changed > version for _, changed in self._filters.match(topic)])
