"""Whatever the tests start ends with them, however they end: Ctrl-C, SIGTERM, SIGKILL.

The process that runs the tests puts a mark into its environment. Every program started below it
inherits the mark, in whatever session and under whatever parent. A reaper beside it waits until it
is gone, kills every process that still bears the mark, and deletes what all of them have left in
the folder for temporary files, which is one of this run's own. The folders that pytest itself gives
to tests are not in it: whoever looks for why a test failed finds them.

    reap_at_the_end()                              # once, in the process that runs the tests
    python tests/support/reaper.py PID MARK FOLDER # the reaper
"""

import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

VARIABLE = "STARTED_BY_TESTS"
"""Not FLOWGUARD_...: brokers under test are started without such variables."""
LOOK_S = 0.2
ROUNDS_MAX = 100
"""Number of signals, one a `LOOK_S`, after which a surviving process counts as unkillable."""

MEMORY = Path("/dev/shm")
MEMORY_FREE_BYTES_MIN = 8 << 30


def folder_in_memory(
    folder: Path = MEMORY, free_bytes_min: int = MEMORY_FREE_BYTES_MIN
) -> str | None:
    """Return a file system in memory for temporary files, or None if there is none.

    Tests of stores sync thousands of times, and a disk takes milliseconds each time. No test needs
    a file to survive the machine: what a crash leaves is a copy, or the files of a killed process.
    """
    if not os.access(folder, os.W_OK):
        return None
    found = os.statvfs(folder)
    runs_programs = not found.f_flag & os.ST_NOEXEC
    has_space = found.f_bavail * found.f_frsize >= free_bytes_min
    return str(folder) if runs_programs and has_space else None


def reap_at_the_end(usual: str | None = None) -> None:
    """Mark this process's descendants to come, and start the reaper.

    `usual` is where temporary files lie, or None for the system's folder.
    """
    outer = os.environ.get(VARIABLE, "")
    mark = f"{os.getpid()}-{secrets.token_hex(8)}"
    usual = usual or tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="fg-tests-", dir=usual)
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), mark, folder],
        os.environ,  # as yet without the mark: the reaper does not kill itself
        file_actions=null,
        setsid=True,  # what ends the tests' process group does not end the reaper
    )
    # Tests within tests: both reapers know whom the inner ones have started.
    os.environ[VARIABLE] = f"{outer} {mark}".strip()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)
    os.environ["TMPDIR"] = os.environ["SPARK_LOCAL_DIRS"] = folder
    tempfile.tempdir = folder


def bearers(mark: str) -> list[int]:
    """Processes with the mark in the environment that they were started in."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # gone meanwhile, or another user's
            continue
        if mark.encode() in environment:
            found.append(int(folder.name))
    return found


def reap(mark: str) -> None:
    """Kill until none is left: they may fork meanwhile."""
    for _ in range(ROUNDS_MAX):
        alive = bearers(mark)
        if not alive:
            return
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(LOOK_S)


def main(parent: int, mark: str, folder: str) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    reap(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
