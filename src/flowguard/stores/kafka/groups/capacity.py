"""GroupRoom: how much of all groups a broker may have here, in messages and in bytes.

Theory of operation. What is here and not settled is bounded for each group, and for all of them
together by two fair budgets: who has much reads on when others have given back, and who has little
still finds room. What is being read has its room before it comes. Who has nothing may always have
one message, so nobody waits for others who acknowledge nothing.
"""

from typing import Final, final

from flowguard.flow import FairBudget

HERE_MAX: Final = 2_000
HERE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Messages of one group."""
ALL_MAX: Final = 20_000
"""Messages of all groups of a broker."""
READ_COUNT: Final = 500
"""Messages that are read at a time."""


@final
class GroupRoom:
    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: of the messages of all groups."""
        self.messages = FairBudget(ALL_MAX)
        self.bytes = FairBudget(bytes_max)


@final
class GroupShare:
    """The share that one group has of it."""

    def __init__(self, room: GroupRoom) -> None:
        self._room = room
        self.count = 0
        """Messages that are here and not settled."""
        self.size_bytes = 0
        self._reading_count = 0
        self._reading_bytes = 0
        """Room for what is being read."""

    def reserve(self, expected_bytes: int, most: int = READ_COUNT) -> int:
        """How many messages may be read, of about so many bytes each, and `most` of them; 0: none
        now. `reserved` follows before what has come is added."""
        count, size_bytes, room = self.count, self.size_bytes, self._room
        most = _share(room.messages, min(most, HERE_MAX - count), count)
        most_bytes = _share(room.bytes, HERE_BYTES_MAX - size_bytes, size_bytes)
        most = max(min(most, most_bytes // expected_bytes), 0 if count else 1)
        self._reading_count, self._reading_bytes = most, most * expected_bytes
        self._hold(most, self._reading_bytes, count, size_bytes)
        return most

    def reserved(self) -> None:
        """It has come, or nothing has."""
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
    """As much of what is wanted as one who holds so much may have; it may be less than nothing."""
    if budget.used_bytes + wanted <= budget.common_bytes:
        return wanted
    common = budget.common_bytes - budget.used_bytes
    return min(wanted, max(common, budget.share_bytes(held) - held))
