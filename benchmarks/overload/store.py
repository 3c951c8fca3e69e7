"""A store of known capacity: content in memory, time of a busy disk.

A commit blocks for `commit_s`, as an fsync does, and for `message_s` per durable message; what is
only noted about a message (sent, settled) rides along. So the broker's capacity is a property of
the store, the same on every machine, and no processor is the reason: at most
`messages_per_s(batch)` for batches of that size.
"""

import time
from collections.abc import Callable, Sequence
from typing import final

from flowguard.records import Append, Durability, StoreOp
from flowguard.stores import Fenced, MemoryStore

COMMIT_S = 0.002
MESSAGE_S = 0.000_050


@final
class LimitedStore(MemoryStore):
    """`Store` of limited capacity; a message to three durable sessions is three messages."""

    durability = Durability.FSYNC
    immediate = False

    def __init__(
        self,
        commit_s: float = COMMIT_S,
        message_s: float = MESSAGE_S,
        slowness: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """`slowness` is a factor of the time of each commit."""
        super().__init__()
        self._slowness = slowness
        self._commit_s = commit_s
        self._message_s = message_s
        self.commits = 0
        self.messages = 0
        self.busy_s = 0.0

    def messages_per_s(self, batch: int) -> float:
        """Capacity at batches of that many messages."""
        return batch / (self._commit_s + batch * self._message_s)

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        started_s = time.monotonic()
        messages = sum(op.__class__ is Append for op in ops)
        fenced = super().commit(ops)
        took_s = (self._commit_s + messages * self._message_s) * self._slowness()
        left_s = took_s - (time.monotonic() - started_s)
        if left_s > 0:
            time.sleep(left_s)
        self.commits += 1
        self.messages += messages
        self.busy_s += time.monotonic() - started_s
        return fenced
