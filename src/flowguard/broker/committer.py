"""Committer: journal batches to a store that blocks, one at a time, in a thread."""

from collections.abc import Callable
from typing import final

import trio

from flowguard.broker.reactor import Reactor
from flowguard.node.node import Node
from flowguard.stores import Store


@final
class Committer:
    """While a batch syncs, the next one grows: group commit without a timer."""

    def __init__(self, node: Node, store: Store, clock: Callable[[], float]) -> None:
        self._node = node
        self._store = store
        self._clock = clock
        self._work = trio.Event()

    def notify(self) -> None:
        """The journal has work."""
        self._work.set()

    async def run(self, reactor: Reactor) -> None:
        """Commit until cancelled; a `StoreError` ends the broker: nothing may be acknowledged."""
        while True:
            await self._work.wait()
            self._work = trio.Event()
            while (batch := self._node.next_batch(started_s := self._clock())) is not None:
                await trio.to_thread.run_sync(self._store.commit, batch.ops)
                now_s = self._clock()
                self._node.committed(batch, now_s, now_s - started_s)
                reactor.settle(now_s)
                reactor.wake()
