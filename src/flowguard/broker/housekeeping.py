"""The 100 ms tick: deadlines, load signals, `$SYS`."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from secrets import SystemRandom
from typing import final

import structlog
import trio

from flowguard.broker.commits.committer import Committer
from flowguard.broker.logs.error_log import printable
from flowguard.broker.logs.full_store_log import FullStoreLog
from flowguard.broker.logs.overload_log import OverloadLog
from flowguard.broker.memory import memory_gauge
from flowguard.broker.sockets.reactor import Reactor
from flowguard.errors import StoreError
from flowguard.flow.load.signals import TICK_JITTER, TICK_S
from flowguard.node.node import Node
from flowguard.node.upkeep.holdings import held_bytes
from flowguard.node.upkeep.sys_topics import SysTopics
from flowguard.stores import ApplicationStore, Store
from flowguard.stores.group_feed import Trouble

log = structlog.get_logger()

BUSY_MIN_S = 0.05
"""Time that the loop must have had work before the share in which it ran is computed."""
RUNNING_SHARE_MIN = 0.1
"""Minimum share assumed, so that rejected clients are answered even on a busy machine."""
TROUBLES = {
    Trouble.READING: "group unreadable; its messages wait",
    Trouble.COMMITS: "group acknowledgements not saved; messages may come again",
    Trouble.TOPIC: "group topic has wrong settings",
    Trouble.HELD: "group records unreadable; later records wait",
    Trouble.RECORD: "damaged group record lost; further ones are counted",
}
OVER = {
    Trouble.READING: "group readable again",
    Trouble.COMMITS: "group acknowledgements saved again",
    Trouble.TOPIC: "group topic correct again",
    Trouble.HELD: "group records readable again",
}
Onlooker = Callable[[float, int], None]
"""Called after each tick with the time and the resident set, bytes."""


@final
class _Tick:
    """The parts of a tick besides the node's own; if one fails, the others still run."""

    def __init__(
        self,
        node: Node,
        store: Store,
        committer: Committer,
        reactor: Reactor,
        resident_bytes: Callable[[], int],
        overload_log: OverloadLog,
        now_s: float,
    ) -> None:
        self._node = node
        self._store = store
        self._stored_apart = store if isinstance(store, ApplicationStore) else None
        self._committer = committer
        self._reactor = reactor
        self._resident_bytes = resident_bytes
        self._sys_topics = SysTopics(node, now_s)
        self._sys_due_s = now_s
        self._ran_s = time.thread_time()
        self._seen = (now_s, self._ran_s, reactor.idle_s)
        self.parts: Sequence[Callable[[float], None]] = (
            self._observe,
            FullStoreLog(node).tick,
            lambda now_s: node.tick(now_s, reactor.heard_s(now_s)),
            overload_log.tick,
            lambda _: reactor.sweep(),
            self._tell,
            self._go_on,
        )

    def _observe(self, now_s: float) -> None:
        node = self._node
        self._see_how_it_runs(now_s)
        node.guard.observe_memory(held_bytes(node), self._resident_bytes())
        node.observe_store(self._store.load())
        if self._stored_apart is not None:
            for client_id, count in self._stored_apart.take_lost().items():
                node.router.applications.lost_count += count
                client = printable(client_id)
                log.warning("application lost messages", client=client, count=count)
            self._tell_troubles()

    def _tell_troubles(self) -> None:
        """Log each fault of groups of several brokers once, and once when it ends."""
        for filter, trouble, why in self._node.router.queues.spread.take_troubles():
            group = printable(filter) or "all"
            if why:
                log.warning(TROUBLES[trouble], group=group, why=why)
            elif trouble in OVER:
                log.info(OVER[trouble], group=group)

    def _see_how_it_runs(self, now_s: float) -> None:
        """Measure the share of its working time in which the loop had a processor."""
        before_s, self._ran_s = self._ran_s, time.thread_time()
        self._node.guard.observer.worked(self._ran_s - before_s)
        since_s, ran_s, idle_s = self._seen
        seen = (now_s, self._ran_s, self._reactor.idle_s)
        busy_s = (seen[0] - since_s) - (seen[2] - idle_s)
        if busy_s >= BUSY_MIN_S:
            share = (seen[1] - ran_s) / busy_s
            self._node.guard.observer.running_share = min(1.0, max(RUNNING_SHARE_MIN, share))
            self._seen = seen

    def _tell(self, now_s: float) -> None:
        if now_s >= self._sys_due_s:
            self._sys_due_s = now_s + self._node.settings.node.sys_interval_s
            self._sys_topics.publish(now_s)

    def _go_on(self, now_s: float) -> None:
        self._reactor.turns.end_slice(now_s)
        if self._node.has_work or self._node.pages.ready:
            self._reactor.wake()
        self._committer.tick()

    def looks(self, onlookers: Sequence[Onlooker]) -> list[Callable[[float], None]]:
        """Return a part for each onlooker."""
        return [partial(self._show, look) for look in onlookers]

    def _show(self, look: Onlooker, now_s: float) -> None:
        look(now_s, self._resident_bytes())


async def keep_house(
    node: Node,
    store: Store,
    committer: Committer,
    reactor: Reactor,
    clock: Callable[[], float],
    onlookers: Sequence[Onlooker],
    overload_log: OverloadLog,
    on_error: Callable[[Exception], None],
) -> None:
    """Tick until cancelled; `onlookers` may change meanwhile.

    An error of one part is passed to `on_error`, and the other parts continue. Only a `StoreError`
    ends it.
    """
    jitter = SystemRandom().uniform
    with memory_gauge() as resident_bytes:
        tick = _Tick(node, store, committer, reactor, resident_bytes, overload_log, clock())
        while True:
            now_s = clock()
            for part in (*tick.parts, *tick.looks(onlookers)):
                try:
                    part(now_s)
                except StoreError:
                    raise  # Nothing may be acknowledged any more.
                except Exception as error:
                    node.counters.errors += 1
                    on_error(error)
            await trio.sleep(TICK_S * jitter(*TICK_JITTER))
