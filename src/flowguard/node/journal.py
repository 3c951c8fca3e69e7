"""Journal: group commit. Work waits here until the store has made it durable.

Durable operations are appended with the continuation that answers for them. A driver takes batches
(`take`), commits them, reports (`durable`) and answers (`answer`), at once or piece by piece. One
batch is under way at a time, so the next one grows while the current one syncs and is answered.
Continuations run in the order of appending. So work without any operation is also appended while
other work of the same client waits.

A large batch is half of the work in process, not all of it. Otherwise the clients would be idle
while it syncs, and the disk would be idle while its answers are sent. With a thousand publishers
and a window of one, they would alternate instead of working at the same time.

The journal is bounded in operations and bytes. When it is full, it closes the node's windows at
once; the node's next turn with capacity opens them. So waiting work exceeds the bounds by one
packet's work at most.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from flowguard.config import FlowSettings
from flowguard.flow import NodeWindow, Observer
from flowguard.flow.load.histogram import Histogram
from flowguard.flow.load.observer import BOUNDS_S
from flowguard.records import (
    Append,
    AppendToLog,
    DropSession,
    PutRetained,
    Sent,
    StoreOp,
    message_bytes,
)
from flowguard.session.host import GroupCommit
from flowguard.session.outbound.fetch import Moving

Continuation = Callable[[float], None]
"""Called with `now_s` when the work is durable."""
WideContinuation = Callable[[float], bool]
"""A continuation that takes more than one time slice; it is called again while it is True."""

OP_BYTES: Final = 100
"""Size of an operation without its message, bytes."""
BATCH_MIN: Final = 256
"""Number of operations that always justifies a commit."""
BATCH_BYTES: Final = 2 * 1024 * 1024
"""Size at which a batch takes no more work, as an engine that writes it blocks the interpreter."""
DELIVERIES_MAX: Final = 250
"""Maximum number of deliveries that are answered in one time slice, of up to four milliseconds.
Messages with few subscribers are answered together, so that each of these gets one send."""


@dataclass(slots=True)
class Batch:
    """One commit: operations in order, then continuations in order."""

    ops: list[StoreOp]
    continuations: list[Continuation]
    size_bytes: int
    since_s: float
    """Time when its oldest work with a continuation was appended."""
    until_s: float
    """Time when its youngest such work was appended."""
    wide: list[tuple[int, WideContinuation]] = field(default_factory=list)
    """Wide continuations in order, each with the index of the one that it replaces."""
    heavy: deque[tuple[int, int]] = field(default_factory=deque)
    """Indices of continuations with many deliveries each, in order, and these numbers."""
    readers_count: int = 0
    """Number of continuations for readers, which are no live work."""
    ended: set[str] | None = None
    """Clients whose sessions end with this batch, or None."""


@final
class Written:
    """Counts of all commits, and their durations."""

    def __init__(self) -> None:
        self.sojourn = Histogram()
        """Waits of work until it was durable, seconds; all work of a batch counts as its oldest."""
        self.latency = Histogram(BOUNDS_S)
        """Durations of commits, seconds."""
        self.commits_count = 0
        self.ops_count = 0
        """Number of operations in all commits."""


class Journal(GroupCommit):
    """Operations and continuations waiting for the next commit."""

    def __init__(
        self,
        *,
        ops_max: int,
        bytes_max: int,
        window: NodeWindow | None,
        observer: Observer,
        batch_min: int = BATCH_MIN,
    ) -> None:
        """`window` is closed when the journal is full; `observer` gets the waits of work."""
        self.is_held = False
        """True if no commit may begin now, as it would overtake earlier work."""
        self.is_early = False
        """True if the next commit waits for a moment, to collect more work."""
        self.number = 1
        """Number of the batch that grows."""
        self.done_number = 0
        """Number of the last batch that is completely answered."""
        self.window = window
        self.observer = observer
        self._batch_min = batch_min
        self._ops_max = ops_max
        self._bytes_max = bytes_max
        self._growing = Batch([], [], 0, 0.0, 0.0)
        self._sealed: deque[Batch] = deque()
        """Batches that are large enough and wait for their commit."""
        self._under_way: Batch | None = None
        self._committing_since_s = 0.0
        self._answered_count = 0
        self.is_answering = False
        """True if the batch under way is durable, and not all of its work is answered."""
        self.is_refused = False
        """True if the disk has no space for the batch under way; waits do not measure the store."""
        self._ops_count = 0
        self.moving = Moving()
        """Messages that move from the log into queues; they share the commits with live work."""
        self._is_live = False
        """True if live work was in a commit since the last tick."""
        self.elsewhere_count = 0
        """Number of messages that wait for commits of peers, or behind one that does."""
        self._promised_count = 0
        """Number of operations that admitted packets will append."""
        self._waiting_count = 0
        self.sent: dict[str, int] = {}
        """Highest position sent by client id: one `Sent` per client and batch."""
        self.size_bytes = 0
        """Size of all operations that are not durable yet."""
        self.written = Written()

    @classmethod
    def create(cls, flow: FlowSettings, window: NodeWindow, observer: Observer) -> "Journal":
        """Return a journal with the bounds of a node's settings."""
        return cls(
            ops_max=flow.journal_ops_max,
            bytes_max=flow.journal_bytes_max,
            window=window,
            observer=observer,
        )

    @property
    def is_idle(self) -> bool:
        """True if no work waits, so that work without operations may be answered at once."""
        waits = self._waiting_count or self.elsewhere_count
        return not waits and self._under_way is None

    @property
    def is_empty(self) -> bool:
        """True if no work waits and no operation is unwritten."""
        if self._ops_count or self.sent or self._waiting_count:
            return False
        return self._under_way is None

    @property
    def has_answers(self) -> bool:
        """True if durable work is not answered yet."""
        return self.is_answering

    @property
    def wants_store(self) -> bool:
        """True if a commit should begin before the next tick."""
        return self.is_urgent

    @property
    def is_done(self) -> bool:
        """True if no work waits and no operation is unwritten, in any store."""
        return self.is_empty

    @property
    def is_urgent(self) -> bool:
        """True if work waits, or enough operations were noted; a few can wait for more."""
        if self.is_answering or self.is_held:
            return False
        growing = self._growing
        return bool(self._sealed or growing.continuations or len(growing.ops) >= self._batch_min)

    def is_due(self, *, ticked: bool) -> bool:
        """Return True if a commit should begin; with `ticked`, also for noted operations only."""
        if self.is_urgent:
            return True
        return ticked and not (self.is_empty or self.is_answering or self.is_held)

    @property
    def is_committing(self) -> bool:
        """True if a batch is under way, until all of its work is answered."""
        return self._under_way is not None

    @property
    def last_number(self) -> int:
        growing = self._growing
        return self.number if growing.ops or growing.continuations else self.number - 1

    @property
    def is_full(self) -> bool:
        return self.depth >= self._ops_max or self.size_bytes >= self._bytes_max

    @property
    def depth(self) -> int:
        """Number of operations or of waiting continuations, the larger; with those in commit."""
        return max(self._ops_count + self._promised_count, self._waiting_count)

    def waiting_s(self, now_s: float) -> float:
        """Return how long the oldest work that is not in commit has waited, seconds."""
        if self.is_refused:
            return 0.0
        for batch in (*self._sealed, self._growing):
            if batch.continuations:
                return now_s - batch.since_s
        return 0.0

    def committing_s(self, now_s: float) -> float:
        """Return how long the commit under way has taken so far, seconds."""
        if self._under_way is None or self.is_answering or self.is_refused:
            return 0.0
        return now_s - self._committing_since_s

    def observe(self, now_s: float) -> None:
        """Report waits to the observer, every tick before the policy decides."""
        self.observer.waiting(self.waiting_s(now_s))
        self.observer.committing(self.committing_s(now_s))
        if not self._is_live:
            self.moving.have_all()
        self._is_live = False

    def append(self, ops: list[StoreOp], done: Continuation, now_s: float, name: str = "") -> None:
        """Make `ops` durable together, then call `done`."""
        self._append(done, now_s)
        for op in ops:
            self.note(op)
        self._close_if_full()

    def _append(self, done: Continuation, now_s: float) -> None:
        """Add a continuation to the batch that grows, or to a new one if that is large."""
        batch = self._growing
        size = len(batch.ops)
        is_large = size >= self._batch_min and 2 * size >= self._ops_count
        if is_large or batch.size_bytes >= BATCH_BYTES:
            self._sealed.append(batch)
            batch = self._growing = Batch([], [], 0, now_s, now_s)
            self.number += 1
        elif not batch.continuations:
            batch.since_s = now_s
        batch.until_s = now_s
        batch.continuations.append(done)
        self._waiting_count += 1

    def append_for_reader(self, ops: list[StoreOp], done: Continuation, now_s: float) -> None:
        """Append a page of a backlog, or a release of QoS 2; no publisher waits for it."""
        self.append(ops, done, now_s)
        self._growing.readers_count += 1

    def append_heavy(
        self, ops: list[StoreOp], done: Continuation, deliveries: int, now_s: float
    ) -> None:
        """Append work with a number of `deliveries` to do after the commit."""
        self._append(done, now_s)
        batch = self._growing
        batch.heavy.append((len(batch.continuations) - 1, deliveries))
        for op in ops:
            self.note(op)
        self._close_if_full()

    def append_burst(
        self, ops: list[StoreOp], size_bytes: int, done: Continuation, now_s: float
    ) -> None:
        """Append the work of a burst, an operation for each message, of `size_bytes` together."""
        self._append(done, now_s)
        others = len(ops) - 1
        self._growing.continuations += [_nothing_more] * others
        self._waiting_count += others
        self._grow(ops, OP_BYTES * len(ops) + size_bytes)
        self._close_if_full()

    def append_prepared(
        self, ops: list[StoreOp], size_bytes: int, go_on: WideContinuation, now_s: float
    ) -> None:
        """Append work whose large answer comes piece by piece, before all answers to later work.

        `size_bytes` is what `note` would count for `ops`.
        """
        self._append(_nothing_more, now_s)
        batch = self._growing
        batch.wide.append((len(batch.continuations) - 1, go_on))
        self._grow(ops, size_bytes)
        self._close_if_full()

    def promise(self, count: int) -> None:
        """Expect `count` operations to be appended, or fewer if it is negative."""
        self._promised_count += count
        self._close_if_full()

    def _close_if_full(self) -> None:
        if self.is_full and self.window is not None:
            self.window.closed = True

    def note(self, op: StoreOp) -> None:
        """Make `op` durable with the next batch; no continuation waits for it."""
        size_bytes = OP_BYTES
        if isinstance(op, Append):
            size_bytes += op.delivery.size_bytes
        elif isinstance(op, (PutRetained, AppendToLog)):
            size_bytes += message_bytes(op.message)
        batch = self._growing
        batch.ops.append(op)
        batch.size_bytes += size_bytes
        self.size_bytes += size_bytes
        self._ops_count += 1

    def note_all(self, ops: list[StoreOp]) -> None:
        self._grow(ops, OP_BYTES * len(ops))

    def _grow(self, ops: list[StoreOp], size_bytes: int) -> None:
        batch = self._growing
        batch.ops += ops
        batch.size_bytes += size_bytes
        self.size_bytes += size_bytes
        self._ops_count += len(ops)

    def end_session(self, client_id: str) -> None:
        """End a client's session in the store; `is_ending` until that is durable."""
        self.note(DropSession(client_id))
        batch = self._growing
        if batch.ended is None:
            batch.ended = set()
        batch.ended.add(client_id)

    def is_ending(self, client_id: str) -> bool:
        """Return True if a session of this client has ended, but would return after a crash."""
        under_way = None if self.is_answering else self._under_way
        for batch in (under_way, *self._sealed, self._growing):
            if batch is not None and batch.ended is not None and client_id in batch.ended:
                return True
        return False

    def take(self, now_s: float) -> Batch | None:
        """Return the next batch, now in commit, or None if there is none or one is under way."""
        if self._under_way is not None or self.is_held:
            return None
        if self._sealed:
            batch = self._sealed.popleft()
        elif self._growing.ops or self._growing.continuations or self.sent:
            batch = self._growing
            self._growing = Batch([], [], 0, 0.0, 0.0)
            self.number += 1
        else:
            return None
        if self.sent:
            batch.ops += [Sent(client_id, pos) for client_id, pos in self.sent.items()]
            self._ops_count += len(self.sent)
            self.sent.clear()
        self._under_way = batch
        self._committing_since_s = now_s
        if batch.continuations:
            live_count = len(batch.continuations) - batch.readers_count
            if live_count:
                self._is_live = True
                self.moving.share(live_count)
            # The shortest wait of a batch, like CoDel's minimum: it shows a standing queue.
            self.observer.started(now_s - batch.until_s)
        return batch

    def durable(self, batch: Batch, now_s: float, latency_s: float) -> None:
        """Note that the batch is stored, after a commit of `latency_s`.

        `answer` must follow, piece by piece, until `is_answering` ends.
        """
        assert batch is self._under_way
        assert not self.is_answering
        self.observer.committed(latency_s, now_s)
        count = len(batch.continuations)
        self.observer.finished(count, count * (now_s - batch.since_s))
        self.is_refused = False
        self._ops_count -= len(batch.ops)
        self.size_bytes -= batch.size_bytes
        written = self.written
        written.sojourn.observe(now_s - batch.since_s, len(batch.continuations))
        written.latency.observe(latency_s)
        written.commits_count += 1
        written.ops_count += len(batch.ops)
        self._answered_count = 0
        self.is_answering = True

    def answer(self, count_max: int, now_s: float) -> None:
        """Call the next `count_max` continuations of the batch that is durable.

        Fewer are called if they have more than `DELIVERIES_MAX` deliveries. A wide continuation is
        called alone, once per piece.
        """
        batch = self._under_way
        assert batch is not None
        assert self.is_answering
        start = self._answered_count
        if batch.wide:
            index, go_on = batch.wide[0]
            if index > start:
                count_max = min(count_max, index - start)
            elif go_on(now_s):
                return
            else:
                del batch.wide[0]
                count_max = 1
        if batch.heavy:
            count_max = _fitting(batch.heavy, start, count_max)
        answered = batch.continuations[start : start + count_max]
        self._answered_count += len(answered)
        self._waiting_count -= len(answered)
        if self._answered_count == len(batch.continuations):
            self._under_way = None
            self.is_answering = False
            self.done_number += 1
        for done in answered:
            done(now_s)


def _fitting(heavy: deque[tuple[int, int]], start: int, count_max: int) -> int:
    """Return how many continuations from `start` on fit into one time slice.

    Heavy ones among them are removed from `heavy`.
    """
    deliveries = 0
    while heavy and heavy[0][0] < start + count_max:
        index, count = heavy[0]
        deliveries += count
        if deliveries > DELIVERIES_MAX and index > start:
            return index - start
        heavy.popleft()
    return count_max


def _nothing_more(_: float) -> None:
    """Placeholder of a continuation whose work another one does."""
