"""Runs: a broker's recorded runs in one directory, each in its own, within a total size.

It blocks, so it is for a thread; one thread at a time. A broker runs for months and only a
completed run can be analysed, so runs follow one another. The oldest run is deleted as a whole; the
run being written is kept. The caller decides when a run ends, and so keeps it small (`run_bytes`).
"""

import errno
import fcntl
import os
import re
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol, final

from flowguard.config import TelemetrySettings
from flowguard.telemetry.pending import Portion
from flowguard.telemetry.recording import Recording
from flowguard.telemetry.schema import RUN, TABLES

LOCK: Final = ".recording"
_RUN: Final = re.compile(r"live-\d{8}T\d{6}Z-[0-9a-f]+")
_FILE: Final = re.compile(r"[a-z]+-\d+\.parquet|\.[a-z]+-\d+\.parquet\.part")


def run_id(started_unix_s: float, token: str) -> str:
    """Return a broker's run id; ids sort by time, and `token` (hexadecimal) separates brokers."""
    return f"live-{datetime.fromtimestamp(started_unix_s, UTC):%Y%m%dT%H%M%SZ}-{token}"


class RunsKept(Protocol):
    """The destination of a recorder. It blocks, so it is for a thread, one at a time."""

    @property
    def run_bytes(self) -> int:
        """Size of the run being written, as counted for `telemetry.keep_bytes`."""

    @property
    def used_bytes(self) -> int:
        """Size of all runs, counted in the same way."""

    def write(self, portions: Sequence[Portion], now_s: float) -> None:
        """Write rows; raises OSError, which ends the recording."""

    def close(self) -> None:
        """Release all resources; called by the event loop, possibly during `write`.

        Safe to repeat.
        """


@final
class Runs:
    """The runs in one directory, which is locked until `close`."""

    def __init__(self, directory: Path, settings: TelemetrySettings) -> None:
        """Makes the directory; raises OSError, also if another broker records to it."""
        self._directory = directory
        self._settings = settings
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(directory / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise OSError(errno.EBUSY, "another broker records there") from error
        found = sorted(path for path in directory.iterdir() if _RUN.fullmatch(path.name))
        self._closed = deque((path, _size_bytes(path)) for path in found)
        """Completed runs, oldest first, and their sizes."""
        self._recording: Recording | None = None
        self._rotated_s = 0.0
        self.run_bytes = 0
        """Size of the run being written, as of its last completed file."""
        self._tidy()

    @property
    def used_bytes(self) -> int:
        return self.run_bytes + sum(size_bytes for _, size_bytes in self._closed)

    def write(self, portions: Sequence[Portion], now_s: float) -> None:
        """Write rows, and complete files and runs that are due; raises OSError."""
        for portion in portions:
            recording = self._recording
            if recording is None:
                recording = self._begin(portion, now_s)
            assert recording.run_id == portion.run_id
            for name, rows in portion.rows.items():
                recording.extend(TABLES[name], rows)
            if portion.end is not None:
                recording.finish(portion.end)
                self._closed.append((recording.directory, _size_bytes(recording.directory)))
                self._recording = None
                self._tidy()
        if self._recording is not None and now_s - self._rotated_s >= self._settings.rotate_s:
            self._recording.rotate()
            self._rotated_s = now_s
            self._tidy()

    def close(self) -> None:
        """Release the directory, so that another broker may record to it. Safe to repeat."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _begin(self, portion: Portion, now_s: float) -> Recording:
        directory = self._directory / portion.run_id
        rows_max = self._settings.rotate_rows
        recording = self._recording = Recording(directory, portion.run_id, file_rows=rows_max)
        recording.add(RUN, portion.run)
        recording.rotate()  # So even the run of a killed broker has its description.
        self._rotated_s = now_s
        self._tidy()
        return recording

    def _tidy(self) -> None:
        """Measure the sizes, and delete the oldest runs beyond the limit."""
        self.run_bytes = 0 if self._recording is None else _size_bytes(self._recording.directory)
        while self._closed and self.used_bytes > self._settings.keep_bytes:
            _delete(self._closed.popleft()[0])


def _size_bytes(directory: Path) -> int:
    with os.scandir(directory) as entries:
        return sum(entry.stat().st_size for entry in entries if _FILE.fullmatch(entry.name))


def _delete(directory: Path) -> None:
    """Delete the files of runs in a directory, and the directory if no other files are left."""
    for path in directory.iterdir():
        if _FILE.fullmatch(path.name):
            path.unlink()
    if not any(directory.iterdir()):
        directory.rmdir()
