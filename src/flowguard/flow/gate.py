"""ConnectGate: how many CONNECTs are in process at once, and what happens to the rest.

Up to `limit` CONNECTs are in process. The excess waits in a buffer with three bounds: entries,
bytes, and age (a client that has waited longer than its own patience is not worth connecting:
design/overload.md 0.5, the metastable trap). Only beyond the buffer is a CONNECT refused.
Order is first in, first out. Every CONNECT gets exactly one outcome (invariant 11).
"""

from collections import OrderedDict
from typing import Generic, TypeVar, final

from flowguard.flow.verdict import Reason, Verdict

K = TypeVar("K")


@final
class ConnectGate(Generic[K]):
    """Admission of CONNECTs, keyed by the caller's object for the connection (hashable)."""

    __slots__ = (
        "_buffer",
        "_buffer_bytes_max",
        "_buffer_max",
        "_in_process",
        "_patience_s",
        "buffered_bytes",
        "limit",
        "refused",
    )

    def __init__(
        self, *, limit: int, buffer_max: int, buffer_bytes_max: int, patience_s: float
    ) -> None:
        assert limit >= 1
        self.limit = limit
        self._buffer_max = buffer_max
        self._buffer_bytes_max = buffer_bytes_max
        self._patience_s = patience_s
        self._in_process: set[K] = set()
        self._buffer: OrderedDict[K, tuple[float, int]] = OrderedDict()
        self.buffered_bytes = 0
        self.refused: dict[Reason, int] = {}

    @property
    def in_process(self) -> int:
        """CONNECTs admitted and not yet settled."""
        return len(self._in_process)

    @property
    def buffered(self) -> int:
        """CONNECTs waiting for a place."""
        return len(self._buffer)

    @property
    def is_ready(self) -> bool:
        """Whether `admit_next` would admit somebody."""
        return bool(self._buffer) and len(self._in_process) < self.limit

    def offer(self, key: K, size_bytes: int, now_s: float) -> Verdict:
        """A CONNECT of `size_bytes` arrived: ADMIT (settle it later), DELAY or REJECT."""
        assert key not in self._in_process
        assert key not in self._buffer
        if len(self._in_process) < self.limit and not self._buffer:
            self._in_process.add(key)
            return Verdict.ADMIT
        if len(self._buffer) >= self._buffer_max:
            return self._refuse(Reason.GATE_BUFFER_FULL)
        if self.buffered_bytes + size_bytes > self._buffer_bytes_max:
            return self._refuse(Reason.GATE_BUFFER_BYTES)
        self._buffer[key] = (now_s + self._patience_s, size_bytes)
        self.buffered_bytes += size_bytes
        return Verdict.DELAY

    def settle(self, key: K) -> None:
        """The CONNECT is answered, or its connection is gone; frees its place wherever it was."""
        self._in_process.discard(key)
        entry = self._buffer.pop(key, None)
        if entry is not None:
            self.buffered_bytes -= entry[1]

    def admit_next(self, now_s: float) -> tuple[K, Verdict] | None:
        """The oldest waiting CONNECT, if there is a place for it: ADMIT, or REJECT when too old."""
        if not self._buffer:
            return None
        key, (until_s, size_bytes) = next(iter(self._buffer.items()))
        expired = until_s <= now_s
        if not expired and len(self._in_process) >= self.limit:
            return None
        del self._buffer[key]
        self.buffered_bytes -= size_bytes
        if expired:
            return key, self._refuse(Reason.GATE_DEADLINE)
        self._in_process.add(key)
        return key, Verdict.ADMIT

    def abandon_next(self) -> K | None:
        """The oldest waiting CONNECT, taken out to be refused because the node drains."""
        if not self._buffer:
            return None
        key, (_, size_bytes) = self._buffer.popitem(last=False)
        self.buffered_bytes -= size_bytes
        self._refuse(Reason.DRAINING)
        return key

    def _refuse(self, reason: Reason) -> Verdict:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        return Verdict.REJECT
