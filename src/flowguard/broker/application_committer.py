"""ApplicationCommitter: the journal of applications, and their pages, in a thread of its own.

Their store may not answer for long. Whoever waits for it waits here; `Committer` goes on.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import final

import structlog
import trio

from flowguard.broker.reactor import Reactor
from flowguard.broker.reading import RETRY_S, read_page
from flowguard.errors import NotNowError
from flowguard.node.apart import Apart
from flowguard.node.journal import Batch
from flowguard.node.node import Node
from flowguard.node.pages import READ_LEAST
from flowguard.records import QueueEntry
from flowguard.session.fetch import Fetch
from flowguard.stores import Store

log = structlog.get_logger()


@final
class ApplicationCommitter:
    """One thing at a time, as `Committer`."""

    def __init__(self, node: Node, store: Store, clock: Callable[[], float]) -> None:
        self._node = node
        self._store = store
        self._clock = clock
        self._work = trio.Event()
        self._wanted: deque[Fetch] = deque()
        self._refused: Batch | None = None
        """What the store has not taken yet; nothing overtakes it."""
        self._is_waiting = False
        """Whether the log says that commits wait."""
        self._ticked = False

    @property
    def _apart(self) -> Apart:
        apart = self._node.router.apart
        assert apart is not None
        return apart

    def notify(self) -> None:
        """Somebody waits, perhaps for this."""
        self._work.set()

    def tick(self) -> None:
        """Time has passed: also for what nobody waits for, and for what could not be read."""
        self._ticked = True
        self._work.set()

    def take_fetches(self, fetches: Sequence[Fetch]) -> list[Fetch]:
        """Take those that are about applications; the others are left."""
        names = self._apart.names
        self._wanted += [fetch for fetch in fetches if fetch.client_id in names]
        self._work.set()
        return [fetch for fetch in fetches if fetch.client_id not in names]

    async def run(self, reactor: Reactor) -> None:
        """Commit until cancelled; a `StoreError` ends the broker: nothing may be acknowledged."""
        while True:
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
        is_due = self._apart.journal.is_due(ticked=ticked)
        return is_due or self._reads or self._refused is not None

    @property
    def _reads(self) -> bool:
        return bool(self._wanted) and self._node.pages.has_room

    async def _work_once(self, reactor: Reactor) -> bool:
        """False: the store takes nothing now."""
        node, journal = self._node, self._apart.journal
        started_s = self._clock()
        batch = self._refused or journal.take(started_s)
        count = min(READ_LEAST, len(self._wanted)) if self._reads else 0
        fetches = [self._wanted.popleft() for _ in range(count)]
        error, pages = await trio.to_thread.run_sync(self._ask, batch, fetches)
        now_s = self._clock()
        self._refused = batch if error is not None else None
        if batch is not None and error is None:
            journal.durable(batch, now_s, now_s - started_s)
        unread = [fetch for fetch, page in zip(fetches, pages, strict=True) if page is None]
        self._wanted.extendleft(reversed(unread))
        node.pages.ready.extend(
            (fetch, page) for fetch, page in zip(fetches, pages, strict=True) if page is not None
        )
        if batch is not None:
            self._tell_waiting(error)
        reactor.turns.end_slice(now_s)
        reactor.wake()
        return error is None and not unread

    def _tell_waiting(self, error: NotNowError | None) -> None:
        """Log once that they wait, and once that they go on."""
        if (error is not None) == self._is_waiting:
            return
        self._is_waiting = error is not None
        if error is not None:
            log.warning(
                "queues of applications take nothing now: they wait, and who publishes to them",
                why=str(error),
            )
        else:
            log.info("queues of applications take messages again")

    def _ask(
        self, batch: Batch | None, fetches: Sequence[Fetch]
    ) -> tuple[NotNowError | None, list[list[QueueEntry] | None]]:
        """In the thread: commit, then read; why the batch has to be tried again."""
        error: NotNowError | None = None
        if batch is not None:
            try:
                self._store.commit(batch.ops)
            except NotNowError as refusal:
                error = refusal
        if error is not None:
            return error, [None for _ in fetches]
        return None, [read_page(fetch, self._store) for fetch in fetches]
