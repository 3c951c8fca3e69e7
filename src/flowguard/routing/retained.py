"""The last retained message of each topic, bounded in number and in bytes.

Theory of operation. Entries are found by topic in a dict; a trie by level answers filters with
wildcards, so that `a/+/b` walks one branch and an exact filter none. `RetainedWalk` does the
walking in slices of bounded work, because a wildcard over a million topics must not stop the loop.
A walk does not find a message that is put meanwhile at a place it has passed. This is right, since
the subscriber already gets that message as a live one. A walk that may have to be continued later
goes in the order of topics, level by level, even if topics were added and removed since. This takes
several times as long.

Time is an argument. Only `expire` removes expired messages, but they are never returned. Expiry
order is a heap with lazy deletion, rebuilt when half of it is stale.

Limits are memory: an entry counts its real cost, including the levels of its topic. So a topic of
thirty thousand empty levels counts as much as it costs the process.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heappush, merge
from typing import Final, final

from flowguard.records import NEVER_S
from flowguard.routing.few import (
    Few,
    few_count,
    few_get,
    few_keys,
    few_put,
    few_values,
    few_without,
)
from flowguard.routing.filters import has_wildcard, levels_count
from flowguard.types import NO_PROPERTIES, Publish

ENTRY_COST_BYTES: Final = 350
"""Memory for the objects around one entry, without the text; measured with CPython 3.11."""

LEVEL_COST_BYTES: Final = 160
"""Memory for one level of the trie: node, its place in the parent, its text's header."""

WALK_SLICE: Final = 1_000
"""Nodes per step of `slices`."""

LOOK_NODES: Final = 20
"""Nodes of one level that `may_match` checks."""


class RetainOutcome(StrEnum):
    KEPT = "kept"
    REMOVED = "removed"  # an empty payload: the topic has no retained message now
    COUNT_FULL = "count_full"  # rejected: the store has no slot for another topic
    BYTES_FULL = "bytes_full"  # rejected: too large; an older message of the topic stays

    @property
    def is_refusal(self) -> bool:
        return self in (RetainOutcome.COUNT_FULL, RetainOutcome.BYTES_FULL)


@dataclass(init=False, slots=True)
class RetainedMessage:
    """A message as it was published; `expires_at_s` may be NEVER_S. Immutable by convention."""

    publish: Publish
    expires_at_s: float
    size_bytes: int

    def __init__(self, publish: Publish, expires_at_s: float, size_bytes: int) -> None:
        self.publish = publish
        self.expires_at_s = expires_at_s
        self.size_bytes = size_bytes

    def is_alive(self, now_s: float) -> bool:
        return now_s < self.expires_at_s


@final
class TopicNode:
    __slots__ = ("children", "entry")

    def __init__(self) -> None:
        self.entry: RetainedMessage | None = None
        self.children: Few[str, TopicNode] = None

    def grow(self, level: str) -> "TopicNode":
        node = few_get(self.children, level)
        if node is None:
            node = TopicNode()
            self.children = few_put(self.children, level, node)
        return node

    def cut(self, level: str) -> None:
        self.children = few_without(self.children, level)

    def hold(self, entry: RetainedMessage | None) -> None:
        self.entry = entry

    def is_empty(self) -> bool:
        return self.entry is None and self.children is None


def _in_order(children: Few[str, TopicNode], first: str) -> Iterator[str | None]:
    """Yield names from `first` on, in order; many are sorted in pieces, with None after each."""
    names = few_keys(children)
    pieces: list[list[str]] = []
    for start in range(0, len(names), WALK_SLICE):
        piece = [name for name in names[start : start + WALK_SLICE] if name >= first]
        piece.sort()
        pieces.append(piece)
        if len(names) > WALK_SLICE:
            yield None
    yield from pieces[0] if len(pieces) == 1 else merge(*pieces)


@final
class _Visit:
    """The children of a node that a walk still has to visit."""

    __slots__ = ("depth", "has_passed", "names", "node")

    def __init__(
        self, node: TopicNode, names: Iterator[str | None], depth: int, *, has_passed: bool
    ) -> None:
        self.node = node
        self.names = names
        self.depth = depth
        """Number of levels of the filter that lead to them."""
        self.has_passed = has_passed
        """True if the topic after which the walk continues is below the node."""


