"""Collected: what some answers need, and what takes more than one step of the event loop."""

from typing import Final, final

from flowguard.ops.queued import QueuedMessages
from flowguard.ops.web.http_connection import Request, Response
from flowguard.ops.web.turns import AnswerTurns

METRICS: Final = "/metrics"


@final
class Collected:
    def __init__(self, queued: QueuedMessages, turns: AnswerTurns) -> None:
        self._queued = queued
        self._turns = turns

    async def prepare(self, request: Request) -> Response | None:
        """Count queued messages for a scrape. Return 503 if too many requests wait."""
        if request.path != METRICS:
            return None
        count = self._queued.begin()
        goes_on: bool | Response = True
        while goes_on:
            goes_on = await self._turns.take(count)
            if isinstance(goes_on, Response):
                return goes_on
        return None
