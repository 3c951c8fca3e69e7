"""Merges two replicas of one queue (docs/explain/durability.md, "Merging").

An entry of both replicas stays. An entry of one replica stays if the other never received it; if it
did, it has settled the entry. The winner is the replica of the session that was connected later.
The winner's entries keep their positions, and so their packet identifiers. The loser's new entries
keep theirs if the winner has no new entries. Otherwise they are late: they follow at the end, in
their order, and are sent again with new identifiers. Only uids are compared.

Replicas are read in the order of positions, which is also that of uids unless a merge has moved
entries (`WindowQueue.unordered`). In that case, entries that both may have are sorted on disk.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

from flowguard.errors import CorruptionError
from flowguard.records import QOS_1_IDS
from flowguard.stores.rocks.database.engine import KEYS_END, RocksEngine
from flowguard.stores.rocks.identity import ReceivedUids
from flowguard.stores.rocks.layouts.codec import INLINE, entry_place, entry_size_bytes, entry_uid
from flowguard.stores.rocks.layouts.keys import SCRATCH_BY_POS, SCRATCH_BY_UID, pos_of, record_key
from flowguard.stores.rocks.layouts.queue import POS_ALL
from flowguard.stores.rocks.layouts.window import STRIDE_MAX, TRIM_SINGLY_MAX, WindowQueue
from flowguard.stores.rocks.layouts.window_record import WindowRecord, encode_record

ROWS: Final = 4_096
"""Number of rows of one scan; rows are read in long sequences."""
BATCH_ROWS: Final = 4_096
BATCH_BYTES: Final = 4 * 1024 * 1024
_WINNERS: Final = b"\0"
_LOSERS: Final = b"\1"


@final
class Output:
    """The new store, written in large batches."""

    def __init__(self, engine: RocksEngine) -> None:
        self.engine = engine
        self._batch = engine.batch()
        self._rows = 0

    def put(self, family: Any, key: bytes, value: bytes) -> None:
        self._batch.put(key, value, family)
        self._wrote()

    def delete(self, family: Any, key: bytes) -> None:
        self._batch.delete(key, family)
        self._wrote()

    def delete_range(self, family: Any, start: bytes, end: bytes) -> None:
        self._batch.delete_range(start, end, family)
        self._wrote()

    def _wrote(self) -> None:
        self._rows += 1
        if self._rows == BATCH_ROWS or (
            self._rows % 64 == 0 and self._batch.size_in_bytes() >= BATCH_BYTES
        ):
            self.flush()

    def flush(self) -> None:
        """Write the batch, so that it can be read."""
        if self._rows:
            self.engine.write(self._batch)
            self._batch = self.engine.batch()
            self._rows = 0


@dataclass(slots=True)
class MergeTally:
    """Numbers of entries by outcome."""

    both: int = 0
    new: int = 0
    """Number of entries of one replica that the other has not received."""
    late: int = 0
    """Number of new entries that got another position."""
    settled: int = 0
    """Number of entries that the replica without them had received."""
    done: int = 0
    """Number of released entries without a position; the client has the message."""

    def add(self, other: "MergeTally") -> None:
        self.both += other.both
        self.new += other.new
        self.late += other.late
        self.settled += other.settled
        self.done += other.done


@dataclass(slots=True)
class Replica:
    """One replica of a queue; `queue` is None if it has no such session."""

    engine: RocksEngine
    received: ReceivedUids
    queue: WindowQueue | None
    adopt: Callable[[bytes], None] | None
    """Called for each new entry, since its message may have to be copied; or None."""
    progress: Callable[[int], None]

    def rows(self, from_pos: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield unsettled entries in the order of positions."""
        queue = self.queue
        if queue is None:
            return
        start = queue.entry_key(max(from_pos, queue.lo + 1))
        end = queue.entry_key(queue.next_pos)
        while start < end and (rows := self.engine.queues.scan(start, end, ROWS)):
            self.progress(len(rows))
            for key, value in rows:
                pos = pos_of(key)
                if not queue.is_settled(pos):
                    yield pos, value
            start = rows[-1][0] + b"\0"

    @property
    def next_pos(self) -> int:
        return 1 if self.queue is None else self.queue.next_pos

    @property
    def sent_pos(self) -> int:
        return 0 if self.queue is None else self.queue.sent_pos


class Common(Protocol):
    """Finds the winner's entries that the loser also has."""

    def position(self, pos: int, uid: bytes) -> int:
        """Return the loser's position of the winner's entry at `pos`, or 0. `pos` must ascend."""

    def first_new(self) -> int:
        """Return the position below which the winner has received all entries of the loser."""


