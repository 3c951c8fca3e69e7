"""Ctrl-C and SIGTERM for commands that end in order."""

import signal
from collections.abc import Callable

import trio


async def on_signals(stop: Callable[[], None]) -> None:
    """The first signal calls `stop`, the second one ends the process; runs until cancelled."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        stopping = False
        async for number in signals:
            if stopping:
                raise SystemExit(128 + number)
            stopping = True
            stop()
