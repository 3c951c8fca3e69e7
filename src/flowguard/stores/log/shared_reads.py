"""Shared reads: sessions at the same place get one answer, which is read and decoded once."""

from collections.abc import Sequence
from typing import Final, final

from flowguard.stores.log.message_log import MessageLog
from flowguard.stores.log.replays import LogBatch, read_next

BATCHES_MAX: Final = 32
"""Maximum number of cached answers; each has the size of a page."""

_Asked = tuple[bytes, tuple[str, ...], int, int]


@final
class SharedReads:
    """The last answers of one log.

    An answer never expires: it has the place up to which it is complete, and the next read
    continues there.
    """

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self._batches: dict[_Asked, LogBatch] = {}

    def read(
        self, place: bytes, filters: Sequence[str], count_max: int, bytes_max: int
    ) -> LogBatch:
        """Read, as `read_next`, for a session with all subscriptions at `place`."""
        asked = place, tuple(filters), count_max, bytes_max
        batch = self._batches.pop(asked, None)
        if batch is None:
            batch = read_next(self._log, place, {}, filters, count_max, bytes_max)
            if len(self._batches) >= BATCHES_MAX:
                del self._batches[next(iter(self._batches))]
        self._batches[asked] = batch
        return batch
