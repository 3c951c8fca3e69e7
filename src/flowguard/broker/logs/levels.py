"""Levels: the lowest level that is logged of each kind of event, changeable while running.

They are those of the process, as the configuration of structlog is.
"""

import logging
from collections.abc import Mapping
from typing import Final

import structlog

from flowguard.config import LOG_KINDS, LOG_LEVELS, LogSettings

BROKER: Final = "level"
"""Name of the level of all events without a kind; it is also that of kinds without their own."""
NUMBERS: Final = logging.getLevelNamesMapping()
_own: Final[dict[str, str]] = {BROKER: "info"}
"""Level of each kind that has its own."""

kind_log = structlog.wrap_logger(
    None, wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET)
)
"""Logs events of a kind: `is_logged` decides on them, and not the level of the broker."""


def use(settings: LogSettings) -> None:
    """Use the configured levels from now on."""
    _own.clear()
    _own[BROKER] = settings.level
    for kind in LOG_KINDS:
        level = getattr(settings, kind)
        if level is not None:
            _own[kind] = level


def change(kind: str, level: str) -> None:
    """Set one level. Raises ValueError with a text for people."""
    if kind not in (BROKER, *LOG_KINDS):
        raise ValueError(f"{kind} is no kind of log events: {', '.join((BROKER, *LOG_KINDS))}")
    if level not in LOG_LEVELS:
        raise ValueError(f"{level} is no level: {', '.join(LOG_LEVELS)}")
    _own[kind] = level
    if kind == BROKER:
        structlog.configure(wrapper_class=wrapper_class())


def is_logged(kind: str, level: str) -> bool:
    """Return True if events of this kind and level are logged."""
    least = _own.get(kind) or _own[BROKER]
    return NUMBERS[level.upper()] >= NUMBERS[least.upper()]


def levels() -> Mapping[str, str]:
    """Return the level of each kind."""
    return {kind: _own.get(kind) or _own[BROKER] for kind in (BROKER, *LOG_KINDS)}


def wrapper_class() -> type[structlog.typing.FilteringBoundLogger]:
    """Return the class of loggers for events without a kind."""
    return structlog.make_filtering_bound_logger(NUMBERS[_own[BROKER].upper()])