@final
class InOrder:
    """For replicas without moved entries; a common entry has the same position in both."""

    def __init__(self, winner: Replica, loser: Replica) -> None:
        self._received = winner.received
        self._rows = loser.rows()
        self._first_new = 0
        self._pos = 0
        self._uid = b""

    def position(self, pos: int, uid: bytes) -> int:
        while self._pos < pos:
            self._pos, value = next(self._rows, (POS_ALL, b""))
            self._uid = entry_uid(value)
            if not self._first_new and self._uid not in self._received:
                self._first_new = self._pos
        return pos if self._pos == pos and self._uid == uid else 0

    def first_new(self) -> int:
        return self._first_new or self._pos


@final
class Sorted:
    """For replicas with moved entries; finds pairs by sorting scratch rows in the new store."""

    def __init__(self, winner: Replica, loser: Replica, output: Output, qno: int) -> None:
        self._meta = output.engine.meta
        self._by_pos = SCRATCH_BY_POS + qno.to_bytes(8, "big")
        by_uid = SCRATCH_BY_UID + qno.to_bytes(8, "big")
        for replica, other, side in ((winner, loser, _WINNERS), (loser, winner, _LOSERS)):
            for pos, value in replica.rows():
                uid = entry_uid(value)
                if uid in other.received:
                    output.put(self._meta.handle, by_uid + uid + side, pos.to_bytes(8, "big"))
        output.flush()
        before = b""
        winners_pos = b""
        for key, pos_bytes in self._meta.rows(by_uid, by_uid + KEYS_END, ROWS):
            if key[-1:] == _WINNERS:
                before, winners_pos = key[:-1], pos_bytes
            elif key[:-1] == before:
                output.put(self._meta.handle, self._by_pos + winners_pos, pos_bytes)
        output.flush()
        self._pairs = self._meta.rows(self._by_pos, self._by_pos + KEYS_END, ROWS)
        self._pair = next(self._pairs, None)

    def position(self, pos: int, uid: bytes) -> int:
        key = self._by_pos + pos.to_bytes(8, "big")
        while self._pair is not None and self._pair[0] < key:
            self._pair = next(self._pairs, None)
        if self._pair is None or self._pair[0] != key:
            return 0
        return int.from_bytes(self._pair[1], "big")

    def first_new(self) -> int:
        return 0


