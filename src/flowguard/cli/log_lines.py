"""The log on standard error; where that takes nothing, lines are lost and nothing else."""

import sys
from contextlib import suppress
from io import TextIOBase
from typing import final


@final
class LogLines(TextIOBase):
    """Standard error, on which writing never fails.

    A log on a full disk, or a pipe that nobody reads any more, is no reason to end a connection,
    or the broker. What cannot be written is missing in the log, and nothing else is.
    """

    def write(self, text: str) -> int:
        with suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()
