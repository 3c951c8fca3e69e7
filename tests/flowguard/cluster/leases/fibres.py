"""Code that blocks, as steps of a schedule: each fibre is a thread, and one runs at a time."""

from collections.abc import Callable
from threading import Semaphore, Thread


class KilledError(BaseException):
    """The process of the fibre was killed: nothing of it runs any more."""


class Fibre:
    def __init__(self, work: Callable[[], None]) -> None:
        self.is_done = False
        self.wake_s = 0.0
        """Time before which it has nothing to do."""
        self._work = work
        self._error: BaseException | None = None
        self._is_killed = False
        self._go = Semaphore(0)
        self._rest = Semaphore(0)
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._is_killed:
                self._work()
        except KilledError:
            pass
        except BaseException as error:
            self._error = error
        self.is_done = True
        self._rest.release()

    def step(self) -> None:
        """Run until the next pause or the end. Raises what the work raises."""
        if self.is_done:
            return
        self._go.release()
        self._rest.acquire()
        if self.is_done:
            self._thread.join()
            if self._error is not None:
                error, self._error = self._error, None
                raise error

    def pause(self, until_s: float = 0.0) -> None:
        """Let others run; called by the work itself."""
        if self._is_killed:
            raise KilledError
        self.wake_s = until_s
        self._rest.release()
        self._go.acquire()
        if self._is_killed:
            raise KilledError

    def kill(self) -> None:
        self._is_killed = True
        self.step()
