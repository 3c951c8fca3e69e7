"""Retained messages of a node."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, final

from typing_extensions import TypedDict

from flowguard.node.node import Node
from flowguard.ops.lists.pages import parameters
from flowguard.records import NEVER_S
from flowguard.routing import RetainedMessage, RetainedMessages, has_wildcard, valid_filter

VISITS: Final = 20
"""Nodes of the tree of topics that are visited in one step."""


class ListedRetained(TypedDict):
    topic: str
    payload_bytes: int
    qos: int
    expires_in_s: float | None
    """Time until it expires, or null if it never does."""


@final
class RetainedListing:
    def __init__(self, node: Node, now_s: Callable[[], float], query: Mapping[str, str]) -> None:
        """Raises ValueError with the reason if a parameter is wrong."""
        (filter,) = parameters(query, "filter")
        self._messages = node.router.retained
        self._filter = filter_of(filter or "#")
        self._now_s = now_s

    def entries(self) -> Iterator[list[str]]:
        for found in matching(self._messages, self._filter, self._now_s):
            yield [each.publish.topic for each in found]

    def parts(self, entry: str) -> Sequence[RetainedMessage]:
        kept = self._messages.get(entry)
        return [kept] if kept is not None and kept.is_alive(self._now_s()) else ()

    def row(self, part: RetainedMessage) -> ListedRetained:
        publish, left_s = part.publish, part.expires_at_s - self._now_s()
        return ListedRetained(
            topic=publish.topic,
            payload_bytes=len(publish.payload),
            qos=publish.qos,
            expires_in_s=round(left_s, 3) if part.expires_at_s < NEVER_S else None,
        )


def filter_of(text: str) -> str:
    """Return the filter; raises ValueError if it is not valid."""
    if not valid_filter(text):
        raise ValueError(f"filter: {text[:64]!r} is no topic filter")
    return text


def matching(
    messages: RetainedMessages, filter: str, now_s: Callable[[], float]
) -> Iterator[list[RetainedMessage]]:
    """Yield the retained messages that match, a few nodes of the tree at a time."""
    if not has_wildcard(filter):
        entry = messages.get(filter)
        yield [entry] if entry is not None and entry.is_alive(now_s()) else []
        return
    walk = messages.walk(filter)
    while not walk.is_done():
        yield walk.take(now_s(), VISITS)
