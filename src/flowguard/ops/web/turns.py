"""AnswerTurns: answers of the HTTP port are made one at a time, and leave time for the broker."""

from collections.abc import Callable
from typing import Final, TypeVar, final

import trio

from flowguard.ops.web.http_connection import Response, json_response

TURNS_WAITING_MAX: Final = 16
"""Maximum number of waiting requests; further ones get 503."""
LOOP_SHARE: Final = 0.05
"""Maximum share of the event loop's time for answers, whatever the number of callers."""
T = TypeVar("T")


@final
class AnswerTurns:
    """Makes one answer, or one step of it, at a time."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._free_at_s = 0.0

    async def take(self, make: Callable[[], T]) -> T | Response:
        """Return the result of `make` in its turn, or 503 if too many requests wait."""
        if self._lock.statistics().tasks_waiting >= TURNS_WAITING_MAX:
            return json_response({"error": "too many ask at once"}, 503, retry_after="1")
        async with self._lock:
            await trio.sleep_until(self._free_at_s)
            began_s = trio.current_time()
            try:
                return make()
            finally:
                took_s = trio.current_time() - began_s
                self._free_at_s = began_s + took_s / LOOP_SHARE

    async def take_all(self, step: Callable[[], bool]) -> Response | None:
        """Take a turn for each step while it returns True; return 503 if too many requests wait."""
        goes_on: bool | Response = True
        while goes_on:
            goes_on = await self.take(step)
            if isinstance(goes_on, Response):
                return goes_on
        return None
