"""OtherTasks: report if any other task can run, so that ours may wait in trio's place.

Waiting in trio costs a pass of its scheduler and an extra wait for each single message. A task that
serves sockets avoids this while no other task has work. It waits in its own epoll set, which
contains trio's epoll descriptor, until trio's next deadline at most. A socket, thread or signal
that wakes trio then ends that wait.

An empty run queue does not mean that no task can run: trio runs tasks in batches, and the later
tasks of our batch are in no queue. So tasks are counted from their scheduling until they run. Trio
publishes this and its deadlines, but keeps its epoll descriptor private.
"""

from typing import Final, final

import trio

AHEAD_MAX_S: Final = 60.0
"""Maximum wait if no task has a deadline, seconds."""


@final
class OtherTasks(trio.abc.Instrument):
    """The runnable tasks of this run, without the caller's own task."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        """Readable while trio has an event that it has not handled."""
        self.runnable: set[trio.lowlevel.Task] = set()
        """The runnable tasks; complete after two checkpoints."""
        trio.lowlevel.add_instrument(self)

    @classmethod
    def watch(cls) -> "OtherTasks | None":
        """Count tasks from now on until `close`; return None if trio's descriptor is not found."""
        descriptor = epoll_descriptor()
        return None if descriptor is None else cls(descriptor)

    def close(self) -> None:
        trio.lowlevel.remove_instrument(self)

    def rest_s(self) -> float:
        """Return how long no task can run unless an event comes, seconds, if none can run now."""
        ahead_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
        return min(AHEAD_MAX_S, max(0.0, ahead_s))

    # --- as trio calls it --------------------------------------------------------------------

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.runnable.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.runnable.discard(task)


def epoll_descriptor() -> int | None:
    """Return the descriptor of trio's epoll set, or None if this version keeps it elsewhere."""
    try:
        from trio._core._run import GLOBAL_RUN_CONTEXT

        return GLOBAL_RUN_CONTEXT.runner.io_manager._epoll.fileno()
    except (ImportError, AttributeError):
        return None
