"""The last commits, as they were sent, in case a server restarts without some of them."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from flowguard.config import MIB
from flowguard.records import StoreOp
from flowguard.stores.redis.changes import CommitCall, CommitChanges

KEPT_BYTES: Final = 8 * MIB
"""Maximum size of the confirmed commits in memory, taken from the unused budget of RocksDB."""


@dataclass(slots=True)
class Commit:
    """A commit as it is sent. The next one is not sent before Redis has confirmed it."""

    ops: Sequence[StoreOp]
    number: int
    changes: CommitChanges
    calls: list[CommitCall]
    size_bytes: int


@final
class KeptCommits:
    """The last commits that Redis has confirmed, at most KEPT_BYTES."""

    def __init__(self) -> None:
        self.marks: dict[bytes, int] = {}
        """Numbers of the last commits, by the keys that store them in Redis."""
        self._commits: deque[Commit] = deque()
        self._size_bytes = 0
        self._let_go: dict[bytes, int] = {}
        """Numbers of the last commits that were removed, by the same keys."""

    def keep(self, commit: Commit) -> None:
        """Keep a commit, and remove the oldest ones above KEPT_BYTES."""
        self.marks |= {call.mark: commit.number for call in commit.calls}
        self._commits.append(commit)
        self._size_bytes += commit.size_bytes
        while self._size_bytes > KEPT_BYTES:
            oldest = self._commits.popleft()
            self._size_bytes -= oldest.size_bytes
            self._let_go |= {call.mark: oldest.number for call in oldest.calls}

    def reaches(self, mark: bytes, there: int) -> bool:
        """Return True if all commits after `there` are kept."""
        return self._let_go.get(mark, 0) <= there

    def first_after(self, number: int) -> int:
        """Return the number of the oldest kept commit, or `number + 1` if there is none."""
        return self._commits[0].number if self._commits else number + 1

    def after(self, there: Mapping[bytes, int]) -> Iterator[tuple[int, CommitCall]]:
        """Yield numbers and calls of the commits that Redis lacks if it is at `there`."""
        for commit in self._commits:
            for call in commit.calls:
                if call.mark in there and there[call.mark] < commit.number:
                    yield commit.number, call
