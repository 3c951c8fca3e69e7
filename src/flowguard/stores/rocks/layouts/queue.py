"""The queue of one session as a layout keeps it, and the batch that is being built.

A batch that fails leaves no trace. So changes that later operations of the batch must see are
made at once and can be taken back (`Draft.take_back`); those that nothing waits for may be made
after the write (`Draft.sent`, `Draft.settled`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, final

from flowguard.records import Delivery, QueueEntry
from flowguard.stores.log.generations import Generation
from flowguard.stores.rocks.clock import UidClock
from flowguard.stores.rocks.database.engine import EngineBatch, RocksEngine
from flowguard.stores.rocks.layouts.codec import entry_place, entry_size_bytes

POS_ALL: Final = 2**63


class Queue(ABC):
    """The state of one queue in memory; the rest is the layout's."""

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
        """Whether its session has no end yet."""
        self.dropped = False
        self.waiting = False
        """Whether one of the next batches has to write its record."""
        self.marked_pos = POS_ALL
        """The position up to which references are counted
        (`flowguard.stores.rocks.layouts.payloads`)."""

    # --- while a batch is built ---------------------------------------------------------------

    @abstractmethod
    def append(
        self, work: "Draft", pos: int, value: bytes, size_bytes: int, delivery: Delivery
    ) -> None:
        """Add an entry at `pos`, not below `next_pos`; `value` is one of `codec`."""

    @abstractmethod
    def sent(self, work: "Draft", pos: int) -> None:
        """Note that positions up to `pos` were sent."""

    @abstractmethod
    def release(self, work: "Draft", pos: int, packet_id: int, delivery: Delivery | None) -> None:
        """Release a sent message that the client has; ignored if it is settled or released."""

    @abstractmethod
    def settle(self, work: "Draft", pos: int, delivery: Delivery | None) -> None:
        """Settle the position; ignored where there is nothing."""

    @abstractmethod
    def write_record(self, work: "Draft", *, tidy: bool = False, last: bool = False) -> None:
        """Write the state that survives besides the entries.

        `tidy`: delete settled rows, however few; `last`: the store is being closed.
        """

    # --- after it was written, for a layout that puts things off ------------------------------

    def recorded(self, mark: int, trimmed: int, forgets: int) -> None:
        """Note that the record is written, as `Draft.recorded` says."""
        raise AssertionError("nothing was recorded")

    def apply_sent(self, pos: int) -> None:
        """Apply an element of `Draft.sent`."""
        raise AssertionError("nothing was put off")

    def apply_settled(self, pos: int, delivery: Delivery | None) -> bool:
        """Apply an element of `Draft.settled`; False: `apply_looked_up` must follow."""
        raise AssertionError("nothing was put off")

    def apply_looked_up(self, pos: int, value: bytes) -> None:
        """Settle an entry by its row, because the operation did not have its content."""
        raise AssertionError("nothing was put off")

    def entry_key(self, pos: int) -> bytes:
        raise AssertionError("nothing was put off")

    # --- reading ------------------------------------------------------------------------------

    @abstractmethod
    def restore(self, engine: RocksEngine, record: bytes | None, *, clean: bool) -> None:
        """Restore the queue; if not `clean`, the record may be older than the entries."""

    @abstractmethod
    def fetch(
        self, engine: RocksEngine, after_pos: int, limit: int, until_pos: int, bytes_max: int
    ) -> list[QueueEntry]:
        """Entries, as by `Store.fetch`."""

    @abstractmethod
    def mark(self, engine: RocksEngine, rows: int) -> list[bytes]:
        """Shared payloads of the next entries at `marked_pos`, which moves on."""

    @abstractmethod
    def place_of_row(self, key: bytes, value: bytes) -> bytes:
        """The shared payload that a row of a dropped queue refers to; empty: none."""

    @property
    def needs_record(self) -> bool:
        return False

    @property
    def pending_forgets(self) -> list[bytes]:
        """Shared payloads that a dropped queue would have forgotten with its next record."""
        return []

    @property
    def is_untidy(self) -> bool:
        """Whether rows of settled positions are still there."""
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
        """Functions that undo the other changes made at once."""
        self.sent: list[tuple[Queue, int]] = []
        self.settled: list[tuple[Queue, int, Delivery | None]] = []
        self.records: list[Queue] = []
        """Queues whose record must be written with this batch."""
        self.recorded: list[tuple[Queue, int, int, int]] = []
        """Queues whose record is in it: sent mark, trimmed, payloads forgotten."""
        self.placed: list[tuple[Delivery, bytes]] = []
        """Deliveries that got a place in this batch, with the place before."""
        self.referred: list[bytes] = []
        """Shared payloads that entries of this batch were counted for."""
        self.values: dict[bytes, bytes] = {}
        """Rows of this batch that it may have to read itself (layout `status`)."""
        self.forgotten: dict[bytes, int] = {}
        """Shared payloads, and by how many entries fewer refer to them."""
        self.hlc = 0
        """The clock's value, where the batch records it."""
        self.logged_to: Generation | None = None
        """The generation of the durable log that has messages of this batch."""
        self.logged_first = 0
        self.logged_last = 0
        self.logged_count = 0
        self.logged_bytes = 0
        self.is_promised = False
        """Whether it holds more than Append and Settle, and Sent below the mark."""

    @property
    def must_sync(self) -> bool:
        """Whether it must be synced; Settle may be lost, and Sent where the mark is ahead of it."""
        return self.is_promised or bool(self.appended)

    def forget(self, places: list[bytes]) -> None:
        forgotten = self.forgotten
        for place in places:
            forgotten[place] = forgotten.get(place, 0) + 1

    def find(self, queue: Queue, pos: int, delivery: Delivery | None) -> tuple[int, bytes]:
        """Size and place of an unsettled entry, read again only if `delivery` does not say them."""
        if delivery is not None and delivery.place:
            return delivery.size_bytes, delivery.place
        # What is damaged counts nothing: who is done with it must be able to say so.
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
        # Who keeps the error keeps its frames, and this in them; a handle keeps the folder locked.
        self.handle = None
