"""ApplicationCommitter: commits the journal of applications and reads their pages, in a thread.

The store of applications may take long to answer. Only this thread waits for it; `Committer`
continues.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Final, final

import structlog
import trio

from flowguard.broker.commits.reading import RETRY_S, read_page
from flowguard.broker.sockets.reactor import Reactor
from flowguard.errors import NotNowError
from flowguard.flow.load.signals import TICK_S
from flowguard.node.applications.separate_lane import SeparateLane
from flowguard.node.journal import Batch
from flowguard.node.loop.pages import READ_LEAST
from flowguard.node.node import Node
from flowguard.records import Append, QueueEntry
from flowguard.session.outbound.fetch import Fetch
from flowguard.stores import ApplicationStore, Store

log = structlog.get_logger()

COMMIT_EVERY_S: Final = 0.004
"""Minimum time between two commits, seconds. Even a small commit takes 1 to 2 ms of a processor, so
a thousand messages per second would otherwise occupy it all the time."""
READ_REST: Final = 3
"""Pause between two pages during live work, as a multiple of the last page's duration; one tick at
most. Pages pause only after twice as many messages were read as arrived:
docs/develop/decisions/0016."""
TO_READ_MAX: Final = 10_000
"""Maximum of that count, because messages of an unavailable application are not read."""


@final
class ApplicationCommitter:
    """Does one thing at a time, like `Committer`."""

    def __init__(self, node: Node, store: Store, clock: Callable[[], float]) -> None:
        self._node = node
        self._store = store
        assert isinstance(store, ApplicationStore)
        self._groups = store.groups
        lane = node.router.lane
        assert isinstance(lane, SeparateLane)
        self._journal = lane.journal
        self._names = lane.names
        self._clock = clock
        self._work = trio.Event()
        self._wanted: deque[Fetch] = deque()
        self._refused: Batch | None = None
        """The batch that the store has not accepted yet; no later batch overtakes it."""
        self._waits_since_s: float | None = None
        """Time of the first failed commit, or None if commits do not wait."""
        self._ticked = False
        self._commit_due_s = self._read_due_s = -inf
        self._to_read_count = 0
        """Messages that may be read before pages pause: twice the number committed for all
        applications, less the number read."""

    def notify(self) -> None:
        """Wake the committer: a client may wait for one of its commits."""
        self._work.set()

    def tick(self) -> None:
        """Start pending work that no client waits for, and retry failed reads."""
        self._ticked = True
        self._work.set()

    def take_fetches(self, fetches: Sequence[Fetch]) -> list[Fetch]:
        """Take the fetches of applications; return the others."""
        names = self._names
        self._wanted += [fetch for fetch in fetches if fetch.client_id in names]
        self._work.set()
        return [fetch for fetch in fetches if fetch.client_id not in names]

    async def listen(self, reactor: Reactor) -> None:
        """Handle news of groups that other brokers also serve, until cancelled."""
        groups = self._groups
        if groups is None:
            return
        has_come = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def wake() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(lambda: has_come.set(), idempotent=False)

        groups.on_news(wake)
        self._take_news(reactor)  # Earlier news have woken no task.
        while True:
            await has_come.wait()
            has_come = trio.Event()
            self._take_news(reactor)

    def _take_news(self, reactor: Reactor) -> None:
        now_s = self._clock()
        self._node.router.queues.spread.take_news(now_s)
        reactor.turns.end_slice(now_s)
        reactor.wake()

    async def run(self, reactor: Reactor) -> None:
        """Commit until cancelled; a `StoreError` ends the broker: nothing may be acknowledged."""
        while True:
            with trio.move_on_after(self._rest_s()):
                await self._work.wait()
            self._work = trio.Event()
            ticked, self._ticked = self._ticked, False
            while self._has_work(ticked=ticked):
                is_done = await self._work_once(reactor)
                if not is_done:
                    await trio.sleep(RETRY_S)
            if ticked:
                await trio.to_thread.run_sync(self._store.maintain)

    def _has_work(self, *, ticked: bool) -> bool:
        is_due = self._journal.is_due(ticked=ticked)
        return is_due or self._reads or self._refused is not None

    def _rest_s(self) -> float:
        """Return the time before the next wanted page may be read; infinite if none is wanted."""
        if not self._wanted or not self._node.pages.has_room:
            return inf
        return max(0.0, self._read_due_s - self._clock())

    @property
    def _reads(self) -> bool:
        return self._rest_s() == 0.0

    @property
    def _is_shared(self) -> bool:
        """True if commits contain live work, of applications or of others."""
        return self._node.journal.moving.is_shared or self._journal.moving.is_shared

    async def _work_once(self, reactor: Reactor) -> bool:
        """Do one piece of work; return False if the store is unavailable now."""
        early_s = self._commit_due_s - self._clock()
        if early_s > 0:
            if self._reads:
                return await self._read(reactor)
            self._journal.is_early = True
            await trio.sleep(early_s)
            self._journal.is_early = False
        is_done = await self._commit(reactor)
        # Clients that wait for the commit are answered first, because a page takes as long to read.
        return is_done and await self._read(reactor)

    async def _commit(self, reactor: Reactor) -> bool:
        journal, started_s = self._journal, self._clock()
        batch = self._refused or journal.take(started_s)
        if batch is None:
            return True
        self._commit_due_s = started_s + COMMIT_EVERY_S
        error = await trio.to_thread.run_sync(self._write, batch)
        now_s = self._clock()
        self._refused = batch if error is not None else None
        if error is None:
            # Before SUBACK, because messages that others publish from now on are for its group.
            self._node.router.queues.spread.take_news(now_s)
            journal.durable(batch, now_s, now_s - started_s)
            come_count = sum([isinstance(op, Append) for op in batch.ops])
            self._to_read_count = min(TO_READ_MAX, self._to_read_count + 2 * come_count)
        self._tell_waiting(error)
        reactor.turns.end_slice(now_s)
        reactor.wake()
        return error is None

    def _write(self, batch: Batch) -> NotNowError | None:
        """Write a batch, in the thread; return why it must be tried again, or None."""
        try:
            self._store.commit(batch.ops)
        except NotNowError as refusal:
            return refusal
        return None

    async def _read(self, reactor: Reactor) -> bool:
        if not self._reads:
            return True
        pages, wanted = self._node.pages, self._wanted
        fetches = [wanted.popleft() for _ in range(min(READ_LEAST, len(wanted)))]
        is_shared = self._is_shared
        started_s = self._clock()
        found = await trio.to_thread.run_sync(self._read_pages, fetches)
        now_s = self._clock()
        read_count = sum([len(page) for page in found if page is not None])
        self._to_read_count -= read_count
        if self._to_read_count < 0:
            self._to_read_count = 0
            if is_shared:
                self._read_due_s = now_s + min(READ_REST * (now_s - started_s), TICK_S)
        answers = list(zip(fetches, found, strict=True))
        unread = [fetch for fetch, page in answers if page is None]
        wanted.extendleft(reversed(unread))
        pages.ready.extend((fetch, page) for fetch, page in answers if page is not None)
        reactor.turns.end_slice(now_s)
        reactor.wake()
        return not unread

    def _read_pages(self, fetches: Sequence[Fetch]) -> list[list[QueueEntry] | None]:
        return [read_page(fetch, self._store) for fetch in fetches]

    def _tell_waiting(self, error: NotNowError | None) -> None:
        """Log once when commits wait, and once when they continue."""
        since_s = self._waits_since_s
        if error is not None and since_s is None:
            self._waits_since_s = self._clock()
            log.warning(
                "kafka unavailable; messages for applications wait, and so do their publishers",
                why=str(error),
            )
        elif error is None and since_s is not None:
            self._waits_since_s = None
            log.info("kafka available again", waited_s=round(self._clock() - since_s, 1))