@final
class QueueMerge:
    """A queue that is being merged, with the number `qno` in the new store.

    `in_place`: the new store already has the winner's rows; else it has none.
    """

    def __init__(
        self, output: Output, winner: Replica, loser: Replica, qno: int, *, in_place: bool
    ) -> None:
        self._output = output
        self._queues = output.engine.queues
        self._winner = winner
        self._loser = loser
        self._in_place = in_place
        self._key = WindowQueue(qno).entry_key
        self._qno = qno
        self._sent_pos = winner.sent_pos
        self._last = 0
        self._gaps: list[tuple[int, int]] = []
        self._lowest = 0
        self._size_bytes = 0
        self._released: dict[int, int] = {}
        self._homeless: list[tuple[int, int, bytes]] = []
        """Released entries without a position: former position, packet identifier, entry."""
        self._unordered = any(
            each.queue is not None and each.queue.unordered for each in (winner, loser)
        )
        self.count = 0
        self.tally = MergeTally()

    def run(self) -> None:
        first_new = self._merge_winners()
        next_pos = self._merge_losers(first_new)
        self._skip_to(next_pos)
        self._limit_sent()
        for pos, packet_id, value in self._homeless:
            self._settle_or_place(pos, packet_id, value, next_pos)
        value = encode_record(self._record(next_pos))
        self._output.put(self._queues.handle, record_key(self._qno), value)

    def _record(self, next_pos: int) -> WindowRecord:
        runs = tuple(self._gaps)
        lo = 0
        if not self.count:
            lo, runs = next_pos - 1, ()
        elif runs and runs[0][0] == 1:
            lo, runs = runs[0][1], runs[1:]
        record = WindowRecord(next_pos, self._sent_pos, True, lo, lo, self.count, self._size_bytes)
        record.runs, record.released = runs, self._released
        record.unordered = self._unordered and self.count > 0
        return record

    def _merge_winners(self) -> int:
        """Merge the winner's entries. Return the position of the loser's first new entry."""
        winner, loser, tally = self._winner, self._loser, self.tally
        common: Common
        if self._unordered:
            common = Sorted(winner, loser, self._output, self._qno)
        else:
            common = InOrder(winner, loser)
        assert winner.queue is not None
        winners = winner.queue.released
        losers = loser.queue.released if loser.queue is not None else {}
        received, losers_sent_pos = loser.received, loser.sent_pos
        for pos, value in winner.rows():
            packet_id = winners.get(pos)
            uid = entry_uid(value)
            if uid in received:
                other_pos = common.position(pos, uid)
                if not other_pos:
                    tally.settled += 1
                    continue
                tally.both += 1
                if packet_id is None and other_pos in losers:
                    packet_id = losers[other_pos]
                    if other_pos != pos:
                        self._homeless.append((other_pos, packet_id, value))
                        continue
                if other_pos == pos and self._sent_pos < pos <= losers_sent_pos:
                    self._sent_pos = pos
            else:
                tally.new += 1
                if winner.adopt is not None:
                    winner.adopt(value)
            self._keep(pos, value, packet_id, is_there=self._in_place)
        return common.first_new()

    def _merge_losers(self, first_new: int) -> int:
        """Merge the loser's new entries. Return the first free position."""
        winner, loser, tally = self._winner, self._loser, self.tally
        next_pos = max(winner.next_pos, loser.next_pos)
        stays = tally.new == 0
        released = loser.queue.released if loser.queue is not None else {}
        for pos, value in loser.rows(first_new):
            if entry_uid(value) in winner.received:
                continue
            tally.new += 1
            if loser.adopt is not None:
                loser.adopt(value)
            packet_id = released.get(pos)
            stays = stays and pos >= winner.next_pos
            if stays:
                if pos <= loser.sent_pos:
                    self._sent_pos = pos
                self._keep(pos, value, packet_id)
            elif packet_id is not None:
                self._homeless.append((pos, packet_id, value))
            else:
                tally.late += 1
                self._unordered = True
                self._keep(next_pos, value, None)
                next_pos += 1
        return next_pos

    def _keep(self, pos: int, value: bytes, packet_id: int | None, is_there: bool = False) -> None:
        """Keep an entry at `pos`, which is above all previous ones."""
        if pos != self._last + 1:
            self._skip_to(pos)
        self._last = pos
        self._lowest = self._lowest or pos
        self._count(pos, value, packet_id)
        if not is_there:
            self._output.put(self._queues.handle, self._key(pos), value)

    def _count(self, pos: int, value: bytes, packet_id: int | None) -> None:
        self.count += 1
        if packet_id is None:
            self._size_bytes += entry_size_bytes(value)
        else:
            self._released[pos] = packet_id

    def _skip_to(self, pos: int) -> None:
        """Leave the positions between the last entry and `pos` unused, and delete their rows."""
        first, end = self._last + 1, pos
        if first == end:
            return
        self._gaps.append((first, end - 1))
        if not self._in_place:
            return
        assert self._winner.queue is not None
        first, end = max(first, self._winner.queue.trimmed + 1), min(end, self._winner.next_pos)
        if end - first < TRIM_SINGLY_MAX:
            for each in range(first, end):
                self._output.delete(self._queues.handle, self._key(each))
        else:
            self._output.delete_range(self._queues.handle, self._key(first), self._key(end))

    def _limit_sent(self) -> None:
        """Limit the sent position, so that no two in-flight entries share a packet identifier."""
        if self.count:
            limit = self._lowest + QOS_1_IDS - 1
            self._sent_pos = max(min(self._sent_pos, limit), *self._released, 0)

    def _settle_or_place(self, pos: int, packet_id: int, value: bytes, next_pos: int) -> None:
        """Settle a released entry, or give it a position: the client has the message, and waits for
        PUBREL.

        If another entry has the position now, it also has the packet identifier. Then its exchange
        ends the client's state of the released message."""
        self._output.flush()
        near = self._sent_pos - QOS_1_IDS < pos <= self._sent_pos + STRIDE_MAX and pos < next_pos
        if not near or self._queues.get(self._key(pos)) is not None:
            self.tally.done += 1
            return
        self._unordered = True
        self._sent_pos = max(self._sent_pos, pos)
        self._gaps = list(_without(self._gaps, pos))
        self._count(pos, value, packet_id)
        self._output.put(self._queues.handle, self._key(pos), value)


def _without(gaps: list[tuple[int, int]], pos: int) -> Iterator[tuple[int, int]]:
    for first, last in gaps:
        if not first <= pos <= last:
            yield first, last
            continue
        if first < pos:
            yield first, pos - 1
        if pos < last:
            yield pos + 1, last


def copier(output: Output, source: RocksEngine, received: ReceivedUids) -> Callable[[bytes], None]:
    """Return a function for `Replica.adopt`, which copies messages that the new store's base may
    have deleted.

    A new entry may have an old message, which was accepted once and is appended again."""
    payloads = output.engine.payloads
    last = INLINE

    def adopt(value: bytes) -> None:
        nonlocal last
        place = entry_place(value)
        if place == last or place is INLINE or place not in received:
            return
        last = place
        if payloads.get(place) is None:
            message = source.payloads.get(place)
            if message is None:
                raise CorruptionError(f"the message {place.hex()} of an entry is not there")
            output.put(payloads.handle, place, message)

    return adopt
