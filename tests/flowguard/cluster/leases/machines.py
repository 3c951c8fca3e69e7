"""Machines of the model: a supervisor with its sign of life, and the processes of its shards."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from flowguard.cluster.incarnations import MetIncarnations
from flowguard.cluster.shards import NodeRecord, SignsOfLife, assigned, next_move
from flowguard.errors import StallError, StoreError
from tests.flowguard.cluster.leases.fibres import Fibre
from tests.flowguard.cluster.leases.shard_node import Entry, LoadedStore, ShardNode
from tests.flowguard.cluster.node import Parts, Then

if TYPE_CHECKING:
    from flowguard.stores.redis import RedisStore
    from flowguard.stores.redis.cluster_table import ClusterView
    from tests.flowguard.cluster.leases.lease_world import LeaseWorld

INTERVAL_S = 0.5
LOOK_S = 0.1


def name_of(shard: int) -> str:
    return f"w{shard}"


class Judge(Protocol):
    def met(self, now_s: float) -> None: ...

    def living(self, ages_s: dict[str, float]) -> set[str]: ...


@dataclass
class LeaseParts:
    """What a world is made of; a mutant replaces some."""

    links: Parts
    process: "type[Process]"
    judge: Callable[["Machine", float, float], Judge] = lambda _, lease_s, now_s: SignsOfLife(
        lease_s, now_s
    )
    decide: Callable[..., dict[int, str]] = assigned
    text: tuple[tuple[str, str], ...] = ()
    """Changes of the functions in Redis."""
    rewrites: bool = True
    """False: confirmed commits that a fail-over lost are not written again."""
    doubts: bool = True
    """False: a broker without Redis answers what needs no commit as if nobody could take over."""


class Process:
    """One process of a shard: it waits for the lease, reads its sessions, and commits."""

    def __init__(self, machine: "Machine", shard: int) -> None:
        self.machine = machine
        self.world: LeaseWorld = machine.world
        self.shard = shard
        self.name = name_of(shard)
        self.token = ""
        self.incarnation = 0
        self.node: ShardNode | None = None
        self.is_paused = False
        self.is_stopping = False
        self.failure = ""
        """Why it ended, or "" if it was told to or runs."""
        self.was_disturbed = False
        """True if it was killed or stood still: it may not have written a lost tail again."""
        self.is_back = False
        """True if a fail-over has lost that it had a successor."""
        self._entries: list[Entry] = []
        """Queue entries that it has read or committed."""
        self.under_way: list[Entry] = []
        """Queue entries of the commit whose answer it awaits."""
        self.fibre = Fibre(self._run)

    @property
    def stands(self) -> bool:
        return self.is_paused or self.machine.is_paused

    @property
    def has_ended(self) -> bool:
        return self.fibre.is_done

    def sleep(self, seconds: float) -> None:
        if self.is_stopping and self.node is None:
            raise StoreError("stopped while it waits")
        self.fibre.pause(self.world.now_s + seconds)

    def kill(self) -> None:
        self.was_disturbed = True
        self.fibre.kill()
        self._end()

    def _run(self) -> None:
        try:
            self._live()
        except StoreError as error:
            self.failure = f"{type(error).__name__}: {error}"
            self.was_disturbed = True
            self.world.counts[f"processes ended: {type(error).__name__}"] += 1
        self._end()

    def _end(self) -> None:
        if self.node is not None and not self.node.has_crashed:
            self.world.crashed(self.node)

    def _live(self) -> None:
        store = self.open()
        self.incarnation = store.incarnation
        self.world.counts["incarnations"] += 1
        loaded = self.load(store)
        self.node = self.world.node(self, loaded)
        while not (self.is_stopping and not self.node.has_work):
            if self.node.has_work:
                self.commit(store, self.node)
            store.maintain()
            self.fibre.pause(self.world.now_s if self.node.has_work else self.world.now_s + LOOK_S)
        self._end()
        store.close()

    def open(self) -> "RedisStore":
        from flowguard.stores.redis import RedisStore

        world = self.world
        world.tokens += 1
        self.token = f"t{world.tokens}"
        return RedisStore(
            world.settings_of(self.shard),
            token=self.token,
            name=f"{self.machine.name}-{world.tokens}",
            clock=lambda: world.now_s,
            sleep=self.sleep,
        )

    def load(self, store: "RedisStore") -> LoadedStore:
        world = self.world
        clients = [each.name for each in world.clients if each.owner == self.name]
        loaded = LoadedStore(clients, [name for name in world.names if name != self.name])
        lacking = loaded.load(store)
        self._entries = list(loaded.entries)
        if world.owners[self.shard] == self.token:  # Else it has read too little, and will end.
            self._report(loaded)
        loaded.entries.clear()
        while lacking:
            try:
                store.commit(lacking)
                break
            except StallError:
                self.sleep(LOOK_S)
        return loaded

    def _report(self, store: LoadedStore) -> None:
        """Compare the ledger with what this owner has."""
        ledger = self.world.ledger
        filters = {client: set(store.subscriptions[client]) for client in store.clients}
        ledger.read(self._entries, filters, store.clients)
        for publisher in self.world.publishers:
            if publisher.owner == self.name:
                ledger.inbound(publisher, store.inbound[publisher.name])

    def commit(self, store: "RedisStore", node: ShardNode) -> None:
        ops, entries, thens = node.begin_commit()
        self.under_way = entries
        while True:
            try:
                fenced = store.commit(ops)
                break
            except StallError:
                self.world.counts["commits that stalled"] += 1
                self.sleep(LOOK_S)
        assert not fenced, "a session has another owner, and the shard has not"
        self.world.counts["commits"] += 1
        self.under_way = []
        self._entries += entries
        if self.is_back:
            self.is_back = False
            self._report(node.store)
        self.world.ledger.committed(entries)
        self.answer(thens)

    def answer(self, thens: list[Then]) -> None:
        for then in thens:
            then(self.world.now_s)


class Machine:
    """A node of the cluster."""

    def __init__(self, world: "LeaseWorld", name: str, shards_max: int) -> None:
        self.world = world
        self.name = name
        self.record = NodeRecord(name, shards_max)
        self.is_paused = False
        self.processes: dict[int, Process] = {}
        self.view: ClusterView | None = None
        self.fibre = Fibre(self._supervise)
        self._retry_s: dict[int, float] = {}
        self._met = MetIncarnations()

    def leave(self) -> None:
        """SIGTERM: it gives its shards away, then ends."""
        self.record = replace(self.record, is_leaving=True)

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.fibre.kill()

    def _supervise(self) -> None:
        from flowguard.stores.redis.cluster_table import ClusterTable

        world = self.world
        pause = self.fibre.pause
        world.tokens += 1
        node_id = f"{self.name}-{world.tokens}"
        while True:
            try:
                settings = world.settings_of(None)
                table = ClusterTable(settings, node_id, lambda: world.now_s, lambda _: pause())
                view = table.meet(self.record, {})
                break
            except StoreError:
                pause(world.now_s + INTERVAL_S)
        judge = world.parts.judge(self, settings.redis.lease_s, world.now_s)
        while True:
            self._apply(view, judge)
            if self.record.is_leaving and not self.processes:
                self._leave(table)
                return
            pause(world.now_s + INTERVAL_S)
            try:
                view = table.meet(self.record, self._claimed())
                judge.met(world.now_s)
            except StoreError:
                world.counts["signs of life that failed"] += 1

    def _leave(self, table: object) -> None:
        try:
            table.leave(self.name)  # type: ignore[attr-defined]
        except StoreError:
            self.world.counts["nodes that left without Redis"] += 1

    def _claimed(self) -> dict[int, int]:
        return {
            shard: process.incarnation
            for shard, process in self.processes.items()
            if process.incarnation and not process.has_ended
        }

    def _apply(self, view: "ClusterView", judge: Judge) -> None:
        """Decide as `ClusterDuty`."""
        before, self.view = self.view, view
        living = judge.living(dict(view.ages_s))
        homes = {shard: home.node for shard, home in view.shards.items()}
        nodes = [view.nodes[name] for name in sorted(living)]
        move = next_move(nodes, homes, self.world.shards_count)
        gives = move.shard if move is not None and move.giver == self.name else None
        self._met.meet(view.shards, nodes)
        self.record = replace(self.record, gives=gives, later=self._met.beyond(view.shards))
        duties = self.world.parts.decide(nodes, homes, self.world.shards_count)
        mine = {shard for shard, name in duties.items() if name == self.name}
        if self.record.is_leaving and mine >= {each for each in homes if homes[each] == self.name}:
            mine = set()  # No other node takes a shard.
        for shard in range(self.world.shards_count):
            self._run_or_stop(shard, is_wanted=shard in mine)
        self._end_outdated()
        for shard, home in view.shards.items():
            last = before.shards.get(shard) if before is not None else None
            if last is not None and last.incarnation < home.incarnation:
                self._tell_death(shard, last.incarnation)

    def _run_or_stop(self, shard: int, *, is_wanted: bool) -> None:
        process = self.processes.get(shard)
        if process is not None and process.has_ended:
            self._tell_death(shard, process.incarnation)
            del self.processes[shard]
            self._retry_s[shard] = self.world.now_s + LOOK_S
            process = None
        if is_wanted and process is None and self._retry_s.get(shard, 0.0) <= self.world.now_s:
            self.processes[shard] = self.world.parts.process(self, shard)
            self.world.counts["processes started"] += 1
        elif not is_wanted and process is not None:
            process.is_stopping = True

    def _end_outdated(self) -> None:
        for shard, process in self.processes.items():
            latest = self._met.latest(shard, process.incarnation)
            if process.node is not None and process.incarnation < latest:
                self.world.counts["old owners restarted"] += not process.is_stopping
                process.is_stopping = True

    def _tell_death(self, shard: int, incarnation: int) -> None:
        if incarnation:
            for process in self.processes.values():
                if process.shard != shard and process.node is not None:
                    self.world.notices.append((process.node, name_of(shard), incarnation))
