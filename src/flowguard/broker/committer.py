"""Committer: journal batches to a store that blocks, one at a time, in a thread."""

from collections import deque
from collections.abc import Callable
from typing import final

import trio

from flowguard.broker.reactor import Reactor
from flowguard.node.journal import Batch
from flowguard.node.node import Node
from flowguard.stores import Store


@final
class Committer:
    """While a batch syncs, the next one grows: group commit without a timer.

    The next commit begins before the last one is answered: the disk need not wait for the answers,
    which take the processor about as long.
    """

    def __init__(self, node: Node, store: Store, clock: Callable[[], float]) -> None:
        self._node = node
        self._store = store
        self._clock = clock
        self._work = trio.Event()
        self._durable: deque[tuple[Batch, float]] = deque()
        """Batches to be answered, and how long their commits took; two at most."""
        self._answers = trio.Event()

    def notify(self) -> None:
        """The journal has work."""
        self._work.set()

    async def run(self, reactor: Reactor) -> None:
        """Commit until cancelled; a `StoreError` ends the broker: nothing may be acknowledged."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer, reactor)
            while True:
                await self._work.wait()
                self._work = trio.Event()
                while (batch := self._node.next_batch(started_s := self._clock())) is not None:
                    await trio.to_thread.run_sync(self._store.commit, batch.ops)
                    self._node.journal.durable(batch)
                    self._durable.append((batch, self._clock() - started_s))
                    self._answers.set()

    async def _answer(self, reactor: Reactor) -> None:
        while True:
            await self._answers.wait()
            self._answers = trio.Event()
            while self._durable:
                batch, latency_s = self._durable.popleft()
                now_s = self._clock()
                self._node.committed(batch, now_s, latency_s)
                reactor.settle(now_s)
                reactor.wake()
