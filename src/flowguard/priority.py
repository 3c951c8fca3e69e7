"""Threads that work beside the loop leave a processor to it that both want.

On Linux, where a thread has a priority of its own. Nobody can take it back without a privilege:
it is for threads that do such work all their life.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

NICE: Final = 10
"""How much less of a processor a thread gets that the loop wants, too: a tenth."""
THREADS: Final = Path("/proc/self/task")

log = structlog.get_logger()


def give_way(thread: int) -> None:
    """Lower the priority of a thread, by its id in the system. Raises `OSError`."""
    nice = max(NICE, os.getpriority(os.PRIO_PROCESS, thread))
    os.setpriority(os.PRIO_PROCESS, thread, nice)


def take_what_is_left(thread: int) -> None:
    """Let a thread run only where a processor has nothing else to do; where the system does not
    know such threads, it gives way. Raises `OSError`."""
    try:
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        give_way(thread)


def named_give_way(beginning: str) -> None:
    """Lower the priority of this process's threads whose names begin so; where that cannot be,
    the log says why."""
    try:
        named = threads_named(beginning)
        for thread in named:
            with suppress(ProcessLookupError):  # It has ended since.
                give_way(thread)
    except OSError as error:
        why = str(error)
    else:
        why = "" if named else "none has such a name"
    if why:
        log.info("threads keep their priority", named=beginning, why=why)


def threads_named(beginning: str) -> list[int]:
    """The ids of this process's threads whose names begin so. Raises `OSError`."""
    named = []
    for thread in THREADS.iterdir():
        try:
            name = (thread / "comm").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has ended since.
        if name.startswith(beginning):
            named.append(int(thread.name))
    return named
