"""Ctrl-C, SIGTERM and a closed terminal, for commands that end in order."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog
import trio

_pending: Final[set[int]] = set()
"""Signals that came during the start, for `on_signals`."""
log = structlog.get_logger()


@contextmanager
def start_signals() -> Iterator[None]:
    """While a command starts, SIGTERM and Ctrl-C end it, and SIGHUP waits for `on_signals`.

    If its terminal is closed, the command also ends. After the block every signal waits for
    `on_signals`.
    """
    had_terminal = _has_terminal()

    def obey(number: int, frame: object) -> None:
        closed = had_terminal and not _has_terminal()
        if number != signal.SIGHUP or closed:
            log.info("stopping during the start")
            raise SystemExit
        log.info("SIGHUP deferred until the start is complete")
        _pending.add(number)

    wanted = _wanted()
    for number in wanted:
        signal.signal(number, obey)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, wanted)
    yield
    for number in wanted:
        signal.signal(number, _keep)


def _keep(number: int, frame: object) -> None:
    """Keep a signal for `on_signals`; the second one ends the process, as it does later."""
    if number in _pending and number != signal.SIGHUP:
        os._exit(128 + number)
    _pending.add(number)


def _wanted() -> list[signal.Signals]:
    wanted = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores SIGHUP.
        wanted.append(signal.SIGHUP)
    return wanted


async def on_signals(
    stop: Callable[[], None],
    on_hang_up: Callable[[], None] | None = None,
    *,
    is_worker: bool = False,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call `stop` on the first signal, end the process on the second; runs until cancelled.

    A worker ignores the second one, because systemd and the supervisor send one each. SIGHUP calls
    `on_hang_up` instead, if it is set and no terminal was closed.
    """
    had_terminal = _has_terminal()
    with trio.open_signal_receiver(*_wanted()) as signals:
        while _pending:
            signal.raise_signal(_pending.pop())
        task_status.started()
        stopping = False
        async for number in signals:
            if on_hang_up is not None:  # Only a server has a log; other commands have a screen.
                log.info("signal received", signal=signal.Signals(number).name)
            closed = had_terminal and not _has_terminal()
            if number == signal.SIGHUP and on_hang_up is not None and not closed:
                on_hang_up()
                continue
            if stopping and is_worker:
                continue
            if stopping:
                os._exit(128 + number)  # At once: an exception would wait for every task.
            stopping = True
            stop()


def _has_terminal() -> bool:
    """Return True if this process writes to a terminal, or reads from one.

    A closed terminal does not count, although its descriptor may still be open.
    """
    return os.isatty(0) or os.isatty(2)
