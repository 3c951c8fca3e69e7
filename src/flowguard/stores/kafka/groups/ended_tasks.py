"""Reports of group tasks that ended because of a bug.

The caller starts the task again, because its group would stop otherwise.
"""

import asyncio
from typing import Any

import structlog

log = structlog.get_logger()


def bug_of(task: asyncio.Task[Any], filter: str) -> str:
    """Log the error of an ended task, and return a description. `filter` is "" for all groups."""
    error = None if task.cancelled() else task.exception()
    log.error("group task failed; it is started again", group=filter, exc_info=error)
    return f"a bug, and it is begun again: {error!r}"
