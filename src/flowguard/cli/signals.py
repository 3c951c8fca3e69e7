"""Ctrl-C and SIGTERM for commands that end in order."""

import os
import signal
from collections.abc import Callable

import trio


async def on_signals(
    stop: Callable[[], None], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """The first signal calls `stop`, the second one ends the process; runs until cancelled."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        stopping = False
        async for number in signals:
            if stopping:
                os._exit(128 + number)  # At once: an exception would wait for every task's end.
            stopping = True
            stop()
