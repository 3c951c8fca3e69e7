"""The log on standard error; where that takes nothing, lines are lost and nothing else."""

import logging
import sys
from contextlib import suppress
from io import TextIOBase
from typing import Any, Final, TextIO, cast, final

import structlog

from flowguard.config import LogSettings

LEVELS: Final = logging.getLevelNamesMapping()


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


def log_to_stderr(settings: LogSettings) -> None:
    """Log there, from now on, in the form and from the level that the settings say."""
    last: list[Any] = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    if settings.format == "json":
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, LogLines())),
    )
