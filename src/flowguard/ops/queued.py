"""QueuedMessages: the number of messages that wait for clients, counted for a scrape.

A queue has its own count. A sum of all would cost an instruction for each message, so it is made
when a scraper asks, a slice of the sessions in each step of the event loop.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final, final

from flowguard.node.node import Node

SLICE: Final = 2_000
"""Queues that are counted in one step of the event loop."""


@final
class QueuedMessages:
    def __init__(self, node: Node) -> None:
        self._node = node
        self.count: int | None = None
        """The latest number, or None before the first."""

    def begin(self) -> Callable[[], bool]:
        """Return a function that counts a slice, and returns True while slices are left."""
        node, count = self._node, 0
        owners = iter([*node.registry.sessions.values(), *node.router.queues])

        def step() -> bool:
            nonlocal count
            part = list(islice(owners, SLICE))
            count += sum(each.queue.count for each in part)
            if len(part) == SLICE:
                return True
            self.count = count
            return False

        return step
