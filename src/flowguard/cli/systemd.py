"""Notifications to systemd: the broker is ready, its state, and that its loop still runs.

The protocol is a datagram of lines to the socket in NOTIFY_SOCKET (sd_notify(3)). If WATCHDOG_USEC
requires signs of life and the broker gives none, systemd kills and restarts it
(sd_watchdog_enabled(3)). Until it is ready, it may ask repeatedly for more time.
"""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Final, final

import structlog
import trio

STATUS_S: Final = 10.0
"""Interval of status notifications if systemd requires no signs of life, seconds."""
EXTENSION_S: Final = 300.0
"""Time that a start may still take after each notification of a standby broker, and an end after
each of one that drains, seconds."""
EXTENSION: Final = f"EXTEND_TIMEOUT_USEC={round(EXTENSION_S * 1e6)}"

log = structlog.get_logger()


@final
class SystemdSocket:
    def __init__(self, path: str, interval_s: float) -> None:
        self._path = "\0" + path[1:] if path.startswith("@") else path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.interval_s = interval_s
        """Time between two signs of life, seconds."""

    def tell(self, *lines: str) -> None:
        """Send lines; only log a failure, because systemd acts on missing notifications."""
        try:
            self._socket.sendto("\n".join(lines).encode(), self._path)
        except OSError as error:
            log.warning("systemd notification failed", what=lines[0], why=error.strerror)

    def close(self) -> None:
        self._socket.close()


def systemd_socket(environ: Mapping[str, str], pid: int) -> SystemdSocket | None:
    """Return the socket that the environment of process `pid` names, or None."""
    path = environ.get("NOTIFY_SOCKET", "")
    if path[:1] not in ("/", "@"):
        return None
    asked_us = environ.get("WATCHDOG_USEC", "")
    is_for_us = environ.get("WATCHDOG_PID", str(pid)) == str(pid)
    watched = is_for_us and asked_us.isdecimal() and int(asked_us) > 0
    return SystemdSocket(path, int(asked_us) / 2e6 if watched else STATUS_S)


@final
class StandingBy:
    """Notifies systemd that this process waits until another broker ends.

    A start may only take TimeoutStartSec, but this wait lasts as long as the other broker runs.
    """

    def __init__(self, listener: SystemdSocket | None, clock: Callable[[], float]) -> None:
        """`listener`: systemd's socket or None; `clock`: seconds that never go back."""
        self._listener = listener
        self._clock = clock
        self._due_s = clock()

    def __call__(self, who: str, answers: bool = True) -> None:
        """Notify that it still waits; `who` names the other broker. May be called at any rate."""
        now_s = self._clock()
        if self._listener is None or now_s < self._due_s:
            return
        self._due_s = now_s + STATUS_S
        self._listener.tell(EXTENSION, f"STATUS=stands by: {who}")


async def tell_systemd(stop: trio.Event, sentence: Callable[[], str]) -> None:
    """Report to systemd, if it has started this process, until `stop` is set and later.

    `sentence` returns the state of the broker.
    """
    listener = systemd_socket(os.environ, os.getpid())
    if listener is None:
        return
    first = ["READY=1"]
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tell_of_the_end, stop, listener)
            while True:
                if stop.is_set():  # A drain may take longer than TimeoutStopSec.
                    first = [EXTENSION]
                listener.tell(*first, "WATCHDOG=1", f"STATUS={sentence()}")
                first = []
                await trio.sleep(listener.interval_s)
    finally:
        listener.close()


async def _tell_of_the_end(stop: trio.Event, listener: SystemdSocket) -> None:
    await stop.wait()
    listener.tell("STOPPING=1")
