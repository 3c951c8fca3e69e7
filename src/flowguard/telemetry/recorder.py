"""Recorder: a broker that records itself, beside its work.

At every tick of the broker it reads the node and adds rows to `PendingRows`; waking a task of its
own would cost four times as much. Once a second its task has them written in a thread. Any error in
it ends the recording, with a line in the log, and affects nothing else. At the end it has FINISH_S
to complete the run.
"""

import secrets
from collections.abc import Callable, Collection
from time import thread_time
from typing import Final, final

import structlog
import trio

from flowguard.broker.server import Running
from flowguard.session.connection import ServerConnection
from flowguard.telemetry.observation import Observation, run_row
from flowguard.telemetry.pending import PendingRows, Portion
from flowguard.telemetry.progress import RecordingProgress
from flowguard.telemetry.runs import RunsKept, run_id
from flowguard.telemetry.schema import (
    ATTEMPTS,
    CONNECTIONS,
    DECISIONS,
    GOODPUT,
    LATENCIES,
    REASONS,
    SAMPLES,
    EndRow,
)

SAMPLES_PER_S: Final = 10
"""Samples per second: the broker's ticks."""
FINISH_S: Final = 30.0
"""Time to complete a run, seconds. On a busy machine it may take several; only a hanging disk takes
longer."""
RUN_SHARE: Final = 0.25
"""Share of `keep_bytes` at which a run ends, so that there is always an older one to delete."""

log = structlog.get_logger()


@final
class Recorder:
    """The recorder of one broker, which writes into `runs` and closes them."""

    def __init__(
        self,
        running: Running,
        clock: Callable[[], float],
        runs: RunsKept,
        given: Collection[str] | None = None,
    ) -> None:
        """`given`: as for `run_row`."""
        node = running.node
        settings = node.settings.telemetry
        self._node = node
        self._onlookers = running.onlookers
        self._clock = clock
        self._runs = runs
        self._given = given
        self._settings = settings
        self.progress = RecordingProgress(
            settings.record_topic or str(settings.record_dir), settings.keep_bytes
        )
        self._pending = PendingRows(
            settings.buffer_rows_max, settings.buffer_bytes_max, self.progress.dropped_rows
        )
        self._observation = Observation(node, node.bounds.memory_bytes)
        self._begun_s = 0.0
        self._number = 0
        self._memory_bytes = 0
        self._bug: Exception | None = None
        self._broken = trio.Event()
        self._is_over = False
        self._write_due = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Record until cancelled, then complete the run; an error is logged, and ends it."""
        try:
            await self._record(task_status)
        except* OSError as group:
            self._stop(str(_first(group)))
        except* Exception as group:
            self._stop(repr(_first(group)), group)
        finally:
            self._node.attempts.tell = None
            self._runs.close()

    async def _record(self, task_status: trio.TaskStatus[None]) -> None:
        self._begin(self._clock())
        self._node.attempts.tell = self._on_attempt
        self._onlookers.append(self._on_tick)
        task_status.started()
        writing = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_all, writing)
            try:
                await self._broken.wait()
                assert self._bug is not None
                raise self._bug
            finally:
                self._node.attempts.tell = None
                self._onlookers.remove(self._on_tick)
                self._is_over = True
                self._write_due.set()
                writing.deadline = trio.current_time() + FINISH_S
                if self._bug is None:  # After a bug the run stays unfinished.
                    now_s = self._clock()
                    self._look(now_s, self._memory_bytes)
                    self._end(now_s, "stopped")

    # --- looking on --------------------------------------------------------------------------

    def _begin(self, now_s: float) -> None:
        self._begun_s = now_s
        name = self.progress.run_id = run_id(now_s, secrets.token_hex(3))
        self._observation.begin(now_s)
        policy = self._node.guard.policy.name
        described = run_row(self._node.settings, policy, now_s, self._given)
        self._pending.begin(name, described)

    def _end(self, now_s: float, by: str) -> None:
        self._add_second(now_s)
        ended_s = self._observation.t_s(now_s)
        self._pending.end(EndRow(ended_s, ended_by=by, events_count=None, deaths_count=0))

    def _on_tick(self, now_s: float, memory_bytes: int) -> None:
        """Take a sample after the broker's tick; never raises."""
        if self._bug is not None:
            return
        try:
            self._memory_bytes = memory_bytes
            self._look(now_s, memory_bytes)
            is_large = self._runs.run_bytes >= RUN_SHARE * self._settings.keep_bytes
            if is_large or now_s - self._begun_s >= self._settings.run_s:
                self._end(now_s, "duration")
                self._begin(now_s)
        except Exception as error:
            self._bug = error
            self._broken.set()

    def _look(self, now_s: float, memory_bytes: int) -> None:
        observation, pending = self._observation, self._pending
        for row in observation.closed_at_once(now_s):
            pending.add(ATTEMPTS, row)
        pending.add(SAMPLES, observation.sample(now_s, memory_bytes, thread_time()))
        pending.add(GOODPUT, observation.goodput(now_s))
        connection = observation.connection(now_s)
        if connection is not None:
            pending.add(CONNECTIONS, connection)
        for decision in observation.decisions(now_s):
            pending.add(DECISIONS, decision, len(decision.why))
        self._number += 1
        if self._number % SAMPLES_PER_S == 0:
            self._add_second(now_s)
            self._write_due.set()

    def _add_second(self, now_s: float) -> None:
        """Add the rows that have the events of a whole second."""
        for row in self._observation.latencies(now_s):
            self._pending.add(LATENCIES, row)
        for reason in self._observation.reasons(now_s):
            self._pending.add(REASONS, reason)

    def _on_attempt(
        self, connection: ServerConnection | None, since_s: float, until_s: float, outcome: str
    ) -> None:
        """Record the outcome of an attempt, whether or not it has become a client; never raises."""
        try:
            row = self._observation.attempt(connection, since_s, until_s, outcome)
            self._pending.add(ATTEMPTS, row)
        except Exception as error:
            self._bug = error
            self._broken.set()

    # --- writing -----------------------------------------------------------------------------

    async def _write_all(self, scope: trio.CancelScope) -> None:
        with scope:
            is_last = False
            while not is_last:
                await self._write_due.wait()
                self._write_due = trio.Event()
                is_last = self._is_over
                portions = self._pending.take()
                await trio.to_thread.run_sync(
                    self._runs.write, portions, self._clock(), abandon_on_cancel=True
                )
                self._on_written(portions)
        if scope.cancelled_caught:
            raise TimeoutError(f"the end of the run was not taken within {FINISH_S:g} s")

    def _on_written(self, portions: list[Portion]) -> None:
        self._pending.written(portions)
        self.progress.written_rows += sum(portion.rows_count for portion in portions)
        self.progress.used_bytes = self._runs.used_bytes

    def _stop(self, why: str, bug: BaseException | None = None) -> None:
        self.progress.error = why
        log.error("recording stopped", error=why, run=self.progress.run_id, exc_info=bug)


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error
