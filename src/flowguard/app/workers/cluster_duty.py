"""ClusterDuty: what a supervisor does as a node of a cluster.

Twice a second it notes a sign of life in the table in Redis, reads the table, and decides which
shards are this node's (`flowguard.cluster.shards`). A worker runs for each of them, and learns the
addresses of the others. A worker waits for the lease of its shard. So it does not matter that the
last owner still finishes its work.

Shards that are to move go one after the other (`giving`): those of a node that ends or is drained,
and those that a node with fewer shards gets.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, final

import structlog
import trio

from flowguard.address import parse_address
from flowguard.app.giving import Giving
from flowguard.app.workers.cluster_status import (
    ClusterStatus,
    moves_of,
    nodes_of,
    place_of,
    shards_of,
)
from flowguard.app.workers.node_hosts import NodeHosts
from flowguard.app.workers.process import Worker
from flowguard.broker.sockets.listening import Doorway
from flowguard.broker.workers.node_tls import node_tls_of
from flowguard.broker.workers.worker_addresses import NodeAddress
from flowguard.cluster.incarnations import MetIncarnations
from flowguard.cluster.shards import (
    GAP_S,
    MoveReason,
    NodeRecord,
    ShardState,
    SignsOfLife,
    assigned,
    next_move,
    without_new,
)
from flowguard.config import Settings
from flowguard.errors import ConfigError, LeasedError, StoreError
from flowguard.ops.status import Status

if TYPE_CHECKING:
    from flowguard.stores.redis.cluster_table import ClusterView

INTERVAL_S: Final = 0.5
"""Interval of signs of life, seconds."""
FORGET_S: Final = 3_600.0
"""Time after which a dead node leaves the table, seconds."""

log = structlog.get_logger()


@final
class ClusterDuty:
    def __init__(self, settings: Settings, shards_max: int, node_id: str, http: str) -> None:
        """Join the cluster, or let `run` join it when Redis answers. This node runs at most
        `shards_max` shards. `http`: the URL of its page for other machines, or "".

        Raises ConfigError and ModuleNotFoundError.
        """
        from flowguard.stores.redis.cluster_table import ClusterTable, ClusterView

        address = settings.cluster.address
        assert address is not None
        reference = settings.node.server_reference or ""
        self.node = NodeRecord(address, shards_max, reference=reference, http=http)
        self.tls = node_tls_of(settings.cluster)
        self._started_s = time.monotonic()
        self._open = partial(ClusterTable, settings, node_id, time.monotonic, time.sleep)
        self._access: ClusterTable | None = None
        self.table = ClusterView({}, {}, {})
        """The last answer of Redis."""
        self._lease_s = settings.redis.lease_s
        self._signs: SignsOfLife | None = None
        """The signs of life, or None before the first one of this node."""
        self._taken_since_s: float | None = None
        """Time since when another node has been found at the address of this one."""
        self._workers: Sequence[Worker] = ()
        self.living: set[str] = set()
        self._hosts = NodeHosts()
        self._duties: dict[int, str] = {}
        """The node that is to run each shard."""
        self._taken: dict[int, tuple[MoveReason, float]] = {}
        """Why and when, in seconds, this node took each shard that does not serve yet."""
        self.adoptions = dict.fromkeys(MoveReason, 0)
        """Number of shards that this node has taken and that have served."""
        self.adoption_s = dict.fromkeys(MoveReason, 0.0)
        """Time until these served, all together, seconds."""
        self._incarnations = MetIncarnations()
        self.remote: dict[int, NodeAddress] = {}
        """Each shard that is on another node, with the first port of its node."""
        self._giving = Giving(address)
        self.trouble = ""
        """Why the last sign of life failed, or ""."""
        self._asking = trio.Lock()
        """Held while Redis is asked: one thread at a time uses the connection."""
        self._has_left = False
        try:
            self.table = self._meet()
        except StoreError as error:
            self._note(error)

    def use(self, workers: Sequence[Worker], doorways: Sequence[Doorway]) -> None:
        """Take the workers, one for each shard of the cluster, and the listeners; no worker runs
        before `run`."""
        self._workers, self._giving.doorways = workers, doorways
        for worker in workers:
            worker.want(is_wanted=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Give signs of life until cancelled; has started when the first workers are wanted, or
        while Redis is unavailable. Raises ConfigError if this node cannot be in the cluster."""
        if self._signs is not None:
            await self._apply(self.table)
        task_status.started()
        while True:
            await trio.sleep(INTERVAL_S)
            try:
                if self._has_left:
                    return
                await self._beat()
                for name, age_s in self.table.ages_s.items():
                    if age_s > FORGET_S and name not in self.living:
                        async with self._asking:
                            await trio.to_thread.run_sync(self._forget, name)
            except (ConfigError, StoreError) as error:
                self._note(error)
            else:
                if self.trouble:
                    log.info("cluster table available again")
                self.trouble, self._taken_since_s = "", None

    def _note(self, error: ConfigError | StoreError) -> None:
        """Note why a sign of life failed. Raise ConfigError if that will not change."""
        now_s = time.monotonic()
        if isinstance(error, LeasedError):  # It may be the end of an earlier node.
            if self._taken_since_s is None:
                self._taken_since_s = now_s
            if now_s - self._taken_since_s > self._lease_s + GAP_S:
                raise ConfigError(str(error)) from error
        elif isinstance(error, ConfigError) and self._signs is None:
            raise error
        if not self.trouble:
            log.warning("cluster table unavailable", why=str(error))
        self.trouble = str(error)

    async def _beat(self) -> None:
        """Give a sign of life, and do what the table asks for. Raises ConfigError, `StoreError`."""
        async with self._asking:
            if not self._has_left:
                await self._apply(await trio.to_thread.run_sync(self._meet))

    async def mark(self, names: Collection[str], *, is_drained: bool) -> None:
        """Let nodes take no shards and give theirs away, or end that. Raises ConfigError,
        `StoreError`."""
        if names:
            async with self._asking:
                assert self._access is not None
                mark = partial(self._access.mark, names, is_drained=is_drained)
                await trio.to_thread.run_sync(mark)
            await self._beat()

    async def evacuate(self) -> None:
        """Give all shards away, one after the other, as far as other nodes can take them."""
        self.node = replace(self.node, is_leaving=True)
        while any(worker.process is not None for worker in self._workers):
            await trio.sleep(INTERVAL_S)
            is_known = self.table.nodes[self.node.name].is_leaving
            if (is_known and self._giving.move is None) or self.trouble:
                break  # No other node can take a shard.

    async def leave(self) -> None:
        """Leave the table, so that no other node waits; `run` gives no more signs of life."""
        with trio.move_on_after(GAP_S):
            async with self._asking:
                self._has_left = True
                await trio.to_thread.run_sync(self._forget, self.node.name, abandon_on_cancel=True)

    async def greet(self, worker: Worker) -> None:
        """Tell a worker that starts what the others know already."""
        if worker.process is None:
            return
        await worker.process.control.tell(moved=self.remote)
        for other in self._workers:
            if other is not worker and other.index not in self.table.shards:  # It never ran.
                await worker.process.control.tell(died=[other.name, 0])

    def served(self, worker: Worker) -> None:
        """A shard serves: count how long that took, if this node has taken it."""
        taken = self._taken.pop(worker.index, None)
        if taken is not None:
            why, since_s = taken
            self.adoptions[why] += 1
            self.adoption_s[why] += time.monotonic() - since_s

    def places(self) -> list[tuple[str, str]]:
        """Return the node and the state of each shard."""
        own = replace(self.node, states=self._states())
        table = replace(self.table, nodes={**self.table.nodes, own.name: own})
        shards = range(len(self._workers))
        return [place_of(shard, table, self.living, self._duties) for shard in shards]

    def status(self, statuses: Sequence[Status | None]) -> ClusterStatus:
        """Return the table as this node reads it; `statuses` has that of each shard."""
        places = self.places()
        return ClusterStatus(
            node=self.node.name,
            trouble=self.trouble,
            nodes=nodes_of(self.table, self.living),
            shards=shards_of(places, self.table, statuses),
            down=[k for k, (_, state) in enumerate(places) if state != ShardState.SERVES],
            moving=list(moves_of(self.table, self.living, self._duties).values()),
            moves=None if self._giving.move is None else self._giving.move.shard,
        )

    # --- the table -------------------------------------------------------------------------------

    def _meet(self) -> "ClusterView":
        claimed = {
            worker.index: worker.incarnation
            for worker in self._workers
            if worker.process is not None and worker.incarnation
        }
        running = [worker for worker in self._workers if worker.process is not None]
        record = replace(
            self.node,
            alive_s=time.monotonic() - self._started_s,
            states=self._states(),
            gives=self._giving.shard,
            awaits=tuple(worker.index for worker in running if worker.waits),
            clients=sum(worker.load.clients for worker in running),
            slots=min((worker.load.slots for worker in running), default=0) * len(running),
            later=self._incarnations.beyond(self.table.shards),
        )
        if self._access is None:
            self._access = self._open()
        if self._signs is None:
            self._access.mark([self.node.name], is_drained=False)
        table = self._access.meet(record, claimed)
        if self._signs is None:
            self._signs = SignsOfLife(self._lease_s, time.monotonic())
        self._signs.met(time.monotonic())
        return table

    def _states(self) -> dict[str, str]:
        return {
            str(worker.index): worker.state.value
            for worker in self._workers
            if worker.is_wanted or worker.process is not None
        }

    def _forget(self, name: str) -> None:
        try:
            if self._access is not None:
                self._access.leave(name)
        except (ConfigError, StoreError) as error:
            log.warning("node not removed from the cluster table", name=name, why=str(error))

    async def _apply(self, table: "ClusterView") -> None:
        """Decide by a table, and let it take effect."""
        before, self.table = self.table, table
        self._judge(table)
        homes = {shard: home.node for shard, home in table.shards.items()}
        living = [table.nodes[name] for name in sorted(self.living)]
        duties = without_new(assigned(living, homes, len(self._workers)), living, homes)
        self._duties = duties
        moves = moves_of(table, self.living, duties)
        self._giving.move = next_move(living, homes, len(self._workers))
        by_name = {node.name: node for node in living}
        parted = self._giving.shard if self._giving.is_told else None
        await self._giving.go_on(self._giving.move, by_name, homes, self._workers)
        for worker in self._workers:
            taker = duties.get(worker.index, "")
            is_wanted = taker == self.node.name or self._giving.keeps(worker, by_name.get(taker))
            if is_wanted is not worker.is_wanted:
                last_node = homes.get(worker.index)
                if is_wanted:
                    move = moves.get(worker.index)
                    why = MoveReason.RESTART if move is None else MoveReason(move["why"])
                    log.info("shard taken", name=worker.name, last_node=last_node, why=why.value)
                    self._taken[worker.index] = (why, time.monotonic())
                else:
                    log.info("shard given away", name=worker.name, last_node=last_node)
                    self._taken.pop(worker.index, None)
            worker.home = "" if is_wanted else homes.get(worker.index, "")
            worker.want(is_wanted=is_wanted)
        self._incarnations.meet(table.shards, living)
        _end_outdated(self._workers, self._incarnations)
        self._giving.mind_listeners(parted, self._workers)
        for shard, home in table.shards.items():
            last = before.shards.get(shard)
            if last is not None and last.incarnation < home.incarnation:
                await self._tell_death(self._workers[shard], last.incarnation)
        await self._tell_addresses(homes)

    def _judge(self, table: "ClusterView") -> None:
        """Find the living nodes. Those that cannot be judged yet are among them."""
        assert self._signs is not None
        living = self._signs.living(table.ages_s)
        for name in sorted(living - self.living):
            log.info("node joined", node=name, shards_max=table.nodes[name].shards_max)
        for name in sorted(self.living - living):
            if name in table.nodes:
                log.warning("node lost", node=name, silent_s=round(table.ages_s[name], 1))
            else:
                log.info("node left", node=name)
        self.living = living

    async def _tell_addresses(self, homes: dict[int, str]) -> None:
        """Tell the workers the addresses of shards on other nodes, if these have changed."""
        others = {name for name in homes.values() if name in self.living} - {self.node.name}
        known = await self._hosts.addresses(sorted(others))
        remote = {
            shard: NodeAddress(*known[name], parse_address(name)[0])
            for shard, name in homes.items()
            if name in known
        }
        if remote != self.remote:
            self.remote = remote
            for worker in self._workers:
                if worker.process is not None:
                    await worker.process.control.tell(moved=remote)

    async def _tell_death(self, dead: Worker, incarnation: int) -> None:
        for worker in self._workers:
            if worker is not dead and worker.process is not None:
                await worker.process.control.tell(died=[dead.name, incarnation])


def _end_outdated(workers: Sequence[Worker], met: MetIncarnations) -> None:
    """Let each worker start again whose shard has had a later incarnation: peers reject it.

    A fail-over of Redis has lost the take-over of a shard, and its last owner, which stood still
    meanwhile, goes on.
    """
    for worker in workers:
        latest, process = met.latest(worker.index, worker.incarnation), worker.process
        is_outdated = worker.is_ready and worker.incarnation < latest
        if is_outdated and process is not None and not process.is_stopping:
            log.warning(
                "worker of an earlier incarnation; it starts again",
                name=worker.name,
                incarnation=worker.incarnation,
                latest=latest,
            )
            process.stop()
