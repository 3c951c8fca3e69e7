"""`flowguard ARGUMENTS` in a fork of a process that has imported everything.

For tests of what a command prints: it starts in a few milliseconds instead of half a second. Tests
of the process itself (its streams, its signals, its imports) use `tests.interop.broker.start`.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

from flowguard import __main__ as program
from flowguard.cli import app
from tests.support.fork_server import CONTEXT
from tests.support.patience import HANG_S

__all__ = ["app", "flowguard", "run_in_fork", "started"]


def flowguard(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Return the exit code, standard output and standard error.

    The environment has no settings but those in `environment`.
    """
    with started(*arguments, environment=environment) as command:
        command.process.join(HANG_S)
        code = command.process.exitcode
        assert code is not None, f"flowguard {' '.join(arguments)} does not end"
        return code, command.stdout, command.stderr


@dataclass(frozen=True)
class Command:
    """A started command, and the files that get its output."""

    process: BaseProcess
    files: list[Path]

    @property
    def stdout(self) -> str:
        return self.files[0].read_text()

    @property
    def stderr(self) -> str:
        return self.files[1].read_text()


@contextmanager
def started(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Command]:
    """Start a command, and kill it at the end of the block."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("FLOWGUARD_")}
    clean |= environment or {}
    with TemporaryDirectory() as name:
        files = [Path(name) / each for each in ("stdout", "stderr")]
        for each in files:
            each.touch()
        process = CONTEXT.Process(target=run_in_fork, args=(arguments, clean, files))
        process.start()
        try:
            yield Command(process, files)
        finally:
            process.kill()
            process.join()
            process.close()


def run_in_fork(arguments: tuple[str, ...], environment: dict[str, str], files: list[Path]) -> None:
    """Run a command with this environment; its output is appended to these two files."""
    os.environ.clear()
    os.environ.update(environment)
    for stream, path in zip((sys.stdout, sys.stderr), files, strict=True):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, stream.fileno())
        os.close(file)
    sys.argv[1:] = arguments
    program.run()
