"""Unix sockets between the workers of one machine.

Only the user of the broker may open the files of these sockets. The path of a data directory may be
longer than the kernel takes for a socket, so it is named by a descriptor of its folder.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from select import EPOLLIN
from socket import AF_UNIX, SOCK_NONBLOCK, SOCK_STREAM, socket
from typing import Final, final

import structlog

from flowguard.broker.sockets.other_sockets import OtherSockets

BACKLOG: Final = 256

log = structlog.get_logger()


@final
class WorkerListener:
    """A listening socket in the loop; without a descriptor or a watch it rests until a tick."""

    def __init__(self, sock: socket, others: OtherSockets, take: Callable[[socket], None]) -> None:
        """`take` gets each connection, or raises OSError. Raises OSError."""
        self._sock = sock
        self._others = others
        self._take = take
        self._has_failed = False
        """True after a failure, until a connection is accepted: it is logged once."""
        others.watch(self._sock.fileno(), EPOLLIN, self._accept)

    def tick(self) -> None:
        """Accept again."""
        try:
            self._others.rewatch(self._sock.fileno(), EPOLLIN)
        except OSError as error:  # The kernel has no memory for a watch.
            self._fail(error)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except BlockingIOError:
            return
        except OSError as error:  # There are no descriptors.
            self._fail(error)
            return
        sock.setblocking(False)
        try:
            self._take(sock)
        except OSError as error:  # The kernel has no memory for another watch.
            sock.close()
            self._fail(error)
        else:
            self._has_failed = False

    def _fail(self, error: OSError) -> None:
        self._others.rewatch(self._sock.fileno(), 0)
        if not self._has_failed:
            self._has_failed = True
            log.warning("worker connection not accepted", why=error.strerror)


def listen_unix(path: Path) -> socket:
    """Return a listening socket; a file that an ended process has left is replaced.

    Raises OSError.
    """
    path.unlink(missing_ok=True)
    sock = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK)
    try:
        with _short(path) as name:
            sock.bind(name)
        path.chmod(0o600)  # Nothing connects before `listen`.
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def connect_unix(path: Path) -> socket | None:
    """Return a connected socket, or None if there is no listener now."""
    sock = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK)
    try:
        with _short(path) as name:
            sock.connect(name)
    except OSError:
        sock.close()
        return None
    return sock


@contextmanager
def _short(path: Path) -> Iterator[str]:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
