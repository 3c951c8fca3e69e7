"""Journal: group commit. Work waits here until the store has made it durable.

Everything that must survive is appended with the continuation that answers for it; a driver takes
batches (`take`), commits them, and reports (`complete`). One batch is in commit at a time, so the
next one grows while the current one syncs, and continuations run in the order of appending. That
order is why work without any operation is appended as well while something else is waiting.

Bounded in operations and bytes: `is_full` tells the node to stop admitting.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from flowguard.records import Append, PutRetained, StoreOp, message_bytes

Continuation = Callable[[float], None]
"""Called with `now_s` when the work is durable."""

OP_BYTES = 100
"""What an operation counts besides its message, bytes."""


@dataclass(slots=True)
class Batch:
    """One commit: operations in order, then continuations in order."""

    ops: list[StoreOp]
    continuations: list[Continuation]
    size_bytes: int
    since_s: float


@final
class Journal:
    """Operations and continuations waiting for the next commit."""

    __slots__ = (
        "_bytes_max",
        "_continuations",
        "_in_commit",
        "_ops",
        "_ops_max",
        "_since_s",
        "_size_bytes",
    )

    def __init__(self, *, ops_max: int, bytes_max: int) -> None:
        self._ops_max = ops_max
        self._bytes_max = bytes_max
        self._ops: list[StoreOp] = []
        self._continuations: list[Continuation] = []
        self._size_bytes = 0
        self._since_s = 0.0
        self._in_commit: Batch | None = None

    @property
    def is_idle(self) -> bool:
        """Nobody waits: work without operations may be answered at once, in order."""
        return not self._continuations and self._in_commit is None

    @property
    def is_empty(self) -> bool:
        """Nothing waits and nothing is to be written."""
        return not self._ops and self.is_idle

    @property
    def is_full(self) -> bool:
        ops, waiting, size_bytes = len(self._ops), len(self._continuations), self._size_bytes
        if self._in_commit is not None:
            ops += len(self._in_commit.ops)
            waiting += len(self._in_commit.continuations)
            size_bytes += self._in_commit.size_bytes
        return max(ops, waiting) >= self._ops_max or size_bytes >= self._bytes_max

    def oldest_s(self, now_s: float) -> float:
        """How long the oldest waiting work has waited, seconds."""
        if self._in_commit is not None and self._in_commit.continuations:
            return now_s - self._in_commit.since_s
        return now_s - self._since_s if self._continuations else 0.0

    def append(self, ops: list[StoreOp], done: Continuation, now_s: float) -> None:
        """Make `ops` durable together, then call `done`."""
        if not self._continuations:
            self._since_s = now_s
        self._continuations.append(done)
        for op in ops:
            self.note(op)

    def note(self, op: StoreOp) -> None:
        """Make `op` durable with the next batch; nobody waits for it."""
        self._ops.append(op)
        self._size_bytes += OP_BYTES
        if op.__class__ is Append:
            self._size_bytes += op.delivery.size_bytes
        elif op.__class__ is PutRetained:
            self._size_bytes += message_bytes(op.message)

    def take(self) -> Batch | None:
        """The next batch, now in commit; None when there is none or one is in commit already."""
        if self._in_commit is not None or not (self._ops or self._continuations):
            return None
        batch = Batch(self._ops, self._continuations, self._size_bytes, self._since_s)
        self._in_commit = batch
        self._ops, self._continuations, self._size_bytes = [], [], 0
        return batch

    def complete(self, batch: Batch, now_s: float) -> None:
        """The batch is durable: answer everybody who waited for it."""
        assert batch is self._in_commit
        self._in_commit = None
        for done in batch.continuations:
            done(now_s)
