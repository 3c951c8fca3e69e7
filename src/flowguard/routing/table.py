"""All subscriptions of a node, plain and shared, behind one `match`.

A node has one table. `match(topic)` returns the plain subscribers, each with the options of its
subscription, and the shared groups that match. For each group the node then calls
`group.pick(ready)` *per message*, and gets one member with its options:

    routes = table.match(topic)             # may be kept per topic: see `changed_filters`
    for session, options in routes.plain:
        ...
    for group in routes.groups:
        chosen = group.pick(session_rank)   # never kept: the turn moves on

If members join or leave a group that remains, `match` does not change, because routes have the
group itself. Groups have an index of their own, so they cost a plain fan-out nothing.
"""

from typing import Generic, TypeVar, final

from flowguard.routing.filters import parse_shared
from flowguard.routing.index import TopicIndex
from flowguard.routing.shared import SharedGroup

S = TypeVar("S")
V = TypeVar("V")


@final
class Routes(Generic[S, V]):
    """The receivers of messages of one topic. Immutable by convention.

    `plain` has a row per matching filter: a subscriber with overlapping filters appears more
    than once, and the caller merges its rows or not ([MQTT-3.3.4-2]).
    """

    __slots__ = ("plain", "groups")

    def __init__(self, plain: list[tuple[S, V]], groups: list[SharedGroup[S, V]]) -> None:
        self.plain = plain
        self.groups = groups


@final
class SubscriptionTable(Generic[S, V]):
    """Subscriptions by valid filter, with or without `$share/{name}/`, as clients send it."""

    def __init__(self) -> None:
        self.version = 0
        """A number that grows when the result of a `match` may have changed."""
        self._plain: TopicIndex[S, V] = TopicIndex()
        self._shared: TopicIndex[SharedGroup[S, V], None] = TopicIndex()
        self._groups: dict[tuple[str, str], SharedGroup[S, V]] = {}
        self._members_count = 0

    def __len__(self) -> int:
        """Number of subscriptions: pairs of filter and subscriber, shared ones included."""
        return len(self._plain) + self._members_count

    @property
    def shared_count(self) -> int:
        """Number of shared subscriptions among them."""
        return self._members_count

    def subscribe(self, filter: str, subscriber: S, options: V) -> bool:
        """Return True for a new subscription, False if `options` replaced old ones.

        Raises `ValueError` for an invalid shared filter (`filters.parse_shared`).
        """
        key = parse_shared(filter)
        if key is None:
            self.version += 1
            return self._plain.subscribe(filter, subscriber, options)
        group = self._groups.get(key)
        if group is None:
            group = SharedGroup(key[0], key[1])
            self._groups[key] = group
            self._shared.subscribe(group.filter, group, None)
            self.version += 1
        is_new = group.add(subscriber, options)
        self._members_count += is_new
        return is_new

    def unsubscribe(self, filter: str, subscriber: S) -> bool:
        """Remove a subscription; False if there was none. Raises `ValueError` as `subscribe`."""
        key = parse_shared(filter)
        if key is None:
            removed = self._plain.unsubscribe(filter, subscriber)
            self.version += removed
            return removed
        group = self._groups.get(key)
        if group is None or not group.remove(subscriber):
            return False
        self._members_count -= 1
        if not len(group):
            del self._groups[key]
            self._shared.unsubscribe(group.filter, group)
            self.version += 1
        return True

    def match(self, topic: str) -> Routes[S, V]:
        """Return the subscribers of `topic`. Cost as `TopicIndex.match`; a group counts as one."""
        groups = [group for group, _ in self._shared.match(topic)]
        return Routes(self._plain.match(topic), groups)

    def subscribers(self, topic: str) -> list[tuple[str, list[S]]]:
        """Return the subscribers of `topic` by filter, as they sent it. Cost as `match`."""
        found = self._plain.subscribers(topic)
        for group, _ in self._shared.match(topic):
            found.append((group.share, [member for member, _ in group.members()]))
        return found

    def group(self, name: str, filter: str) -> SharedGroup[S, V] | None:
        """Return the shared group of that name and filter, or None."""
        return self._groups.get((name, filter))
