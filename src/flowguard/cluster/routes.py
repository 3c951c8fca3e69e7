"""Routes: which peers have sessions that subscribe to a topic.

Each node sends its peers the filters of its own sessions (`OwnFilters`): a snapshot when a link
opens, then changes with growing numbers. Subscriptions are counted, so that 100,000 sessions with
one filter are one route. A SUBACK waits until all peers that may be alive have confirmed the
change of its filter: then no PUBLISH that follows the SUBACK misses the subscription.

A node that starts knows the filters of no peer (`PeerFilters`). Sessions of a peer may be in the
peer's store although the peer is down. So until the first snapshot of a peer has arrived, every
message is forwarded to it. If none of its sessions matches, the peer stores nothing and answers.
"""

from collections.abc import Iterable
from typing import Final, final

from flowguard.cluster.frames import FilterChange
from flowguard.errors import ProtocolViolation

FILTERS_MAX: Final = 256
"""Maximum number of filters in one frame."""
CHANGES_MAX: Final = 4_096
"""Maximum number of changed filters that a link keeps. With more it sends a snapshot instead."""


class OwnFilters:
    """Filters of this node's own sessions, counted, and what peers have confirmed of them."""

    def __init__(self) -> None:
        self.number = 0
        """Number of the last change."""
        self._counts: dict[str, int] = {}
        """Number of subscriptions by filter."""
        self._confirmed: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, filter: str) -> bool:
        """Count a new subscription; True if peers need the filter."""
        count = self._counts.get(filter, 0)
        self._counts[filter] = count + 1
        self.number += not count
        return not count

    def remove(self, filter: str) -> bool:
        """Count off a subscription; True if it was the last one of the filter."""
        count = self._counts[filter] - 1
        if count:
            self._counts[filter] = count
            return False
        del self._counts[filter]
        self.number += 1
        return True

    def filters(self) -> list[str]:
        return list(self._counts)

    def confirmed(self, peer: str, number: int) -> None:
        """A peer forwards by all changes up to `number`. Raises `ProtocolViolation`."""
        if number > self.number:
            raise ProtocolViolation(
                f"change {number} of filters is confirmed, the last is {self.number}"
            )
        self._confirmed[peer] = max(number, self._confirmed.get(peer, 0))

    def is_confirmed(self, number: int, peers: Iterable[str]) -> bool:
        """True if each of `peers` has confirmed all changes up to `number`."""
        return all([self._confirmed.get(peer, -1) >= number for peer in peers])


@final
class FilterFeed:
    """Filters that one link has to send: a snapshot of `OwnFilters`, then changes.

    A filter that changes twice before it is sent is sent once, with the last state.
    """

    def __init__(self, own: OwnFilters) -> None:
        self._own = own
        self._begin()

    def _begin(self) -> None:
        self._number = self._own.number
        """Number of the last change that the peer can confirm."""
        self._snapshot: list[str] | None = self._own.filters()
        """All filters, or None after the last frame of the snapshot."""
        self._sent_count = 0
        """Number of filters of the snapshot that are sent."""
        self._changes: dict[str, bool] = {}
        """Filters that changed after the snapshot; True if added."""

    def note(self, filter: str, is_added: bool) -> None:
        self._changes.pop(filter, None)
        self._changes[filter] = is_added
        if len(self._changes) > CHANGES_MAX:
            self._begin()

    def next(self) -> FilterChange | None:
        """Return the next frame, or None if everything is sent."""
        if self._snapshot is not None:
            return self._next_of_snapshot(self._snapshot)
        if not self._changes:
            return None
        added: list[str] = []
        removed: list[str] = []
        for filter, is_added in list(self._changes.items())[:FILTERS_MAX]:
            if is_added:
                added.append(filter)
            else:
                removed.append(filter)
            del self._changes[filter]
        if not self._changes:
            self._number = self._own.number
        return FilterChange(self._number, tuple(added), tuple(removed))

    def _next_of_snapshot(self, filters: list[str]) -> FilterChange:
        begin, end = self._sent_count, self._sent_count + FILTERS_MAX
        self._sent_count = end
        is_last = end >= len(filters)
        if is_last:
            self._snapshot = None
        part = tuple(filters[begin:end])
        return FilterChange(self._number, part, begins=begin == 0, ends=is_last)


class PeerFilters:
    """Filters of peers; the caller keeps them in its table of subscriptions."""

    def __init__(self, peers: Iterable[str]) -> None:
        self.unknown = set(peers)
        """Peers whose filters are not known yet: they get every message."""
        self._filters: dict[str, set[str]] = {peer: set() for peer in self.unknown}
        self._snapshots: dict[str, set[str]] = {}
        """Snapshots that are not complete."""

    def forget_snapshot(self, peer: str) -> None:
        """The link to a peer is lost: its next one begins with another snapshot."""
        self._snapshots.pop(peer, None)

    def receive(self, peer: str, change: FilterChange) -> tuple[list[str], list[str]] | None:
        """Return the filters to add to the table and to remove from it, or None if parts follow.

        Raises `ProtocolViolation` for a change without a snapshot before it.
        """
        known = self._filters[peer]
        if change.begins:
            self._snapshots[peer] = set()
        snapshot = self._snapshots.get(peer)
        if snapshot is None:
            if peer in self.unknown:
                raise ProtocolViolation("a change of filters without a snapshot before it")
            added = [each for each in change.added if each not in known]
            removed = [each for each in change.removed if each in known]
            known.difference_update(removed)
            known.update(added)
            return added, removed
        snapshot.update(change.added)
        if not change.ends:
            return None
        del self._snapshots[peer]
        self._filters[peer] = snapshot
        self.unknown.discard(peer)
        return list(snapshot - known), list(known - snapshot)
