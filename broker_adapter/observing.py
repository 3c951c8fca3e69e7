"""Callbacks of a host that only observe. An error in one is logged, and changes nothing else."""

import logging
from collections.abc import Callable
from typing import Any, Final, final

LOG_S: Final = 10.0
"""Minimum time between two logged errors of a callback."""

log: Final = logging.getLogger("flowguard.guard")


@final
class HostCallback:
    """A callback by its name."""

    __slots__ = ("_call", "_errors", "_logged_s", "_name")

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self._name = name
        self._call = call
        self._logged_s: float | None = None
        self._errors = 0
        """Errors since the last logged one."""

    def __call__(self, now_s: float, *arguments: object) -> None:
        try:
            self._call(*arguments)
        except Exception:
            if self._logged_s is not None and now_s - self._logged_s < LOG_S:
                self._errors += 1
                return
            unlogged, self._errors, self._logged_s = self._errors, 0, now_s
            log.exception("error in %s, and %d unlogged before it", self._name, unlogged)


def observed(name: str, call: Callable[..., Any] | None) -> HostCallback | None:
    """Return a callback whose errors are logged, or None without one."""
    return None if call is None else HostCallback(name, call)
