"""The store contract (design/storage.md part 9, reduced to what a session needs)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from flowguard.records import Durability, QueueEntry, SessionRecord, StoreOp
from flowguard.types import Publish


@dataclass(slots=True)
class StoreLoad:
    """The store's own signals for the load meter."""

    stalled: bool = False
    used_bytes: int = 0


class Store(Protocol):
    """One durable home of sessions, queues and retained messages.

    `commit` is all or nothing: when it returns, every operation is as durable as `durability` says,
    in order; when it raises `StoreError`, none may be acknowledged. It blocks and is called from
    one thread at a time. With `immediate` it never waits for anything outside the process and may
    be called by the reactor itself.
    """

    durability: Durability
    immediate: bool

    def commit(self, ops: Sequence[StoreOp]) -> None:
        """Apply the batch in order."""

    def sessions(self) -> Iterator[SessionRecord]:
        """Every session, at start; order by client id."""

    def retained(self) -> Iterator[tuple[Publish, float]]:
        """Every retained message with its `expires_at_s`, at start; order by topic."""

    def fetch(self, client_id: str, after_pos: int, limit: int) -> list[QueueEntry]:
        """Unsettled entries with pos > `after_pos`, ascending, at most `limit`; [] at the end."""

    def load(self) -> StoreLoad:
        """Cheap, never blocks."""

    def close(self) -> None:
        """Release everything; the store must not be used afterwards."""
