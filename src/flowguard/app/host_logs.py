"""Log events of a broker inside a program: through `logging`, unless the program configured
structlog."""

import logging
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

NAME = "flowguard"
"""The logger's name."""


@contextmanager
def to_the_host() -> Iterator[None]:
    """Send log events to `logging` until the block ends. A configuration of structlog by the
    program stays in force."""
    if structlog.is_configured():
        yield
        return
    structlog.configure(
        processors=[_line],
        logger_factory=lambda *_: logging.getLogger(NAME),
        cache_logger_on_first_use=False,
    )
    ours = structlog.get_config()["logger_factory"]
    try:
        yield
    finally:
        if structlog.get_config()["logger_factory"] is ours:
            structlog.reset_defaults()


def _line(
    _: Any, __: str, values: MutableMapping[str, Any]
) -> tuple[tuple[str, str], dict[str, Any]]:
    """Return the arguments of a method of `logging.Logger`."""
    named = {key: values.pop(key) for key in ("exc_info", "stack_info") if key in values}
    words = [str(values.pop("event")), *(f"{key}={value!r}" for key, value in values.items())]
    return ("%s", " ".join(words)), named
