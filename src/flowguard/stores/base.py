"""The store contract: the methods that sessions need of a store."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from flowguard import records
from flowguard.flow.load.signals import StoreState
from flowguard.records import Durability, QueueEntry, SessionRecord, StoreOp
from flowguard.stores.log.replays import LogBatch
from flowguard.types import Publish

POS_MAX: Final = 2**63
FETCH_BYTES: Final = 1024 * 1024

Fenced = frozenset[str]
"""Client ids of sessions that another broker owns by now; nothing was written for them."""
NOT_FENCED: Final[Fenced] = frozenset()


@runtime_checkable
class LogStore(Protocol):
    """A store that also has a durable log, and accepts the operations on it."""

    def read_log(
        self,
        client_id: str,
        filters: Sequence[str],
        count_max: int,
        bytes_max: int,
        place: bytes = b"",
    ) -> LogBatch:
        """Return messages that a session has missed since its last `PutLogPlace`; none without one.
        Messages for subscriptions with a `PutLogStart` come first. `place` is used instead of them,
        if it is not empty.

        Blocks as `Store.fetch`, and is called from the same thread.
        """


@dataclass(slots=True)
class StoreLoad:
    """The state of a store: that of the engine and of its disk."""

    state: StoreState = StoreState.FLOWING
    used_bytes: int = 0
    free_bytes: int | None = None
    """Free space on its disk, or None if it has no disk."""
    read_only: bool = False
    """True if the disk is full: commits raise `NoSpaceError` until there is space again."""
    reserve_bytes: int = 0
    """Reserve: the disk counts as full if `free_bytes` is lower."""
    in_doubt: bool = False
    """True if another broker may own the store by now: nothing may be acknowledged."""


class Store(Protocol):
    """The durable state of sessions, queues and retained messages.

    When `commit` returns, all operations have the durability `durability`, in order, except those
    on the sessions that it returns. When it raises `StoreError`, none may be acknowledged. A commit
    is atomic for each session. It is atomic for the batch if the store is local, or if the same
    batch is tried until it succeeds. Only `Sent` and `Settle` may be lost in a crash: then messages
    are sent again.

    All methods but `load` block, and are called from one thread at a time. With `immediate`, no
    call waits for anything outside the process, so the reactor may call it. With `on_disk`, stored
    data needs hardly any memory. `maintain` is called every 100 ms, or every `upkeep_ticks` times
    100 ms if it had no more work and nothing was committed since. Under load it follows a commit,
    and delays the acknowledgements of that commit. Another broker may take over from a broker that
    is silent for `lease_s` (None: never); then `maintain` raises `LockedError`.
    """

    durability: Durability
    immediate: bool
    on_disk: bool
    upkeep_ticks: int
    lease_s: float | None
    clock: Callable[[], float] | None
    """The clock of the times in the store, or None if they do not outlive the process."""

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        """Apply the batch in order. Return the sessions that were skipped, as they have another
        owner; a local store returns NOT_FENCED.

        After a `NotNowError` the same batch may be tried again, before any other. After any other
        `StoreError` the store cannot be used any more.
        """

    def sessions(self) -> Iterator[SessionRecord]:
        """Yield all sessions at the start, in the order of client ids."""

    def retained(self) -> Iterator[tuple[Publish, float]]:
        """Yield all retained messages with `expires_at_s` at the start, in the order of topics."""

    def fetch(
        self,
        client_id: str,
        after_pos: int,
        limit: int,
        *,
        until_pos: int = POS_MAX,
        bytes_max: int = FETCH_BYTES,
    ) -> list[QueueEntry]:
        """Return unsettled entries with `after_pos` < pos <= `until_pos`, ascending; [] at the end.

        At most `limit`; stops when their `Delivery.size_bytes` add up to `bytes_max`.
        """

    def maintain(self) -> bool:
        """Do a few milliseconds of deferrable work. Return True if more is left."""

    def backup(self, folder: Path) -> None:
        """Write a copy of the committed data into a new `folder`, which can be opened as a store.

        Raises `StoreError` if the copy fails, for any value of `folder`, which may be user input.
        """

    def load(self) -> StoreLoad:
        """Return the store's state. Cheap, never blocks, from any thread."""

    def close(self) -> None:
        """Release everything; the store must not be used afterwards."""


def session_ops(record: records.SessionRecord) -> list[records.StoreOp]:
    """Return operations that create such a session, without queue and place in the log."""
    name = record.client_id
    ops: list[records.StoreOp] = [
        records.PutSession(
            name, record.expiry_interval_s, record.ends_at_s, record.is_application, record.user
        )
    ]
    ops += [
        records.PutSubscription(name, filter, options, record.retained_after.get(filter))
        for filter, options in record.subscriptions.items()
    ]
    ops += [records.PutInbound(name, packet_id) for packet_id in sorted(record.inbound_ids)]
    if record.will is not None:
        ops.append(records.PutWill(name, record.will))
    return ops
