"""Data of some answers, which take more than one step of the event loop to collect."""

from typing import Final

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


async def prepare(
    view: View, queued: QueuedMessages, turns: AnswerTurns, request: Request
) -> Response | None:
    """Collect what the answer needs. Return 503 if too many requests wait."""
    if request.path == METRICS:
        return await turns.take_all(queued.begin())
    if request.path.startswith(EXPLAIN):
        await _count_in_log(view, request.path.removeprefix(EXPLAIN))
    return None


async def _count_in_log(view: View, client_id: str) -> None:
    """Count the messages that a session has to read from the durable log, if it does."""
    session = view.node.registry.sessions.get(client_id)
    if session is None or not session.reads_log:
        return
    ended = trio.Event()
    count = LogCount(session, view.node.state, ended.set)
    if session.behind:
        with trio.move_on_after(LOG_S):
            count.begin()
            await ended.wait()
        count.is_stopped = True
    if len(view.in_log) >= KEPT_MAX:  # Rejected requests leave theirs.
        view.in_log.clear()
    view.in_log[client_id] = InLog(
        messages=count.messages, is_complete=count.is_complete or not session.behind
    )
