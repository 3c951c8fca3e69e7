"""The log on standard error; where that takes nothing, lines are lost and nothing else."""

import logging
import sys
from contextlib import suppress
from io import TextIOBase
from typing import Any, Final, TextIO, cast, final

import structlog
from structlog.typing import EventDict

from flowguard.broker.error_log import ErrorLog
from flowguard.cli.console import shown
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
    # Its usual tracebacks show the values of variables: passwords, tokens, payloads.
    traceback = structlog.dev.plain_traceback
    colors = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=traceback)
    last: list[Any] = [_shown, renderer]
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


def _shown(logger: object, method: str, event: EventDict) -> EventDict:
    """Escape what clients have said of themselves; JSON escapes it anyway."""
    return {key: shown(each) if isinstance(each, str) else each for key, each in event.items()}


async def log_ignored() -> None:
    """Log errors of callbacks that have nobody to raise them to, until cancelled: few of a kind.

    A peer makes one by TLS that asks for a name of bytes that are no text.
    """
    errors = ErrorLog("error in a callback")
    before, sys.unraisablehook = (
        sys.unraisablehook,
        lambda seen: errors(seen.exc_value or RuntimeError(seen.err_msg)),
    )
    try:
        await errors.run()
    finally:
        sys.unraisablehook = before
