"""The interface of a session's queue in a layout, and the batch that is being built.

A failed batch changes nothing. So changes that later operations of the batch need are made at once
and can be undone (`Draft.take_back`). Deferred changes are made after the write (`Draft.sent`,
`Draft.settled`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, final

from flowguard.records import Delivery, QueueEntry
from flowguard.stores.log.generations import Generation
from flowguard.stores.rocks.clock import UidClock
from flowguard.stores.rocks.database.engine import RocksEngine
from flowguard.stores.rocks.database.rows import EngineBatch
from flowguard.stores.rocks.layouts.codec import entry_place, entry_size_bytes

POS_ALL: Final = 2**63


class Queue(ABC):
    """The state of one queue in memory that all layouts have."""

    __slots__ = (
        "connected",
        "count",
        "dropped",
        "marked_pos",
        "next_pos",
        "qno",
        "sent_pos",
        "size_bytes",
        "waiting",
    )

    def __init__(self, qno: int) -> None:
        self.qno = qno
        self.next_pos = 1
        self.sent_pos = 0
        self.count = 0
        self.size_bytes = 0
        self.connected = True
        """True if its session has no end yet."""
        self.dropped = False
        self.waiting = False
        """True if one of the next batches has to write its record."""
        self.marked_pos = POS_ALL
        """The position up to which references are counted
        (`flowguard.stores.rocks.layouts.payloads`)."""

    # --- while a batch is built ---------------------------------------------------------------

    @abstractmethod
    def append(
        self, work: "Draft", pos: int, value: bytes, size_bytes: int, delivery: Delivery
    ) -> None:
        """Add an entry at `pos`, not below `next_pos`; `value` is encoded by `codec`."""

    @abstractmethod
    def sent(self, work: "Draft", pos: int) -> None:
        """Note that positions up to `pos` were sent."""

    @abstractmethod
    def release(self, work: "Draft", pos: int, packet_id: int, delivery: Delivery | None) -> None:
        """Release a sent message that the client has received; ignored if settled or released."""

    @abstractmethod
    def settle(self, work: "Draft", pos: int, delivery: Delivery | None) -> None:
        """Settle the position; ignored if it has no entry."""

    @abstractmethod
    def write_record(self, work: "Draft", *, tidy: bool = False, last: bool = False) -> None:
        """Write the durable state of the queue, besides its entries.

        `tidy`: delete even a few settled rows; `last`: the store is being closed.
        """

    # --- after the write, for a layout with deferred changes ----------------------------------

    def recorded(self, mark: int, trimmed: int, forgets: int) -> None:
        """Note that the record is written, with the values of `Draft.recorded`."""
        raise AssertionError("nothing was recorded")

    def apply_sent(self, pos: int) -> None:
        """Apply an element of `Draft.sent`."""
        raise AssertionError("nothing was put off")

    def apply_settled(self, pos: int, delivery: Delivery | None) -> bool:
        """Apply an element of `Draft.settled`. Return False if `apply_looked_up` must follow."""
        raise AssertionError("nothing was put off")

    def apply_looked_up(self, pos: int, value: bytes) -> None:
        """Apply the size and place in an entry's row, because the operation did not have them."""
        raise AssertionError("nothing was put off")

    def entry_key(self, pos: int) -> bytes:
        raise AssertionError("nothing was put off")

    # --- reading ------------------------------------------------------------------------------

    @abstractmethod
    def restore(self, engine: RocksEngine, record: bytes | None) -> None:
        """Restore the queue. If its record may be older than its entries, `count_entry` follows for
        each row between the keys of `uncounted`."""

    @property
    def uncounted(self) -> tuple[bytes, bytes] | None:
        """The first key of entries that may be newer than the record, and the end of the keys."""
        return None

    def count_entry(self, key: bytes, value: bytes) -> None:
        """Count an entry that was appended after the record was written."""
        raise AssertionError("all were counted")

    @abstractmethod
    def fetch(
        self, engine: RocksEngine, after_pos: int, limit: int, until_pos: int, bytes_max: int
    ) -> list[QueueEntry]:
        """Return entries, as `Store.fetch`."""

    @abstractmethod
    def mark(self, engine: RocksEngine, rows: int) -> list[bytes]:
        """Return the shared payloads of the next entries, and advance `marked_pos`."""

    @abstractmethod
    def place_of_row(self, key: bytes, value: bytes) -> bytes:
        """Return the shared payload to which a row of a dropped queue refers, or empty."""

    @property
    def needs_record(self) -> bool:
        return False

    @property
    def pending_forgets(self) -> list[bytes]:
        """Shared payloads to which the queue's next record ends a reference."""
        return []

    @property
    def is_untidy(self) -> bool:
        """True if rows of settled positions are not deleted yet."""
        return False


