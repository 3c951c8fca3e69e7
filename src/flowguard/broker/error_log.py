"""Errors that cost one connection, for whoever reads the log: a few tracebacks per interval."""

from collections import Counter
from typing import Final, final

import structlog
import trio

from flowguard.broker.overload_log import INTERVAL_S

SHOWN_MAX: Final = 3
"""Tracebacks per interval: a hook that fails for every client of a crowd must not fill a disk."""

log = structlog.get_logger()


@final
class ErrorLog:
    """Call it with an error; `run` it, so that what was not shown is at least counted."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._shown = 0
        self._suppressed: Counter[str] = Counter()

    def __call__(self, error: BaseException) -> None:
        if self._shown < SHOWN_MAX:
            self._shown += 1
            log.error(self._event, exc_info=error)
        else:
            self._suppressed[type(error).__name__] += 1

    def flush(self) -> None:
        """The interval is over: say what was not shown, and show again."""
        if self._suppressed:
            log.error(
                f"{self._event}, not shown",
                count=self._suppressed.total(),
                **{f"kind_{kind}": count for kind, count in self._suppressed.items()},
            )
        self._shown = 0
        self._suppressed.clear()

    async def run(self) -> None:
        """Flush every interval, and at the end."""
        try:
            while True:
                await trio.sleep(INTERVAL_S)
                self.flush()
        finally:
            self.flush()
