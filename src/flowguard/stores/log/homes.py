"""The interface of the storage of generations, and an implementation in memory."""

from typing import Protocol, final

from flowguard.stores.log.rows import LogRows, SortedRows


class LogHome(Protocol):
    """Rows and records of generations, by number. All methods raise `StoreError`."""

    def load(self) -> dict[int, bytes]:
        """Return all records. Delete rows without a record, which an unfinished `create` left."""

    def create(self, number: int) -> LogRows:
        """Create the rows of a generation; return existing rows if only the record is missing."""

    def rows(self, number: int) -> LogRows:
        """Return the rows of a generation that has a record."""

    def drop(self, number: int) -> None:
        """Delete all rows of a generation, if there are any."""

    def write(self, records: dict[int, bytes | None]) -> None:
        """Make records durable, all or none. A value of None deletes a record."""


@final
class MemoryHome:
    """Rows and records in memory, which survive the log that uses them."""

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
