"""Threads that work beside the loop leave it the processor when both want to run.

This needs Linux, which gives each thread its own priority. Raising a priority again needs a
privilege, so these functions are for threads that do such work for their whole life.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

NICE: Final = 10
"""Niceness that is added to the process's own; such a thread gets a tenth of a contended core."""
NICE_MAX: Final = 19
"""The highest niceness of Linux."""
THREADS: Final = Path("/proc/self/task")

log = structlog.get_logger()


def lowered() -> int:
    """Return the niceness of a thread that has given way to this process's first thread."""
    return min(NICE_MAX, os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICE)


def give_way(thread: int) -> None:
    """Lower the priority of a thread, by its id in the system. Raises `OSError`."""
    nice = max(lowered(), os.getpriority(os.PRIO_PROCESS, thread))
    os.setpriority(os.PRIO_PROCESS, thread, nice)


def take_what_is_left(thread: int) -> None:
    """Let a thread run only when a core is idle; on systems without such threads it gives way.

    Raises `OSError`.
    """
    try:
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        give_way(thread)


def named_give_way(beginning: str) -> None:
    """Lower the priority of this process's threads whose names have this beginning.

    The log has the reason if that fails.
    """
    try:
        named = threads_named(beginning)
        for thread in named:
            with suppress(ProcessLookupError):  # The thread has ended since.
                give_way(thread)
    except OSError as error:
        why = str(error)
    else:
        why = "" if named else "no thread has such a name"
    if why:
        log.info("thread priority unchanged", named=beginning, why=why)


def threads_named(beginning: str) -> list[int]:
    """Return the ids of this process's threads with such names. Raises `OSError`."""
    named = []
    for thread in THREADS.iterdir():
        try:
            name = (thread / "comm").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # The thread has ended since.
        if name.startswith(beginning):
            named.append(int(thread.name))
    return named
