"""The log on standard error."""

import sys
from functools import partial
from typing import Any

import structlog
from structlog.typing import EventDict

from flowguard.broker.logs import levels
from flowguard.broker.logs.error_log import BoundedLog
from flowguard.broker.logs.output_lines import STDERR
from flowguard.cli.console import shown
from flowguard.config import LogSettings


def log_to_stderr(settings: LogSettings, worker: str = "") -> None:
    """Log to standard error from now on, in the configured form and level.

    `worker`: the name of this process, if there are several.
    """
    levels.use(settings)
    # The usual tracebacks show the values of variables: passwords, tokens, payloads.
    traceback = structlog.dev.plain_traceback
    colors = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=traceback)
    last: list[Any] = [_shown, renderer]
    if settings.format == "json":
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            *([partial(_named, worker)] if worker else []),
            structlog.processors.TimeStamper(fmt="iso"),
            *last,
        ],
        wrapper_class=levels.wrapper_class(),
        logger_factory=lambda *_: STDERR,
    )


def _named(worker: str, logger: object, method: str, event: EventDict) -> EventDict:
    return {**event, "worker": worker}


def _shown(logger: object, method: str, event: EventDict) -> EventDict:
    """Escape texts from clients; for JSON this is not needed."""
    return {key: shown(each) if isinstance(each, str) else each for key, each in event.items()}


async def log_ignored() -> None:
    """Log errors of callbacks that have no caller to raise them to, until cancelled: few of a kind.

    A peer causes one by requesting, in TLS, a server name whose bytes are no text.
    """
    errors = BoundedLog("error in a callback", "error")
    before, sys.unraisablehook = (
        sys.unraisablehook,
        lambda seen: errors.raised(seen.exc_value or RuntimeError(seen.err_msg)),
    )
    try:
        await errors.run()
    finally:
        sys.unraisablehook = before
