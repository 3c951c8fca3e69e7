"""Resident memory of a broker on this machine: of its processes and their descendants."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import trio

from loadgen.kit.report import MemoryUse

EVERY_S: Final = 0.2
KIB_PER_MIB: Final = 1024
PROCESSES: Final = Path("/proc")


def resident_kib(pids: Sequence[int]) -> int:
    """Return the sum over these processes and their descendants; one that has ended counts 0."""
    open_pids, seen, sum_kib = list(pids), set[int](), 0
    while open_pids:
        pid = open_pids.pop()
        if pid in seen:
            continue
        seen.add(pid)
        folder = PROCESSES / str(pid)
        status = ""
        with suppress(OSError):  # The process has ended, or belongs to another user.
            status = (folder / "status").read_text()
            for task in (folder / "task").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):  # The thread has ended since.
                    open_pids += map(int, (task / "children").read_text().split())
        lines = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        sum_kib += sum(int(line.split()[1]) for line in lines)
    return sum_kib


@final
class MemoryWatch:
    """The memory that these processes hold, and its peak."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._before_kib = self._peak_kib = resident_kib(pids)

    async def run(self) -> None:
        """Sample until cancelled."""
        while self._pids:
            self._peak_kib = max(self._peak_kib, resident_kib(self._pids))
            await trio.sleep(EVERY_S)

    def use(self) -> MemoryUse | None:
        """Return the memory since the watch was made, or None if no process was found."""
        if not self._peak_kib:
            return None
        return MemoryUse(
            before_mib=round(self._before_kib / KIB_PER_MIB, 1),
            peak_mib=round(self._peak_kib / KIB_PER_MIB, 1),
        )
