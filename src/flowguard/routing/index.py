"""The index of subscriptions: from a topic to the subscribers of every matching filter.

Theory of operation. A filter without wildcard is a key of a plain dict, so that ten thousand
clients with a topic of their own cost one dict entry and one tuple each. Filters with wildcards
form a trie by level; a node has the subscribers of the filter that ends at it (`here`) and of
the filter that goes on with a last `#` (`below`). A topic walks the trie with a frontier of nodes,
one level at a time: no recursion, and never more work than the trie has nodes at that depth.
Filters that start with `$` have a trie of their own, the only one that such topics see:
[MQTT-4.7.2-1].

Filters must be valid (`filters.valid_filter`) and without `$share/...` (see `table`). The caller
limits the levels of a filter: each one of a wildcard filter costs a node.
"""

from typing import Generic, TypeVar, final

from flowguard.routing.few import (
    Few,
    Many,
    few_extend,
    few_get,
    few_has,
    few_keys,
    few_put,
    few_without,
)
from flowguard.routing.filters import has_wildcard, valid_filter

S = TypeVar("S")
V = TypeVar("V")


@final
class FilterNode(Generic[S, V]):
    __slots__ = ("here", "below", "plus", "children")

    def __init__(self) -> None:
        self.here: Few[S, V] = None
        self.below: Few[S, V] = None
        self.plus: FilterNode[S, V] | None = None
        self.children: Few[str, FilterNode[S, V]] = None

    def is_empty(self) -> bool:
        return (
            self.here is None and self.below is None and self.plus is None and self.children is None
        )

    def step(self, level: str) -> "FilterNode[S, V] | None":
        return self.plus if level == "+" else few_get(self.children, level)

    def grow(self, level: str) -> "FilterNode[S, V]":
        """Return the next node; make it if it is missing."""
        node = self.step(level)
        if node is None:
            node = FilterNode()
            if level == "+":
                self.plus = node
            else:
                self.children = few_put(self.children, level, node)
        return node

    def cut(self, level: str) -> None:
        if level == "+":
            self.plus = None
        else:
            self.children = few_without(self.children, level)

    def put(self, subscriber: S, value: V, *, below: bool) -> bool:
        if below:
            is_new = not few_has(self.below, subscriber)
            self.below = few_put(self.below, subscriber, value)
        else:
            is_new = not few_has(self.here, subscriber)
            self.here = few_put(self.here, subscriber, value)
        return is_new

    def remove(self, subscriber: S, *, below: bool) -> bool:
        if not few_has(self.below if below else self.here, subscriber):
            return False
        if below:
            self.below = few_without(self.below, subscriber)
        else:
            self.here = few_without(self.here, subscriber)
        return True


@final
class TopicIndex(Generic[S, V]):
    """Subscribers (hashable) with one value per filter, found by topic."""

    __slots__ = ("version", "_exact", "_root", "_dollar", "_count")

    def __init__(self) -> None:
        self.version = 0
        """A number that grows with every change and so outdates results of `match`."""
        self._exact: dict[str, Many[S, V]] = {}
        self._root: FilterNode[S, V] = FilterNode()
        self._dollar: FilterNode[S, V] = FilterNode()
        self._count = 0

    def __len__(self) -> int:
        """Number of pairs of filter and subscriber."""
        return self._count

    def subscribe(self, filter: str, subscriber: S, value: V) -> bool:
        """Return True for a new subscription, False if `value` replaced an old one. O(levels)."""
        assert valid_filter(filter), filter
        if has_wildcard(filter):
            levels, below = _split(filter)
            node = self._root_of(filter)
            for level in levels:
                node = node.grow(level)
            is_new = node.put(subscriber, value, below=below)
        else:
            few = self._exact.get(filter)
            is_new = not few_has(few, subscriber)
            self._exact[filter] = few_put(few, subscriber, value)
        self._count += is_new
        self.version += 1
        return is_new

    def unsubscribe(self, filter: str, subscriber: S) -> bool:
        """Remove the subscription; return False if there was none. O(levels), amortised."""
        if has_wildcard(filter):
            removed = self._remove_wildcard(filter, subscriber)
        else:
            removed = self._remove_exact(filter, subscriber)
        if removed:
            self._count -= 1
            self.version += 1
        return removed

    def match(self, topic: str) -> list[tuple[S, V]]:
        """Return (subscriber, value) of every matching filter, in a fixed order.

        Cost: O(levels x matching branches + results); without wildcard filters O(results).
        """
        found: list[tuple[S, V]] = []
        few = self._exact.get(topic)
        if few is not None:
            few_extend(found, few)
        if not self._root_of(topic).is_empty():
            self._match_wildcards(topic, found)
        return found

    def subscribers(self, topic: str) -> list[tuple[str, list[S]]]:
        """Return every matching filter with a copy of its subscribers. Cost as `match`."""
        found: list[tuple[str, list[S]]] = []
        if topic in self._exact:
            found.append((topic, few_keys(self._exact[topic])))
        frontier = [("", self._root_of(topic))]
        for level in topic.split("/"):
            following: list[tuple[str, FilterNode[S, V]]] = []
            for start, node in frontier:
                if node.below is not None:
                    found.append((f"{start}#", few_keys(node.below)))
                for name in (level, "+"):
                    child = node.step(name)
                    if child is not None:
                        following.append((f"{start}{name}/", child))
            frontier = following
        for start, node in frontier:
            if node.here is not None:
                found.append((start[:-1], few_keys(node.here)))
            if node.below is not None:
                found.append((f"{start}#", few_keys(node.below)))
        return found

    def _match_wildcards(self, topic: str, found: list[tuple[S, V]]) -> None:
        frontier = [self._root_of(topic)]
        for level in topic.split("/"):
            frontier = _advance(frontier, level, found)
            if not frontier:
                return
        for node in frontier:
            if node.here is not None:
                few_extend(found, node.here)
            if node.below is not None:  # `sport/#` matches `sport` as well
                few_extend(found, node.below)

    def _root_of(self, name: str) -> FilterNode[S, V]:
        return self._dollar if name.startswith("$") else self._root

    def _remove_exact(self, filter: str, subscriber: S) -> bool:
        few = self._exact.get(filter)
        if not few_has(few, subscriber):
            return False
        rest = few_without(few, subscriber)
        if rest is None:
            del self._exact[filter]
        else:
            self._exact[filter] = rest
        return True

    def _remove_wildcard(self, filter: str, subscriber: S) -> bool:
        levels, below = _split(filter)
        path = [self._root_of(filter)]
        for level in levels:
            node = path[-1].step(level)
            if node is None:
                return False
            path.append(node)
        if not path[-1].remove(subscriber, below=below):
            return False
        while len(path) > 1 and path.pop().is_empty():
            path[-1].cut(levels[len(path) - 1])
        return True


def _advance(
    frontier: list[FilterNode[S, V]], level: str, found: list[tuple[S, V]]
) -> list[FilterNode[S, V]]:
    """Return the nodes of the next level; matches at this one are added to `found`."""
    following: list[FilterNode[S, V]] = []
    for node in frontier:
        if node.below is not None:
            few_extend(found, node.below)
        children = node.children
        if isinstance(children, dict):  # few_get, without the call
            child = children.get(level)
            if child is not None:
                following.append(child)
        elif children is not None and children[0] == level:
            following.append(children[1])
        if node.plus is not None:
            following.append(node.plus)
    return following


def _split(filter: str) -> tuple[list[str], bool]:
    """Return the levels before a last `#`, and True if there is one."""
    levels = filter.split("/")
    below = levels[-1] == "#"
    if below:
        levels.pop()
    return levels, below
