"""The machine: cores and pinning, descriptor limit, memory of a process, its description."""

import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile

from simulations.calibration.process import cpu_model


@dataclass(frozen=True)
class Cores:
    broker: int
    generator: int


def choose_cores() -> Cores | None:
    """The first two cores we may use; None on a machine that has only one."""
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[0], usable[1]) if len(usable) > 1 else None


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Processes started inside inherit that core, from their first instruction on."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def children(pid: int) -> list[int]:
    """Processes that the first thread of a process has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident_kib(pid: int) -> int:
    """Resident memory of a process and its children now, in KiB, without socket buffers."""
    paths = [Path(f"/proc/{each}/smaps_rollup") for each in (pid, *children(pid))]
    return sum(_kib_line(path, "Rss:") for path in paths)


def peak_resident_kib(pid: int) -> int:
    """The most resident memory a process has had, in KiB."""
    return _kib_line(Path(f"/proc/{pid}/status"), "VmHWM:")


def _kib_line(path: Path, key: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    raise ValueError(f"no {key} in {path}")


def cpu_s(pid: int) -> float:
    """Processor time that a process has had, all its threads."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def sync_ms(count: int = 200) -> float:
    """Median time of `fdatasync` after 4 KiB were appended, in the folder for temporary files."""
    times_s = []
    with TemporaryFile(buffering=0) as file:
        for _ in range(count):
            file.write(b"x" * 4096)
            started_s = time.perf_counter()
            os.fdatasync(file)
            times_s.append(time.perf_counter() - started_s)
    return median(times_s) * 1e3


def describe() -> str:
    """One line: cores, CPU, memory, kernel, Python."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores of {cpu_model()}, {memory_gib:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    )


def commit() -> str:
    """Short id of the checkout, `+` when files differ from it; empty where there is no git."""
    git = ["git", "-C", str(Path(__file__).resolve().parent.parent)]
    try:
        head, changes = (
            subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout
            for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--", "src"))
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.strip() + ("+" if changes else "")