@final
class Draft:
    def __init__(self, engine: RocksEngine, clock: UidClock) -> None:
        self.engine = engine
        self.clock = clock
        self.batch: EngineBatch = engine.batch()
        self.handle: Any = engine.queues.handle
        self.appended: list[tuple[Queue, int, int, int, Delivery]] = []
        """Appended entries: queue, its `next_pos` before, position, size in bytes, delivery."""
        self.undo: list[Callable[[], object]] = []
        """Functions that undo the other changes that were made at once."""
        self.sent: list[tuple[Queue, int]] = []
        self.settled: list[tuple[Queue, int, Delivery | None]] = []
        self.records: list[Queue] = []
        """Queues whose record must be written with this batch."""
        self.recorded: list[tuple[Queue, int, int, int]] = []
        """Queues whose record is in it: sent mark, trimmed, number of forgotten payloads."""
        self.placed: list[tuple[Delivery, bytes]] = []
        """Deliveries that got a place in this batch, with the place before."""
        self.referred: list[bytes] = []
        """Shared payloads to which entries of this batch refer."""
        self.values: dict[bytes, bytes] = {}
        """Rows of this batch that later operations may read (layout `status`)."""
        self.forgotten: dict[bytes, int] = {}
        """Number of references that the batch ends, by shared payload."""
        self.hlc = 0
        """The clock's value if the batch records it, else 0."""
        self.logged_to: Generation | None = None
        """The generation of the durable log that has messages of this batch."""
        self.logged_first = 0
        self.logged_last = 0
        self.logged_count = 0
        self.logged_bytes = 0
        self.is_promised = False
        """True if it has operations besides Append, Settle and Sent below the mark."""

    @property
    def must_sync(self) -> bool:
        """True if it must be synced. Settle may be lost, and Sent if the mark is ahead of it."""
        return self.is_promised or bool(self.appended)

    def forget(self, places: list[bytes]) -> None:
        forgotten = self.forgotten
        for place in places:
            forgotten[place] = forgotten.get(place, 0) + 1

    def find(self, queue: Queue, pos: int, delivery: Delivery | None) -> tuple[int, bytes]:
        """Return size and place of an unsettled entry, read only if `delivery` lacks them."""
        if delivery is not None and delivery.place:
            return delivery.size_bytes, delivery.place
        # A damaged entry counts 0 bytes, so that its client can still acknowledge it.
        value = self.engine.queues.get_readable(queue.entry_key(pos))
        if value is not None:
            return entry_size_bytes(value), entry_place(value)
        for other, _, appended_pos, size_bytes, appended in self.appended:
            if other is queue and appended_pos == pos:
                return size_bytes, appended.place
        return 0, b""

    def take_back(self) -> None:
        """Undo the changes; the batch was not written."""
        for queue, next_pos, _, size_bytes, _ in reversed(self.appended):
            queue.next_pos = next_pos
            queue.count -= 1
            queue.size_bytes -= size_bytes
        for undo in reversed(self.undo):
            undo()
        for delivery, place in reversed(self.placed):
            delivery.place = place
        # An error keeps its frames and so this draft; its handle would keep the folder locked.
        self.handle = None
