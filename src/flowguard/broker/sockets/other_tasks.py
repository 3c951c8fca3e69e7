"""OtherTasks: whether any task beside ours can run, so that ours may wait in trio's place.

To wait in trio costs a pass of its scheduler and a wait of its own for each message that comes
alone. A task that serves sockets can do without while no other one has anything to do: it waits in
its own epoll set, in which trio's is one descriptor, and no longer than until trio's next deadline.
Whatever wakes trio (a socket, a thread, a signal) then ends that wait.

An empty run queue does not say that nobody can run: trio runs tasks in batches, and who comes after
us in ours is in no queue. So tasks are counted from when they are scheduled until they run. Trio
tells that, and its deadlines, to everybody; its epoll descriptor it keeps to itself.
"""

from typing import Final, final

import trio

AHEAD_MAX_S: Final = 60.0
"""Where no task has a deadline."""


@final
class OtherTasks(trio.abc.Instrument):
    """The tasks of this run; whoever asks is not among them, for it runs."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        """Readable while trio has something to do that it has not seen."""
        self.runnable: set[trio.lowlevel.Task] = set()
        """Complete after two checkpoints."""
        trio.lowlevel.add_instrument(self)

    @classmethod
    def watch(cls) -> "OtherTasks | None":
        """Count them from now on, until `close`; None: this trio has its descriptor elsewhere."""
        descriptor = epoll_descriptor()
        return None if descriptor is None else cls(descriptor)

    def close(self) -> None:
        trio.lowlevel.remove_instrument(self)

    def rest_s(self) -> float:
        """How long nobody can run unless something comes, seconds, where nobody can run now."""
        ahead_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
        return min(AHEAD_MAX_S, max(0.0, ahead_s))

    # --- as trio calls it --------------------------------------------------------------------

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.runnable.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.runnable.discard(task)


def epoll_descriptor() -> int | None:
    """The set in which trio waits; None: it is not where it was in the versions that we know."""
    try:
        from trio._core._run import GLOBAL_RUN_CONTEXT

        return GLOBAL_RUN_CONTEXT.runner.io_manager._epoll.fileno()
    except (ImportError, AttributeError):
        return None
