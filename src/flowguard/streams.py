"""The standard streams of a command: closed ones, and an output that cannot be written."""

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any, final


def open_closed() -> None:
    """Open closed standard streams, so that no file or socket gets their descriptors.

    Writing to standard output fails then, as it does on a closed stream.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDONLY if fd == 1 else os.O_RDWR)
            setattr(sys, name, os.fdopen(opened, "w" if fd else "r", buffering=1))


def run(command: Callable[[], object]) -> None:
    """Run a command; exit with 1 and the reason if its output cannot be written."""
    output = _Output(1, "w", closefd=False)
    before: Any = sys.stdout
    sys.stdout = io.TextIOWrapper(
        output if before.write_through else io.BufferedWriter(output),
        before.encoding,
        before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
    try:
        try:
            command()
        finally:
            sys.stdout.flush()
    except BaseException:
        if output.error is None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # For output that is still buffered.
        if output.error.errno != errno.EPIPE:
            why = output.error.strerror
            sys.stderr.write(f"flowguard cannot write to standard output: {why}\n")
        sys.exit(1)


@final
class _Output(io.FileIO):
    """Standard output that keeps its first error."""

    error: OSError | None = None

    def write(self, data: Any) -> Any:
        try:
            return super().write(data)
        except OSError as error:
            self.error = self.error or error
            raise
