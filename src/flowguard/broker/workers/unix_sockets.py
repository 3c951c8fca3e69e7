"""Unix sockets between the workers of one machine.

Only the user of the broker may open the files of these sockets. The path of a data directory may be
longer than the kernel takes for a socket, so it is named by a descriptor of its folder.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import AF_UNIX, SOCK_NONBLOCK, SOCK_STREAM, socket
from typing import Final

BACKLOG: Final = 256


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