@final
class RetainedWalk:
    """A walk, in slices, over the entries that match one filter with wildcards.

    It has no order, or returns those after a topic in the order of topics.
    """

    __slots__ = ("_after", "_is_ordered", "_levels", "_stack")

    def __init__(self, root: TopicNode, filter: str, after: str | None = None) -> None:
        self._levels = filter.split("/")
        self._is_ordered = after is not None
        self._after = after.split("/") if after else []
        self._stack: list[_Visit] = []
        self._enter(root, 0, has_passed=True)

    def is_done(self) -> bool:
        return not self._stack

    def take(self, now_s: float, visits_max: int) -> list[RetainedMessage]:
        """Return the entries at the next `visits_max` nodes; an empty list is not the end."""
        found: list[RetainedMessage] = []
        for _ in range(visits_max):
            if not self._stack:
                break
            visit = self._stack[-1]
            try:
                name = next(visit.names)
            except StopIteration:
                self._stack.pop()
                continue
            if name is None:
                break
            node = few_get(visit.node.children, name)
            if node is None:
                continue  # It was removed meanwhile.
            at = len(self._stack) - 1
            has_passed = visit.has_passed and at < len(self._after) and name == self._after[at]
            if self._enter(node, visit.depth, has_passed=has_passed) and not has_passed:
                entry = node.entry
                if entry is not None and entry.is_alive(now_s):
                    found.append(entry)
        return found

    def _enter(self, node: TopicNode, depth: int, *, has_passed: bool) -> bool:
        """Queue the children of `node`, at `depth` levels of the filter; True if it matches."""
        if depth == len(self._levels):
            return True
        at, level = len(self._stack), self._levels[depth]
        first = self._after[at] if has_passed and at < len(self._after) else ""
        if level in ("#", "+"):
            # `#` matches this node, as the parent, and all below it.
            if node.children is not None:
                names = self._names(node, first)
                below = depth + (level == "+")
                self._stack.append(_Visit(node, names, below, has_passed=has_passed))
            return level == "#"
        if level >= first and few_get(node.children, level) is not None:
            self._stack.append(_Visit(node, iter((level,)), depth + 1, has_passed=has_passed))
        return False

    def _names(self, node: TopicNode, first: str) -> Iterator[str | None]:
        """Return the names of the children of a node, from `first` on if the walk is ordered."""
        if self._is_ordered:
            return _in_order(node.children, first)
        names: list[str] = few_keys(node.children)
        return iter(names)


