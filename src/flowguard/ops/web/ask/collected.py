"""Collected: what some answers need, and what takes more than one step of the event loop."""

from typing import Final, final

import trio

from flowguard.node.applications.log_counts import LogCount
from flowguard.ops.explain import InLog
from flowguard.ops.queued import QueuedMessages
from flowguard.ops.view import View
from flowguard.ops.web.endpoints import EXPLAIN
from flowguard.ops.web.http_connection import Request, Response
from flowguard.ops.web.turns import AnswerTurns

METRICS: Final = "/metrics"
KEPT_MAX: Final = 32
"""Counts that are kept for their answers."""
LOG_S: Final = 2.0
"""Maximum time for counting in the durable log, seconds."""


@final
class Collected:
    def __init__(self, view: View, queued: QueuedMessages, turns: AnswerTurns) -> None:
        self._view = view
        self._queued = queued
        self._turns = turns

    async def prepare(self, request: Request) -> Response | None:
        """Collect what the answer needs. Return 503 if too many requests wait."""
        if request.path == METRICS:
            return await self._turns.take_all(self._queued.begin())
        if request.path.startswith(EXPLAIN):
            await self._count_in_log(request.path.removeprefix(EXPLAIN))
        return None

    async def _count_in_log(self, client_id: str) -> None:
        """Count the messages that a session has to read from the durable log, if it does."""
        node = self._view.node
        session = node.registry.sessions.get(client_id)
        if session is None or not session.reads_log:
            return
        ended = trio.Event()
        count = LogCount(session, node.state, ended.set)
        if session.behind:
            with trio.move_on_after(LOG_S):
                count.begin()
                await ended.wait()
            count.is_stopped = True
        if len(self._view.in_log) >= KEPT_MAX:  # Rejected requests leave theirs.
            self._view.in_log.clear()
        self._view.in_log[client_id] = InLog(
            messages=count.messages, is_complete=count.is_complete or not session.behind
        )
