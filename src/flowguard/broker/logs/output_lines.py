"""OutputLines: standard output and standard error, written by a thread.

A write blocks while nothing reads the pipe, while Ctrl-S stops the terminal, or while a disk
stalls. The event loop must not wait for that: it serves clients.
"""

import atexit
import os
import threading
from collections import deque
from typing import Final, final

import structlog

LINES_MAX: Final = 10_000
LINES_BYTES_MAX: Final = 1024 * 1024
"""Bounds of the lines that wait for the reader; beyond them lines are dropped and counted."""
FLUSH_S: Final = 1.0
"""Maximum time that the end of the process waits for the reader."""

log = structlog.get_logger()


@final
class OutputLines:
    """Lines of one descriptor, and a logger of structlog; writing never blocks and never fails.

    A line that cannot be written, because the disk is full or the pipe has no reader, is dropped.
    """

    def __init__(self, fd: int) -> None:
        self.dropped = 0
        """Number of lines that were dropped since the start."""
        self._fd = fd
        self._reported = 0
        self._lines: deque[bytes] = deque()
        """Lines that wait, and the one that is being written."""
        self._size_bytes = 0
        self._changed = threading.Condition()  # Reentrant: a destructor may log at any point.
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if len(self._lines) >= LINES_MAX or self._size_bytes + len(data) > LINES_BYTES_MAX:
                self.dropped += 1
                return
            self._lines.append(data)
            self._size_bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
                atexit.register(self.flush)
            self._changed.notify_all()

    def msg(self, line: str) -> None:
        self.write(f"{line}\n")

    debug = info = warning = error = critical = msg

    def flush(self) -> None:
        """Wait until all lines are written, `FLUSH_S` at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, FLUSH_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: len(self._lines))
                data = self._lines[0]
            is_written = self._written(data)
            with self._changed:
                self._lines.popleft()
                self._size_bytes -= len(data)
                if not is_written:
                    self.dropped += 1
                elif self.dropped > self._reported and not self._lines:
                    count, self._reported = self.dropped - self._reported, self.dropped
                    log.warning("log lines dropped", descriptor=self._fd, count=count)
                self._changed.notify_all()

    def _written(self, data: bytes) -> bool:
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            return False
        return True


STDOUT: Final = OutputLines(1)
STDERR: Final = OutputLines(2)
