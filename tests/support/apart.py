"""A command of ours in a session of its own, so that all its processes can be killed at once."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.interop.broker import environment_with


@contextmanager
def command(*arguments: str, environment: Mapping[str, str]) -> "Iterator[subprocess.Popen[str]]":
    """`flowguard ARGUMENTS`; at the end it and all it has started are killed with SIGKILL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flowguard", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment_with(environment),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        while pids := _alive(process.pid):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.poll()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _alive(session: int) -> list[int]:
    """The processes of a session that have not ended, in whatever group they are."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _parent, _group, of_session = path.read_text().rpartition(")")[2].split()[:4]
            if int(of_session) == session and state not in "ZX":
                pids.append(int(path.parent.name))
    return pids
