"""The headline once more, with the sessions on a Redis that is slow: a line with a delay and few
bytes per second stands before it, so that what it can do is a property of the line.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import machine
from benchmarks.conditions import Conditions
from benchmarks.redis.servers import redis_server

from .side_by_side import POLICIES, Run, SideBySide, measure_one
from .subject import Subject

KEY: Final = "overload-redis"
DELAY_S: Final = 0.005
BYTES_PER_S: Final = 2_000_000
CHUNK_BYTES: Final = 16 * 1024
STORE: Final = (
    f"sessions on Redis, level `fsync`, behind a line of {BYTES_PER_S / 1e6:g} MB/s that holds "
    f"every answer back for {DELAY_S * 1e3:g} ms"
)


class SlowLine:
    """Takes connections on a socket and passes them on to another one, slowly."""

    def __init__(self, path: Path, to: Path) -> None:
        self._to = to
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                thread = threading.Thread(target=self._pass_on, args=(near,))
                thread.start()
                self._threads.append(thread)

    def _pass_on(self, near: socket.socket) -> None:
        """Until one of both sides ends."""
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(str(self._to))
            back = threading.Thread(target=pump, args=(far, near, 0.0, DELAY_S))
            back.start()
            pump(near, far, 1 / BYTES_PER_S, 0.0)
            back.join()

    def close(self) -> None:
        """When whoever was connected has ended."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()


def pump(source: socket.socket, sink: socket.socket, byte_s: float, delay_s: float) -> None:
    """Until one of them ends."""
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            time.sleep(len(data) * byte_s + delay_s)
            sink.sendall(data)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def slow_redis() -> Iterator[str]:
    """The address of one of its own."""
    with TemporaryDirectory(prefix="flowguard-bench-") as name:
        folder = Path(name)
        with redis_server(folder / "redis", "always") as server:
            line = SlowLine(folder / "line", server.path)
            try:
                yield f"unix://{folder / 'line'}"
            finally:
                line.close()


def measure(conditions: Conditions) -> SideBySide:
    runs = tuple(measure_on_redis(conditions, policy) for policy in POLICIES)
    title = "Three times what a slow Redis takes, for {:g} s"
    return SideBySide(runs, conditions.seconds, key=KEY, title=title, store=STORE)


def measure_on_redis(conditions: Conditions, policy: str, **options: float) -> Run:
    """`options` go to the generator."""
    with machine.pinned(conditions.generator_core), slow_redis() as url:
        settings = {"FLOWGUARD_STORE__KIND": "redis", "FLOWGUARD_REDIS__URL": url}
        return measure_one(conditions, Subject(policy, settings=settings), **options)