@final
class RetainedMessages:
    """One message per topic; `messages_max` and `bytes_max` are never exceeded by `put`."""

    def __init__(self, *, messages_max: int, bytes_max: int) -> None:
        self.size_bytes = 0
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._entries: dict[str, RetainedMessage] = {}
        self._own_count = 0  # messages below `$SYS/`, not counted by `messages_max`
        self._root = TopicNode()
        self._dollar = TopicNode()  # topics that no leading wildcard sees: [MQTT-4.7.2-1]
        self._heap: list[tuple[float, str]] = []
        self._expiring = 0

    def __len__(self) -> int:
        """Number of topics, including expired ones that `expire` has not removed."""
        return len(self._entries)

    def put(self, publish: Publish, expires_at_s: float) -> RetainOutcome:
        """Keep the message in place of any older one; an empty payload only removes.

        A message that is not larger than the older one is never rejected. A rejection changes
        nothing: the caller answers 0x97, or calls `discard` if the client can get no code.
        O(levels).
        """
        topic = publish.topic
        if not publish.payload:  # [MQTT-3.3.1-6], [MQTT-3.3.1-7]
            self.discard(topic)
            return RetainOutcome.REMOVED
        old = self._entries.get(topic)
        entry = RetainedMessage(publish, expires_at_s, retained_size_bytes(publish))
        growth = entry.size_bytes - (0 if old is None else old.size_bytes)
        is_own = topic.startswith("$SYS/")  # Only the broker may publish there.
        if old is None and not is_own and len(self) - self._own_count >= self._messages_max:
            return RetainOutcome.COUNT_FULL
        if self.size_bytes + growth > self._bytes_max:
            return RetainOutcome.BYTES_FULL
        self._keep(entry)
        return RetainOutcome.KEPT

    def restore(self, publish: Publish, expires_at_s: float) -> None:
        """Keep a message that the store has, even if limits are lower now."""
        self._keep(RetainedMessage(publish, expires_at_s, retained_size_bytes(publish)))

    def discard(self, topic: str) -> bool:
        """Remove the message of the topic, if any. O(levels), amortised."""
        entry = self._entries.get(topic)
        if entry is None:
            return False
        self._remove(entry)
        return True

    def walk(self, filter: str, after: str | None = None) -> RetainedWalk:
        """Return a walk for a filter with wildcards; the caller limits the work itself.

        With `after` it is in the order of topics, after that one, or from the first if "".
        """
        assert has_wildcard(filter), filter
        return RetainedWalk(self._root_of(filter), filter, after)

    def match(self, filter: str, now_s: float) -> Iterator[RetainedMessage]:
        """Yield unexpired messages of matching topics; valid while the store changes (see above).

        O(levels) for an exact filter; else O(nodes of the branches that match).
        """
        for entries in self.slices(filter, now_s):
            yield from entries

    def slices(
        self, filter: str, now_s: float, after: str | None = None
    ) -> Iterator[list[RetainedMessage]]:
        """`match` in steps of bounded work, each of which may yield an empty list.

        With `after`, only topics after that one, in their order; it need not match itself.
        """
        if not has_wildcard(filter):
            entry = self._entries.get(filter) if after != filter else None
            yield [entry] if entry is not None and entry.is_alive(now_s) else []
            return
        walk = self.walk(filter, after)
        while not walk.is_done():
            yield walk.take(now_s, WALK_SLICE)

    def may_match(self, filter: str) -> bool:
        """Return False if a short search shows that no message matches, else True."""
        if not has_wildcard(filter):
            return filter in self._entries
        nodes = [self._root_of(filter)]
        for level in filter.split("/"):
            if level == "#":
                return any([not node.is_empty() for node in nodes])
            below: list[TopicNode] = []
            for node in nodes:
                if level != "+":
                    child = few_get(node.children, level)
                    below += [] if child is None else [child]
                elif few_count(node.children) > LOOK_NODES:
                    return True
                else:
                    below += few_values(node.children)
            if len(below) > LOOK_NODES:
                return True
            nodes = below
        return any([node.entry is not None for node in nodes])

    def get(self, topic: str) -> RetainedMessage | None:
        """Return the entry of a topic, also if it has expired."""
        return self._entries.get(topic)

    def topics(self) -> list[str]:
        """Return all topics. O(their number)."""
        return list(self._entries)

    def holds(self, entry: RetainedMessage) -> bool:
        """Return True if `entry` is still the last message of its topic."""
        return self._entries.get(entry.publish.topic) is entry

    def expire(self, now_s: float, limit: int) -> list[str]:
        """Remove up to `limit` expired entries, and return their topics, oldest first."""
        topics: list[str] = []
        while self._heap and self._heap[0][0] <= now_s and len(topics) < limit:
            at_s, topic = heappop(self._heap)
            entry = self._entries.get(topic)
            if entry is not None and entry.expires_at_s == at_s:
                self._remove(entry)
                topics.append(topic)
        return topics

    def _keep(self, entry: RetainedMessage) -> None:
        """Keep the message in place of any older one of its topic."""
        topic, expires_at_s = entry.publish.topic, entry.expires_at_s
        old = self._entries.get(topic)
        self._entries[topic] = entry
        self._own_count += old is None and topic.startswith("$SYS/")
        node = self._root_of(topic)
        for level in topic.split("/"):
            node = node.grow(level)
        node.hold(entry)
        self.size_bytes += entry.size_bytes - (0 if old is None else old.size_bytes)
        if old is not None and old.expires_at_s < NEVER_S:
            self._expiring -= 1
        if expires_at_s < NEVER_S:
            self._expiring += 1
            heappush(self._heap, (expires_at_s, topic))
        self._sweep_heap()

    def _remove(self, entry: RetainedMessage) -> None:
        topic = entry.publish.topic
        del self._entries[topic]
        self._own_count -= topic.startswith("$SYS/")
        self.size_bytes -= entry.size_bytes
        if entry.expires_at_s < NEVER_S:
            self._expiring -= 1
        levels = topic.split("/")
        path = [self._root_of(topic)]
        for level in levels:
            path.append(path[-1].grow(level))
        path[-1].hold(None)
        while len(path) > 1 and path.pop().is_empty():
            path[-1].cut(levels[len(path) - 1])
        self._sweep_heap()

    def _sweep_heap(self) -> None:
        """Rebuild the heap if most pairs in it are stale: O(1) amortised."""
        if len(self._heap) <= 2 * self._expiring + 64:
            return
        living = {
            (at_s, topic)
            for at_s, topic in self._heap
            if (entry := self._entries.get(topic)) is not None and entry.expires_at_s == at_s
        }
        self._heap = list(living)
        heapify(self._heap)

    def _root_of(self, name: str) -> TopicNode:
        return self._dollar if name.startswith("$") else self._root


def retained_size_bytes(publish: Publish) -> int:
    """Memory of an entry, bytes, an upper bound."""
    topic = publish.topic
    size_bytes = ENTRY_COST_BYTES + LEVEL_COST_BYTES * levels_count(topic)
    size_bytes += 2 * topic.__sizeof__() + len(publish.payload)  # the topic, and its levels
    if publish.properties is not NO_PROPERTIES:
        size_bytes += publish.properties.size_bytes
    return size_bytes
