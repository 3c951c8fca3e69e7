"""GroupRoom: the limits on messages and bytes of all groups in a broker's memory.

Theory of operation. The unsettled messages in memory are bounded for each group, and for all groups
together by two fair budgets. A group that uses much reads on when others have freed capacity; one
that uses little still gets some. Capacity is reserved before a read. A group without messages may
always read one, so that no group waits for others whose subscribers acknowledge nothing.
"""

from typing import Final, final

from flowguard.flow import FairBudget

HERE_MAX: Final = 2_000
HERE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum size of the unsettled messages of one group; `HERE_MAX` bounds their number."""
ALL_MAX: Final = 20_000
"""Maximum number of unsettled messages of all groups of a broker."""
READ_COUNT: Final = 500
"""Maximum number of messages per read."""


@final
class GroupRoom:
    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` bounds the size of the messages of all groups."""
        self.messages = FairBudget(ALL_MAX)
        self.bytes = FairBudget(bytes_max)


@final
class GroupShare:
    """The share of one group in a `GroupRoom`."""

    def __init__(self, room: GroupRoom) -> None:
        self._room = room
        self.count = 0
        """Number of unsettled messages in memory."""
        self.size_bytes = 0
        self._reading_count = 0
        self._reading_bytes = 0
        """Capacity that is reserved for the present read, in bytes."""

    def reserve(self, expected_bytes: int, most: int = READ_COUNT) -> int:
        """Reserve capacity for a read. Return the number of messages that may be read now, at most
        `most`, if each has about `expected_bytes`. Call `reserved` before `add`."""
        count, size_bytes, room = self.count, self.size_bytes, self._room
        most = _share(room.messages, min(most, HERE_MAX - count), count)
        most_bytes = _share(room.bytes, HERE_BYTES_MAX - size_bytes, size_bytes)
        most = max(min(most, most_bytes // expected_bytes), 0 if count else 1)
        self._reading_count, self._reading_bytes = most, most * expected_bytes
        self._hold(most, self._reading_bytes, count, size_bytes)
        return most

    def reserved(self) -> None:
        """End the reservation, after the read."""
        count, size_bytes = self._reading_count, self._reading_bytes
        self._reading_count = self._reading_bytes = 0
        self._give_back(count, size_bytes)

    def add(self, size_bytes: int) -> None:
        self._hold(1, size_bytes, self._all_count, self._all_bytes)
        self.count += 1
        self.size_bytes += size_bytes

    def remove(self, size_bytes: int) -> None:
        self.count -= 1
        self.size_bytes -= size_bytes
        self._give_back(1, size_bytes)

    @property
    def _all_count(self) -> int:
        return self.count + self._reading_count

    @property
    def _all_bytes(self) -> int:
        return self.size_bytes + self._reading_bytes

    def _hold(self, count: int, size_bytes: int, count_before: int, bytes_before: int) -> None:
        self._room.messages.hold(count, count_before)
        self._room.bytes.hold(size_bytes, bytes_before)

    def _give_back(self, count: int, size_bytes: int) -> None:
        self._room.messages.give_back(count, self._all_count)
        self._room.bytes.give_back(size_bytes, self._all_bytes)


def _share(budget: FairBudget, wanted: int, held: int) -> int:
    """Return the part of `wanted` that a holder of `held` may get; it may be negative."""
    if budget.used_bytes + wanted <= budget.common_bytes:
        return wanted
    common = budget.common_bytes - budget.used_bytes
    return min(wanted, max(common, budget.share_bytes(held) - held))
