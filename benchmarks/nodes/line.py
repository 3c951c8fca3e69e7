"""A slow line between a node and Redis: `python -m benchmarks.nodes.line PATH TO RATE DELAY_MS`.

All connections of the node share it. Each direction passes on RATE bytes per second, and each
answer comes DELAY_MS later. Another pair of numbers on stdin changes both. It ends with stdin.
"""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.brokers import BrokerFailed

CHUNK_BYTES = 4 * 1024
START_S = 10.0


class Lane:
    """One direction."""

    def __init__(self, bytes_per_s: float, delay_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.delay_s = delay_s
        self._lock = threading.Lock()
        self._free_s = 0.0

    def take(self, size_bytes: int) -> float:
        """Return the instant at which bytes that come now have passed."""
        with self._lock:
            self._free_s = max(self._free_s, time.monotonic()) + size_bytes / self.bytes_per_s
            return self._free_s + self.delay_s


def pump(source: socket.socket, sink: socket.socket, lane: Lane) -> None:
    """Pass on bytes until one of both sides ends."""
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            time.sleep(max(0.0, lane.take(len(data)) - time.monotonic()))
            sink.sendall(data)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def join(near: socket.socket, to: str, lanes: tuple[Lane, Lane]) -> None:
    with near, socket.socket(socket.AF_UNIX) as far:
        try:
            far.connect(to)
        except OSError:
            return
        back = threading.Thread(target=pump, args=(far, near, lanes[1]), daemon=True)
        back.start()
        pump(near, far, lanes[0])
        back.join()


def accept(listener: socket.socket, to: str, lanes: tuple[Lane, Lane]) -> None:
    while True:
        near, _ = listener.accept()
        threading.Thread(target=join, args=(near, to, lanes), daemon=True).start()


def main(path: str, to: str, bytes_per_s: str, delay_ms: str) -> None:
    lanes = Lane(float(bytes_per_s), 0.0), Lane(float(bytes_per_s), float(delay_ms) / 1e3)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    threading.Thread(target=accept, args=(listener, to, lanes), daemon=True).start()
    for words in map(str.split, sys.stdin):
        for lane in lanes:
            lane.bytes_per_s = float(words[0])
        lanes[1].delay_s = float(words[1]) / 1e3


class Line:
    def __init__(self, path: Path, to: Path, bytes_per_s: float, delay_s: float) -> None:
        self.url = f"unix://{path}"
        words = [str(path), str(to), f"{bytes_per_s}", f"{delay_s * 1e3}"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *words], stdin=subprocess.PIPE, text=True
        )
        until_s = time.monotonic() + START_S
        while not path.exists():
            if self._process.poll() is not None or time.monotonic() > until_s:
                raise BrokerFailed("the line to Redis does not start")
            time.sleep(0.02)

    def change(self, bytes_per_s: float, delay_s: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{bytes_per_s} {delay_s * 1e3}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


@contextmanager
def lines(
    folder: Path, to: Path, count: int, bytes_per_s: float, delay_s: float
) -> Iterator[list[Line]]:
    """A line for each node."""
    made: list[Line] = []
    try:
        for index in range(count):
            made.append(Line(folder / f"line-{index}", to, bytes_per_s, delay_s))
        yield made
    finally:
        for line in made:
            line.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
