"""Ctrl-C, SIGTERM and a closed terminal, for commands that end in order."""

import os
import signal
from collections.abc import Callable

import trio


async def on_signals(
    stop: Callable[[], None], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """The first signal calls `stop`, the second one ends the process; runs until cancelled."""
    wanted = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup means what it says
        wanted.append(signal.SIGHUP)
    with trio.open_signal_receiver(*wanted) as signals:
        task_status.started()
        stopping = False
        async for number in signals:
            if stopping:
                os._exit(128 + number)  # At once: an exception would wait for every task's end.
            stopping = True
            stop()
