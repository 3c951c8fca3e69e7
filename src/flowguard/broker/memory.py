"""The memory of the process: its limit, its use, and giving back what is free."""

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog
import trio

from flowguard.bounds import PROCESS_BYTES, Bounds
from flowguard.config import Settings
from flowguard.errors import UnreadyError
from flowguard.node.node import Node
from flowguard.node.upkeep.holdings import held_bytes

MEMORY_SHARE: Final = 0.75
"""Share of the memory of the machine or container; the rest is for the kernel's sockets."""
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
CGROUP_OF_PROCESS: Final = Path("/proc/self/cgroup")
CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
# The first two are not final, because tests use shorter times.
TRIM_S = 10.0
"""Pause between two looks at the memory that the allocator keeps, seconds."""
LOOK_S = 1.0
"""The last part of that pause, in which the load of the loop is measured, seconds."""
IDLE_SHARE: Final = 0.75
"""Share of that time in which the loop must have waited for events, because returning memory delays
the loop."""
BUSY_MAX: Final = 60
"""Number of looks at a busy loop after which memory is returned anyway."""
TRIM_S_MAX: Final = 640.0
"""Longest pause between attempts, reached if repeated attempts return nothing."""
TRIM_BYTES: Final = 32 * 1024 * 1024
"""Minimum of resident memory beyond what is counted; less is not worth the time."""
TRIM_GAIN: Final = 8
"""If less than one in `TRIM_GAIN` bytes of it is returned, the pause gets longer."""
CALM: Final = 1.0
"""Pressure below which memory is returned to the system; above it a node has other work."""
FEW: Final = 16
"""Connections whose buffers explain no resident memory above the limit."""

log = structlog.get_logger()


def memory_limit_bytes() -> int:
    """The memory limit of the process: a share of physical memory or of the container's limit."""
    return int(MEMORY_SHARE * available_bytes())


def available_bytes() -> int:
    """Return the memory of the machine, or the least limit of the groups of this process, bytes."""
    limit = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    for path in _limits_of_groups():
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limit = min(limit, int(text))
    return limit


def _limits_of_groups() -> Iterator[Path]:
    """Yield the files with the limits of this process's control groups and of those above them.

    They are of version 2, or of the memory controller of version 1.
    """
    try:
        lines = CGROUP_OF_PROCESS.read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root, name = CGROUP_ROOT, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = CGROUP_ROOT / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = root / group.lstrip("/")
        yield from (each / name for each in (folder, *folder.parents))


def require_memory(bounds: Bounds, process_bytes: int = PROCESS_BYTES) -> None:
    """Raise `UnreadyError` if the process at rest already takes more than the limit allows.

    `process_bytes`: memory of the process without its store and clients.
    """
    if (why := bounds.shortfall(process_bytes)) is not None:
        raise UnreadyError(why)


def missing_memory(asked_bytes: int | None) -> list[str]:
    """Return a sentence if the configured limit is more than the memory that there is."""
    has_bytes = available_bytes()
    if asked_bytes is None or asked_bytes <= has_bytes:
        return []
    return [
        f"flow.memory_max_bytes allows {asked_bytes:,} bytes, but the system ends the broker at "
        f"{has_bytes:,}, all that the machine or its container has: lower it to "
        f"{int(MEMORY_SHARE * has_bytes):,}"
    ]


def bounds_of(settings: Settings) -> Bounds:
    """Return every bound of a broker on this machine; raises ConfigError if they do not fit."""
    return Bounds.of(settings, settings.flow.memory_max_bytes or memory_limit_bytes())


@contextmanager
def memory_gauge() -> Iterator[Callable[[], int]]:
    """Yield a gauge of the resident set, bytes. The file stays open, as descriptors may run out."""
    with Path("/proc/self/statm").open("rb", buffering=0) as statm:
        yield lambda: int(os.pread(statm.fileno(), 128, 0).split()[1]) * PAGE_BYTES


def allocator_trim() -> Callable[[int], int] | None:
    """Return glibc's `malloc_trim`, or None if this C library has none."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return trim


async def give_back_memory(node: Node, idle_s: Callable[[], float]) -> None:
    """Return memory that the allocator keeps to the system while the node is calm, until cancelled.

    `idle_s`: total time in which the loop has waited for events.

    A trim runs in a thread and may take tens of milliseconds. Meanwhile allocations of large blocks
    wait, such as those of OpenSSL. So it waits for a second in which the loop has little to do.

    Above the memory limit it does not wait, because resident memory causes the pressure then. If
    the node holds little, the garbage collector runs first, because it is quick then. The collector
    does not run by itself while nothing is allocated.
    """
    trim = allocator_trim()
    if trim is None:
        return
    wait_s, busy_count = TRIM_S, 0
    with memory_gauge() as resident_bytes:
        while True:
            await trio.sleep(wait_s - LOOK_S)
            idle_before_s = idle_s()
            await trio.sleep(LOOK_S)
            is_busy = idle_s() - idle_before_s < IDLE_SHARE * LOOK_S
            before_bytes = resident_bytes()
            spare_bytes = before_bytes - held_bytes(node)
            is_over = before_bytes > node.bounds.memory_bytes
            is_calm = node.guard.grant.pressure.value <= CALM
            if spare_bytes < TRIM_BYTES or not (is_calm or is_over):
                wait_s, busy_count = TRIM_S, 0
                continue
            if is_busy and not is_over and busy_count < BUSY_MAX:
                wait_s, busy_count = LOOK_S, busy_count + 1
                continue
            if is_over and spare_bytes > held_bytes(node):
                gc.collect()
            await trio.to_thread.run_sync(trim, 0)
            after_bytes = resident_bytes()
            _see_what_stays(node, after_bytes)
            worth_it = (before_bytes - after_bytes) * TRIM_GAIN >= spare_bytes
            wait_s = TRIM_S if worth_it or is_over else min(2 * wait_s, TRIM_S_MAX)
            busy_count = 0


def _see_what_stays(node: Node, resident_bytes: int) -> None:
    """Keep memory that remains after all clients have left from rejecting new clients."""
    guard, limit_bytes = node.guard, node.bounds.memory_bytes
    stuck_bytes = max(0, resident_bytes - limit_bytes)
    if node.connections_count > FEW:
        stuck_bytes = min(stuck_bytes, guard.stuck_bytes)
    if stuck_bytes > guard.stuck_bytes + TRIM_BYTES:
        log.warning(
            "resident memory stays above the limit without clients",
            resident_bytes=resident_bytes,
            limit_bytes=limit_bytes,
        )
    guard.stuck_bytes = stuck_bytes
