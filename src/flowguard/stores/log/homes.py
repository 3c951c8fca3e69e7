"""Homes: where generations have their rows and records; here the one in memory."""

from typing import Protocol, final

from flowguard.stores.log.rows import LogRows, SortedRows


class LogHome(Protocol):
    """Rows of generations by number, and their records. All of it raises `StoreError`."""

    def load(self) -> dict[int, bytes]:
        """Every record; rows without one are what an unfinished `create` has left, and go."""

    def create(self, number: int) -> LogRows:
        """Make the rows of a generation; those that are there already where a record is missing."""

    def rows(self, number: int) -> LogRows:
        """The rows of a generation that has a record."""

    def drop(self, number: int) -> None:
        """Delete all rows of a generation; nothing where there are none."""

    def write(self, records: dict[int, bytes | None]) -> None:
        """Make records durable, all or none; None deletes one."""


@final
class MemoryHome:
    """Everything in memory; it survives whoever uses it."""

    def __init__(self) -> None:
        self.spaces: dict[int, SortedRows] = {}
        self._records: dict[int, bytes] = {}

    def load(self) -> dict[int, bytes]:
        for number in self.spaces.keys() - self._records.keys():
            del self.spaces[number]
        return dict(self._records)

    def create(self, number: int) -> LogRows:
        return self.spaces.setdefault(number, SortedRows())

    def rows(self, number: int) -> LogRows:
        return self.spaces[number]

    def drop(self, number: int) -> None:
        self.spaces.pop(number, None)

    def write(self, records: dict[int, bytes | None]) -> None:
        for number, record in records.items():
            if record is None:
                self._records.pop(number, None)
            else:
                self._records[number] = record
