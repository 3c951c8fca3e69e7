"""Giving: how a node of a cluster gives its shards away, one after the other.

A move begins when the clients of the last one are back (`flowguard.cluster.pace`). Then this node
names the shard in its sign of life, and the node that takes the shard starts a worker, which waits
for the lease. Meanwhile the worker here goes on, but closes the connections that it only relays to
other shards: in each step no more than the gates of the other nodes admit at once. Then it ends,
and its own clients reconnect together.
"""

from collections.abc import Mapping, Sequence
from typing import Final, final

import structlog
import trio

from flowguard.app.workers.process import Worker
from flowguard.broker.sockets.listening import Doorway
from flowguard.cluster.pace import MovePace
from flowguard.cluster.shards import NodeRecord, ShardMove

KEEP_MAX_S: Final = 30.0
"""Maximum time from the begin of a move until the worker ends, seconds."""

log = structlog.get_logger()


@final
class Giving:
    def __init__(self, node: str) -> None:
        """`node` is the name of this one."""
        self._node = node
        self._pace = MovePace()
        self.shard: int | None = None
        """The shard that moves away now, or None."""
        self.move: ShardMove | None = None
        """The move that is going on or comes next in the cluster, or None."""
        self.is_told = False
        """True if its worker accepts no more clients."""
        self._until_s = 0.0
        """Time at which the worker of the shard ends in any case."""
        self.doorways: Sequence[Doorway] = ()
        self._is_shut = False
        """True if the listeners reject connections, because no worker accepts them."""

    async def go_on(
        self,
        move: ShardMove | None,
        nodes: Mapping[str, NodeRecord],
        homes: Mapping[int, str],
        workers: Sequence[Worker],
    ) -> None:
        """Begin the move that is due, or go on with it; `nodes` has the living nodes."""
        if move is None or move.giver != self._node:
            self._pace.rest()
        if self.shard is not None and (move is None or move[:2] != (self.shard, self._node)):
            worker = workers[self.shard]
            if homes.get(self.shard) == self._node and worker.process is not None:
                worker.process.stop()  # It stays here, and accepts clients again after its start.
            self.shard, self.is_told = None, False
        if move is None or move.giver != self._node:
            return
        worker = workers[move.shard]
        now_s = trio.current_time()
        if self.shard is None:
            holders = [node for node in nodes.values() if node.name in homes.values()]
            if not self._pace.may_begin(holders, now_s):
                return
            self._pace.began(holders, worker.load.clients + worker.load.relayed)
            self.shard, self._until_s = move.shard, now_s + KEEP_MAX_S
            log.info("shard moves", name=worker.name, to=move.taker, clients=worker.load.clients)
        if worker.is_ready and worker.process is not None and worker.is_wanted:
            others = sum(node.slots for node in nodes.values() if node.name != self._node)
            gives = [nodes[move.taker].reference, others // 2]
            await worker.process.control.tell(gives=gives)
            self.is_told = True

    def keeps(self, worker: Worker, taker: NodeRecord | None) -> bool:
        """Return True if the worker goes on for now, although `taker` is to run its shard."""
        return (
            worker.index == self.shard
            and worker.is_wanted
            and worker.is_ready
            and taker is not None
            and (worker.index not in taker.awaits or worker.load.relayed > 0)
            and trio.current_time() < self._until_s
        )

    def mind_listeners(self, parted: int | None, workers: Sequence[Worker]) -> None:
        """Let the listeners reject connections while no worker accepts them. `parted` is the shard
        whose worker accepts none, or None."""
        is_shut = not any(worker.is_wanted and worker.index != parted for worker in workers)
        is_new = not any(worker.incarnation for worker in workers)
        if is_shut is not self._is_shut and not is_new:
            self._is_shut = is_shut
            for doorway in self.doorways:
                if is_shut:
                    doorway.shut()
                else:
                    doorway.open()
