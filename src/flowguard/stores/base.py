"""The store contract: what sessions need of a store, and no more."""

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
"""Client ids of sessions that somebody else owns by now: nothing was written for them."""
NOT_FENCED: Final[Fenced] = frozenset()


@runtime_checkable
class LogStore(Protocol):
    """A store that has a durable log as well: it accepts the operations on the log."""

    def read_log(
        self, client_id: str, filters: Sequence[str], count_max: int, bytes_max: int
    ) -> LogBatch:
        """Messages that a session has missed since its last `PutLogPlace`; none without one. Those
        that subscriptions with a `PutLogStart` are owed come before them.

        Blocks, and is called, as `Store.fetch`.
        """


@dataclass(slots=True)
class StoreLoad:
    """The store's own signals: of the engine, and of the disk it lives on."""

    state: StoreState = StoreState.FLOWING
    used_bytes: int = 0
    free_bytes: int | None = None
    """Free space on its disk; None: there is no disk."""
    read_only: bool = False
    """Whether the disk is full: commits raise `NoSpaceError` until there is room again."""
    reserve_bytes: int = 0
    """Of `free_bytes`, what is not for use: below it the disk is full."""


class Store(Protocol):
    """One durable home of sessions, queues and retained messages.

    When `commit` returns, every operation is as durable as `durability` says, in order, but those
    of the sessions it names; when it raises `StoreError`, none may be acknowledged. All or nothing
    for each session; and for the batch where the store is local, or the same batch is tried until
    it is taken. `Sent` and `Settle` alone may be lost in a crash: what they tell is then told
    again.

    Everything but `load` blocks, and is called from one thread at a time. With `immediate` nothing
    ever waits for anything outside the process, and the reactor itself may call it. With `on_disk`
    what is stored takes no memory to speak of. `maintain` is called every 100 ms; every
    `upkeep_ticks` times 100 ms where it had nothing left to do and nothing was committed since.
    Under load it follows a commit, and whoever waits for that waits for it, too. Who is silent for
    `lease_s` may be succeeded by somebody else (None: by nobody), and `maintain` then raises
    `LockedError`.
    """

    durability: Durability
    immediate: bool
    on_disk: bool
    upkeep_ticks: int
    lease_s: float | None
    clock: Callable[[], float] | None
    """The clock that instants in the store are of, or None if they do not outlive the process."""

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        """Apply the batch in order; the sessions it could not write for, as they are another's.

        A local store owns all of its sessions: NOT_FENCED. After a `NotNowError` the same batch may
        be tried again, before any other; any other `StoreError`: the store is done for.
        """

    def sessions(self) -> Iterator[SessionRecord]:
        """Every session, at start; order by client id."""

    def retained(self) -> Iterator[tuple[Publish, float]]:
        """Every retained message with its `expires_at_s`, at start; order by topic."""

    def fetch(
        self,
        client_id: str,
        after_pos: int,
        limit: int,
        *,
        until_pos: int = POS_MAX,
        bytes_max: int = FETCH_BYTES,
    ) -> list[QueueEntry]:
        """Unsettled entries with `after_pos` < pos <= `until_pos`, ascending; [] at the end.

        At most `limit`, and no further one when `Delivery.size_bytes` of those before add up to
        `bytes_max`.
        """

    def maintain(self) -> bool:
        """Do a few milliseconds of deferrable work; return whether more is left to do."""

    def backup(self, folder: Path) -> None:
        """Write a copy of what is committed into a new `folder`, from which a store opens.

        `folder` may come from outside: whatever it is, raises `StoreError` where there is no copy.
        """

    def load(self) -> StoreLoad:
        """The store's signals. Cheap, never blocks, from any thread."""

    def close(self) -> None:
        """Release everything; the store must not be used afterwards."""


def session_ops(record: records.SessionRecord) -> list[records.StoreOp]:
    """Operations that make such a session, without queue and place in the log."""
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
