"""Faults that a worker survives; each lasts until the end of its block."""

import ctypes
import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from resource import RLIMIT_FSIZE, RLIMIT_NOFILE, prlimit
from socket import AF_UNIX, SHUT_RDWR, SO_ACCEPTCONN, SOL_SOCKET, socket
from typing import Final

from flowguard.app.workers.seat import LINKS

PIDFD_GETFD: Final = 438
"""Number of the system call pidfd_getfd(2), which os does not have."""
DESCRIPTORS: Final = 3
"""A limit below each descriptor that a worker opens."""
LIBC: Final = ctypes.CDLL(None, use_errno=True)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def cut_off(pid: int) -> Iterator[None]:
    """Close all links of the worker once."""
    for link in links_of(pid):
        link.shutdown(SHUT_RDWR)
        link.close()
    yield


@contextmanager
def with_full_disk(pid: int) -> Iterator[None]:
    """Let no file grow by a byte, as a disk quota does."""
    with limited(pid, RLIMIT_FSIZE, 0):
        yield


@contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    with limited(pid, RLIMIT_NOFILE, DESCRIPTORS):
        yield


FAULTS: Final[dict[str, Callable[[int], AbstractContextManager[None]]]] = {
    "SIGSTOP": stopped,
    "links cut": cut_off,
    "full disk": with_full_disk,
    "no descriptors": without_descriptors,
}


@contextmanager
def limited(pid: int, limit: int, value: int) -> Iterator[None]:
    before = prlimit(pid, limit)
    prlimit(pid, limit, (value, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            prlimit(pid, limit, before)


def links_of(pid: int) -> list[socket]:
    """Return copies of the links that a process has to and from other workers."""
    process = os.pidfd_open(pid)
    try:
        copies = [copy_of(process, int(name)) for name in os.listdir(f"/proc/{pid}/fd")]
    finally:
        os.close(process)
    links = []
    for fd in copies:
        if fd is not None and stat.S_ISSOCK(os.fstat(fd).st_mode):
            sock = socket(fileno=fd)
            if is_link(sock):
                links.append(sock)
            else:
                sock.close()
        elif fd is not None:
            os.close(fd)
    return links


def copy_of(process: int, fd: int) -> int | None:
    """Return a copy of a descriptor of another process, or None if it is closed."""
    copy = int(LIBC.syscall(PIDFD_GETFD, process, fd, 0))
    if copy < 0:
        number = ctypes.get_errno()
        if number != errno.EBADF:
            raise OSError(number, os.strerror(number))
        return None
    return copy


def is_link(sock: socket) -> bool:
    if sock.family != AF_UNIX or sock.getsockopt(SOL_SOCKET, SO_ACCEPTCONN):
        return False
    try:
        names = (sock.getsockname(), sock.getpeername())
    except OSError:  # The other worker has ended.
        return False
    return any(isinstance(name, str) and name.endswith(f".{LINKS}") for name in names)
