"""Committer: runs the node's commits and reads on a blocking store, one at a time, in a thread."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, final

import structlog
import trio

from flowguard.broker.commits.application_committer import ApplicationCommitter
from flowguard.broker.commits.presence import Presence
from flowguard.broker.commits.reading import RETRY_S, read_page
from flowguard.broker.sockets.reactor import Reactor
from flowguard.errors import NoSpaceError, NotNowError, StoreError, SyncError
from flowguard.node.journal import Batch
from flowguard.node.loop.pages import READ_LEAST, READ_S
from flowguard.node.node import Node
from flowguard.records import QueueEntry
from flowguard.session.outbound.fetch import Fetch
from flowguard.stores import NOT_FENCED, ApplicationStore, Fenced, Store

log = structlog.get_logger()


class _Upkept(NamedTuple):
    has_more: bool
    took_s: float


@final
class _Backup:
    __slots__ = ("done", "error", "folder")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done = trio.Event()
        self.error: StoreError | None = None


@final
class Committer:
    """Group commit without a timer: the next batch grows while one syncs."""

    def __init__(self, node: Node, store: Store, clock: Callable[[], float]) -> None:
        self._node = node
        self._applications: ApplicationCommitter | None = None
        if isinstance(store, ApplicationStore):
            self._applications = ApplicationCommitter(node, store, clock)
            store = store.devices
        self._store = store
        self._clock = clock
        self.presence = Presence(store.lease_s, clock)
        self._work = trio.Event()
        self._refused: Batch | None = None
        """The batch that the store has not accepted yet; no later batch overtakes it."""
        self._is_asking = False
        self._waits_since_s: float | None = None
        """Time of the first failed commit, or None if commits do not wait."""
        self._ticked = False
        self._upkeep_in = 0
        """Ticks until store upkeep runs, unless other work comes first."""
        self._upkeep_rides = False
        """True if a tick came during a commit. The next commit includes upkeep and the operations
        that no client waits for; otherwise the next tick without a commit does both."""
        self._backups: deque[_Backup] = deque()
        self._postponed: list[Fetch] = []
        """Pages that could not be requested yet."""
        self._running = trio.CancelScope()
        self._has_ended = trio.Event()

    def notify(self) -> bool:
        """Start work for a commit or a page that a client needs; return True if the store is
        free."""
        self._work.set()
        if self._applications is not None:
            self._applications.notify()
        return not self._is_asking

    def tick(self) -> None:
        """Start pending work that no client waits for."""
        if self._postponed:
            self._node.pages.wanted.extendleft(reversed(self._postponed))
            self._postponed.clear()
        if self.presence.look():
            self._work.set()
        self._upkeep_in -= 1
        if self._is_asking or self._node.journal.is_committing:
            self._upkeep_rides = True
        elif self._upkeep_in <= 0 or self._has_work(ticked=True):
            self._ticked = True
            self._work.set()
        if self._applications is not None:
            self._applications.tick()

    async def backup(self, folder: Path) -> None:
        """Copy the store between two commits; raises `StoreError` if that fails.

        A cancelled caller leaves the copy as it is.
        """
        backup = _Backup(folder)
        self._backups.append(backup)
        self._work.set()
        await backup.done.wait()
        if backup.error is not None:
            raise backup.error

    async def run(self, reactor: Reactor) -> None:
        """Commit until cancelled; a `StoreError` ends the broker: nothing may be acknowledged."""
        if self._applications is None:
            try:
                with self._running:
                    await self._run(reactor)
            finally:
                self._has_ended.set()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._applications.run, reactor)
            nursery.start_soon(self._applications.listen, reactor)
            await self._run(reactor)

    async def release(self) -> None:
        """Close a store that another broker waits for. The journal is empty, and clients may take
        a while to close their connections."""
        if self._store.lease_s is not None and self._applications is None:
            self._running.cancel()
            with trio.CancelScope(shield=True):
                await self._has_ended.wait()
                await trio.to_thread.run_sync(self._store.close)

    async def _run(self, reactor: Reactor) -> None:
        while True:
            await self._work.wait()
            self._work = trio.Event()
            while self._has_work(ticked=self._ticked) or self._backups or self.presence.in_doubt:
                if self.presence.in_doubt:
                    await self._make_sure(reactor)
                if self._backups:
                    await self._back_up(self._backups.popleft())
                if self._has_work(ticked=self._ticked):
                    await self._work_once(reactor)
                if self._refused is not None:
                    await trio.sleep(RETRY_S)
            if self._ticked:
                self._ticked = self._upkeep_rides = False
                self._plan_upkeep(await trio.to_thread.run_sync(self._store.maintain))

    async def _make_sure(self, reactor: Reactor) -> None:
        """Ask the store, after a pause, if it still belongs to this broker; raises `LockedError` if
        not. If the store is unavailable, the question stays open. Then the clients with answers are
        disconnected if another broker may own the store."""
        pauses = self.presence.pauses
        await trio.to_thread.run_sync(self._store.maintain)
        load = self._store.load()
        self._node.observe_store(load)
        self.presence.settle(pauses)
        reactor.let_go(self._clock(), is_void=load.in_doubt)

    def _plan_upkeep(self, has_more: bool) -> None:
        self._upkeep_in = 1 if has_more else self._store.upkeep_ticks

    def _has_work(self, *, ticked: bool) -> bool:
        is_due = self._node.journal.is_due(ticked=ticked)
        return is_due or self._node.pages.is_hungry or self._refused is not None

    async def _back_up(self, backup: _Backup) -> None:
        try:
            await trio.to_thread.run_sync(self._store.backup, backup.folder)
        except SyncError:
            raise  # The state of the disk is unknown, which concerns more than the copy.
        except StoreError as error:
            backup.error = error
        except Exception as error:
            # Any error of a request concerns only its caller.
            backup.error = StoreError(f"{error.__class__.__name__}: {error}")
            log.error("backup failed", folder=repr(str(backup.folder)), exc_info=error)
        backup.done.set()

    async def _work_once(self, reactor: Reactor) -> None:
        node = self._node
        started_s = self._clock()
        batch = self._refused or node.journal.take(started_s)
        fetches = self._pages_to_read()
        if batch is None and not fetches:
            return
        self._upkeep_in = 0
        self._is_asking = True
        reactor.turns.awaited = False
        upkeep = self._ticked or self._upkeep_rides
        self._ticked = self._upkeep_rides = False
        error, fenced, pages, upkept = await trio.to_thread.run_sync(
            self._ask, reactor, batch, fetches, upkeep
        )
        reactor.turns.awaited = False
        now_s = self._clock()
        if upkept is not None:
            self._plan_upkeep(upkept.has_more)
            started_s += upkept.took_s  # Upkeep is no part of the commit's duration.
        if batch is not None:
            self._refused = batch if error is not None else None
            self._tell_waiting(error)
            if error is None:
                node.fence(fenced, now_s)
                node.journal.durable(batch, now_s, now_s - started_s)
                if node.state.read_only:
                    node.observe_store(self._store.load())
            elif isinstance(error, NoSpaceError):
                node.no_space(now_s)
            else:
                node.store_away(now_s, str(error))
        if fetches:
            answers = list(zip(fetches, pages, strict=False))
            node.pages.put_back(fetches[len(pages) :])
            self._postponed += [fetch for fetch, page in answers if page is None]
            node.pages.came([(fetch, page) for fetch, page in answers if page is not None])
        reactor.turns.end_slice(now_s)
        reactor.wake()

    def _pages_to_read(self) -> list[Fetch]:
        """Take the fetches for this thread; `Pages.came` follows if there are any."""
        fetches = self._node.pages.to_read()
        if self._applications is not None and fetches:
            fetches = self._applications.take_fetches(fetches)
            if not fetches:
                self._node.pages.came([])
        return fetches

    def _ask(
        self, reactor: Reactor, batch: Batch | None, fetches: Sequence[Fetch], upkeep: bool
    ) -> tuple[NotNowError | None, Fenced, list[list[QueueEntry] | None], _Upkept | None]:
        """Commit, then read pages as time allows, then do a slice of upkeep, in the thread.

        Return why the batch must be tried again, or None. A separate call of the thread for upkeep
        would take ten times as long as the slice, while the next commit waits.
        """
        error: NotNowError | None = None
        fenced = NOT_FENCED
        if batch is not None:
            try:
                fenced = self._store.commit(batch.ops)
            except NotNowError as refusal:
                error = refusal
        began_s, pages = self._clock(), list[list[QueueEntry] | None]()
        for fetch in fetches:
            if len(pages) >= READ_LEAST and self._clock() - began_s > READ_S:
                break
            pages.append(read_page(fetch, self._store))
        upkept = None
        if upkeep and (error is None or isinstance(error, NoSpaceError)):
            # On a full disk, upkeep frees space: expired parts of the log are deleted.
            began_s = self._clock()
            upkept = _Upkept(self._store.maintain(), self._clock() - began_s)
        self._is_asking = False
        reactor.turns.awaited = True
        return error, fenced, pages, upkept

    def _tell_waiting(self, error: NotNowError | None) -> None:
        """Log once when commits wait, and once when they continue."""
        since_s = self._waits_since_s
        if error is not None and since_s is None:
            self._waits_since_s = self._clock()
            log.warning("store unavailable; writes and their acknowledgements wait", why=str(error))
        elif error is None and since_s is not None:
            self._waits_since_s = None
            waited_s = round(self._clock() - since_s, 1)
            log.info("store available again; writes go on", waited_s=waited_s)
