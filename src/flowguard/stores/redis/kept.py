"""The last commits, as they were sent: for a server that comes back without their end."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from flowguard.config import MIB
from flowguard.records import StoreOp
from flowguard.stores.redis.changes import CommitCall, CommitChanges

KEPT_BYTES: Final = 8 * MIB
"""Maximum size of confirmed commits that are kept, from the memory that RocksDB would use."""


@dataclass(slots=True)
class Commit:
    """A commit as it is sent; until Redis has confirmed it nothing overtakes it."""

    ops: Sequence[StoreOp]
    number: int
    changes: CommitChanges
    calls: list[CommitCall]
    size_bytes: int


@final
class KeptCommits:
    """Commits that Redis has confirmed, as far back as KEPT_BYTES reach."""

    def __init__(self) -> None:
        self.marks: dict[bytes, int] = {}
        """Numbers of the last commits, by the keys that have them in Redis."""
        self._commits: deque[Commit] = deque()
        self._size_bytes = 0
        self._let_go: dict[bytes, int] = {}
        """Numbers of the last commits that are kept no more."""

    def keep(self, commit: Commit) -> None:
        """As much as fits."""
        self.marks |= {call.mark: commit.number for call in commit.calls}
        self._commits.append(commit)
        self._size_bytes += commit.size_bytes
        while self._size_bytes > KEPT_BYTES:
            oldest = self._commits.popleft()
            self._size_bytes -= oldest.size_bytes
            self._let_go |= {call.mark: oldest.number for call in oldest.calls}

    def reaches(self, mark: bytes, there: int) -> bool:
        """Whether all that came after commit `there` is kept."""
        return self._let_go.get(mark, 0) <= there

    def first_after(self, number: int) -> int:
        """The oldest commit that is kept; the next one, where none is."""
        return self._commits[0].number if self._commits else number + 1

    def after(self, there: Mapping[bytes, int]) -> Iterator[tuple[int, CommitCall]]:
        """Numbers of commits and the calls of them that are missing where Redis is at `there`."""
        for commit in self._commits:
            for call in commit.calls:
                if call.mark in there and there[call.mark] < commit.number:
                    yield commit.number, call
