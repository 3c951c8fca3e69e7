"""Tasks of groups that have ended though nobody has asked them to: a bug is said, not hidden.

What they did is begun again by whoever looks after them: it is the group that would stand still.
"""

import asyncio
from typing import Any

import structlog

log = structlog.get_logger()


def bug_of(task: asyncio.Task[Any], filter: str) -> str:
    """Why a task has ended, for people; the log has where. `filter`: empty: of all groups."""
    error = None if task.cancelled() else task.exception()
    log.error("group task failed; it is started again", group=filter, exc_info=error)
    return f"a bug, and it is begun again: {error!r}"
