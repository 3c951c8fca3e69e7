"""Messages that several queues share: stored once, and deleted with the last reference.

The reference counts are in memory. After a start they are unknown, so nothing is deleted until all
entries were read once (`flowguard.stores.rocks.sweep`). Until then an entry counts only if it was
read or is newer (`Queue.marked_pos`).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, final

from flowguard.records import Append, Delivery, StoreOp
from flowguard.stores.messages import encode_message
from flowguard.stores.rocks.layouts.codec import (
    INLINE,
    UID_BYTES,
    encode_entry,
    encode_shared_entry,
    uid,
)
from flowguard.stores.rocks.layouts.queue import Draft, Queue

SHARED_BYTES_MIN: Final = 513
"""Minimum size of a payload that is stored once for several queues."""
SHARED_QUEUES_MIN: Final = 5
"""Minimum number of queues for which a smaller payload is stored once."""
NOBODY: Final[dict[int, bytes]] = {}


@final
class Payloads:
    """Numbers of the entries that refer to each shared message."""

    def __init__(self, *, is_complete: bool) -> None:
        self.references: dict[bytes, int] = {}
        self.is_complete = is_complete
        """True if all entries are counted, so that messages without a reference can be deleted."""

    def shared(self, ops: Sequence[StoreOp]) -> dict[int, bytes]:
        """Return the messages of this batch to be shared, by `id`; `entry` sets their place."""
        messages = [id(op.delivery.message) for op in ops if isinstance(op, Append)]
        if len(set(messages)) == len(messages):
            return NOBODY
        counts = Counter(messages)
        found: dict[int, bytes] = {}
        for op in ops:
            if isinstance(op, Append):
                message = op.delivery.message
                count = counts[id(message)]
                if count >= SHARED_QUEUES_MIN or (
                    count > 1 and len(message.payload) >= SHARED_BYTES_MIN
                ):
                    found[id(message)] = b""
        return found

    def entry(
        self,
        work: Draft,
        queue: Queue,
        pos: int,
        delivery: Delivery,
        size_bytes: int,
        shared: dict[int, bytes],
    ) -> bytes:
        """Return the entry of a message that may be shared now, or was shared before."""
        clock, place = work.clock, delivery.place
        if len(place) != UID_BYTES or not self._is_there(work, place):
            # A message that is inline in one entry stays inline in all of them.
            key = id(delivery.message)
            if place == INLINE or key not in shared:
                clock.hlc += 1
                delivery.place = INLINE
                return encode_entry(delivery, size_bytes, clock.hlc, clock.node)
            work.placed.append((delivery, place))
            place = shared[key] or self._store(work, delivery)
            delivery.place = shared[key] = place
        if pos <= queue.marked_pos:
            self.references[place] = self.references.get(place, 0) + 1
            work.referred.append(place)
        clock.hlc += 1
        return encode_shared_entry(delivery, size_bytes, clock.hlc, clock.node, place)

    def _is_there(self, work: Draft, place: bytes) -> bool:
        if place in self.references:
            return True
        return not self.is_complete and work.engine.payloads.get_readable(place) is not None

    def _store(self, work: Draft, delivery: Delivery) -> bytes:
        clock = work.clock
        clock.hlc += 1
        place = uid(clock.hlc, clock.node)
        value = encode_message(delivery.message)
        work.batch.put(place, value, work.engine.payloads.handle)
        return place

    def delete_forgotten(self, work: Draft) -> None:
        """Delete messages that this batch leaves without any reference."""
        if self.is_complete:
            for place, count in work.forgotten.items():
                if self.references.get(place, 0) <= count:
                    work.batch.delete(place, work.engine.payloads.handle)

    def take_back(self, work: Draft) -> None:
        """Undo the references of a batch that was not written."""
        for place in work.referred:
            self._drop(place)

    def forget(self, work: Draft) -> None:
        """Remove the references that a written batch has ended."""
        for place, count in work.forgotten.items():
            for _ in range(count):
                self._drop(place)

    def _drop(self, place: bytes) -> None:
        count = self.references.get(place, 0) - 1
        if count > 0:
            self.references[place] = count
        else:
            self.references.pop(place, None)
