"""The data directory of several workers.

supervisor.lock     held by the supervisor while it runs
workers             number of workers that share the sessions
incarnation         the highest number that a process of a worker has had
node                the id of this node in its cluster
worker-K/           the store of worker K
worker-K.handover   socket for connections from other workers; likewise .links and .http
"""

import fcntl
import os
import secrets
import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from flowguard.errors import ConfigError
from flowguard.stores.durable_files import replace_durably

LOCK_FILE: Final = "supervisor.lock"
COUNT_FILE: Final = "workers"
NODE_FILE: Final = "node"
INCARNATION_FILE: Final = "incarnation"
SINGLE_STORE_FILE: Final = "CURRENT"
"""A file of the store that a single worker has in the data directory itself."""


def lock(data: Path) -> int:
    """Return the descriptor of a lock that ends with this process.

    Raises ConfigError if another supervisor has it, and OSError.
    """
    data.mkdir(parents=True, exist_ok=True)
    fd = os.open(data / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise ConfigError(
            f"{data} (--data) is in use by another flowguard with several workers"
        ) from error
    return fd


def check_single(data: Path) -> None:
    """Raise ConfigError if the data directory has the sessions of several workers."""
    count = stored_count(data)
    if count is not None:
        raise ConfigError(_other_count(data, count, 1))


def take(data: Path, count: int) -> None:
    """Note that the sessions are shared between `count` workers.

    Raises ConfigError if they are shared otherwise, and OSError.
    """
    if (data / SINGLE_STORE_FILE).exists():
        raise ConfigError(_other_count(data, 1, count))
    before = stored_count(data)
    if before is None:
        replace_durably(data / COUNT_FILE, str(count))
    elif before != count:
        raise ConfigError(_other_count(data, before, count))


def _other_count(data: Path, before: int, wanted: int) -> str:
    workers = "1 worker" if before == 1 else f"{before} workers"
    move = shlex.join(("store", "workers", str(data), str(wanted), "--out", f"{data}-{wanted}"))
    return (
        f"{data} (--data) has the sessions of {workers}: start with --workers {before}, or make a "
        f"directory for {wanted}: flowguard {move}"
    )


def stored_count(data: Path) -> int | None:
    """Return the number of workers that share the sessions, or None if there are no such sessions.

    Raises ConfigError if the file is damaged.
    """
    if not any(data.glob("worker-*/")):
        return None  # No worker has ever started.
    try:
        text = (data / COUNT_FILE).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not text.strip().isdecimal():
        raise ConfigError(f"{data / COUNT_FILE} is damaged: it should have the number of workers")
    return int(text)


def node_id(data: Path) -> str:
    """Return the random id of the node with this data directory."""
    with suppress(OSError):
        if words := (data / NODE_FILE).read_text().split():
            return words[0]
    new = secrets.token_hex(8)
    with suppress(OSError):  # The disk is full. Then the next start has another id, and waits.
        replace_durably(data / NODE_FILE, new)
    return new


@final
class Incarnations:
    """Numbers of processes: each is above all before it, also after a restart of the machine."""

    def __init__(self, data: Path) -> None:
        self._path = data / INCARNATION_FILE
        self._last = 0
        with suppress(OSError, ValueError):
            self._last = int(self._path.read_text())

    def next(self) -> int:
        """Return the next number."""
        self._last = max(self._last + 1, time.time_ns() // 1_000_000)
        with suppress(OSError):  # The disk is full. Then the time of day must not go back.
            replace_durably(self._path, str(self._last))
        return self._last
