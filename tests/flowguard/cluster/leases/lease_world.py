"""A world of machines whose shards have their sessions in a real Redis, for the model check.

Real are: `RedisStore`, `ClusterTable`, all functions in Redis, `assigned`, `SignsOfLife`, and the
objects of `flowguard.cluster`. The model has processes, connections, clients, and time.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from flowguard.cluster.members import owner_among
from flowguard.config import Settings
from flowguard.errors import StallError
from tests.flowguard.cluster.clients import ClientConnection, Publisher, Subscriber
from tests.flowguard.cluster.leases.fibres import Fibre
from tests.flowguard.cluster.leases.lease_ledger import LeaseLedger, LeasePublisher
from tests.flowguard.cluster.leases.machines import LeaseParts, Machine, Process, name_of
from tests.flowguard.cluster.leases.model_redis import Exchange, ModelRedis, calls_of
from tests.flowguard.cluster.leases.shard_node import LoadedStore, ShardNode
from tests.flowguard.cluster.world import Wire, tell_of_death

if TYPE_CHECKING:
    from flowguard.stores.redis.connection.link import RedisLink

COUNTS = Counter[str]()
"""Counts of events in all schedules of this process."""
SLICE_S = 0.1
TIMEOUT_S = 2.0
"""Time after which a store waits no longer for an answer of Redis."""
REST_S = 40.0
"""Time within which everything must come to rest after the faults."""
PREFIX = "m"
SHARDS_MAX = 4


class LeaseWorld:
    def __init__(
        self, redis: ModelRedis, random: Random, shards: int, lease_s: float, parts: LeaseParts
    ) -> None:
        self.redis = redis
        self.random = random
        self.parts = parts
        self.shards_count = shards
        self.counts = COUNTS
        self.ledger = LeaseLedger(COUNTS)
        self.names = [name_of(shard) for shard in range(shards)]
        self._settings = {
            shard: Settings.model_validate(
                {
                    "store": {"kind": "redis", "durability": "memory"},
                    "cluster": {"shards": shards},
                    "redis": {
                        "url": redis.url,
                        "prefix": PREFIX if shard is None else f"{PREFIX}.{shard}",
                        "lease_s": lease_s,
                        "takeover": True,
                        "timeout_s": 60.0,
                    },
                }
            )
            for shard in (None, *range(shards))
        }
        self.lease_s = lease_s
        self.tokens = 0
        self.epochs: dict[int, int] = {}
        """The highest incarnation of each shard that was ever given."""
        self.owners: dict[int, str] = {}
        """The token that owns each shard, according to Redis."""
        self.epoch_of: dict[str, int] = {}
        self.machines: dict[str, Machine] = {}
        self.processes: list[Process] = []
        """Processes that have a node, until they end."""
        self.owners_since: set[Process] = set()
        """Processes that have had a node since the last snapshot."""
        self.wires: list[tuple[Wire, frozenset[str]]] = []
        self.split: set[frozenset[str]] = set()
        """Pairs of machines that cannot reach each other."""
        self.notices = deque[tuple[ShardNode, str, int]]()
        self.is_redis_paused = False
        self.without_redis: set[str] = set()
        """Machines that cannot reach Redis."""
        self.late: list[Sequence[Any]] = []
        """Commands that Redis executes when it goes on, although their senders have given up."""
        self.generation = 0
        """Number of fail-overs."""
        self.has_snapshot = False
        self.lose_answer = 0.0
        """Probability that a connection breaks after a request."""
        self.current: Fibre | None = None
        self.is_disturbing = True
        """True if exchanges are points at which others run."""
        self._links: list[RedisLink] = []
        self.publishers = [self._client(LeasePublisher, f"p{i}") for i in range(4)]
        self.subscribers = [self._client(Subscriber, f"s{i}") for i in range(5)]
        self.clients = [*self.publishers, *self.subscribers]

    def _client(self, kind: Callable[..., Any], name: str) -> Any:
        return kind(name, owner_among(self.names, name), self.ledger)

    def settings_of(self, shard: int | None) -> Settings:
        return self._settings[shard]

    @property
    def now_s(self) -> float:
        return self.redis.now_s

    # --- Redis -----------------------------------------------------------------------------------

    def through(self, exchange: Exchange) -> Exchange:
        """Return an exchange of a link with all that may happen to it."""

        def exchanged(link: "RedisLink", commands: Sequence[Any]) -> list[Any]:
            fibre, generation = self.current, self.generation
            if fibre is None:
                return exchange(link, commands)
            if link not in self._links:
                self._links.append(link)
            self._rest(fibre)
            self._wait_for_redis(fibre, link, commands)
            if self._machine_of(fibre).name in self.without_redis:
                self._lose(link, "no route")
            if generation != self.generation or link._connection is None:
                self._lose(link, "the server has failed over")
            answers = exchange(link, commands)
            self._observe(commands, answers)
            if self.is_disturbing and self.random.random() < self.lose_answer:
                self._lose(link, "the answer is lost")
            self._rest(fibre)
            return answers

        return exchanged

    def _rest(self, fibre: Fibre) -> None:
        if self.is_disturbing and self.random.random() < 0.25:
            fibre.pause()

    def _wait_for_redis(self, fibre: Fibre, link: "RedisLink", commands: Sequence[Any]) -> None:
        until_s = self.now_s + TIMEOUT_S
        while self.is_redis_paused:
            if self.now_s >= until_s:
                self.late.append(commands)
                self._lose(link, "timeout", TimeoutError())
            fibre.pause(self.now_s + SLICE_S)

    def _lose(self, link: "RedisLink", why: str, cause: BaseException | None = None) -> None:
        link.close()
        self.counts["exchanges that failed"] += 1
        raise StallError(why) from cause

    def _observe(self, commands: Sequence[Any], answers: Sequence[Any]) -> None:
        """Check what Redis has executed: incarnations, and commits of old owners."""
        from flowguard.stores.redis.lua import functions

        for name, words, answer in calls_of(commands, answers):
            keys = words[3 : 3 + words[2]]
            rest = words[3 + words[2] :]
            if name == functions.CLAIM and len(answer) == 4:
                self._claimed(_shard_of(keys[0]), rest[0], answer[3])
            elif name == functions.COMMIT_STREAM and -1 not in answer[:1]:
                shard, token = _shard_of(keys[0]), rest[0]
                if rest[2] > len(answer) // 3 and token != self.owners.get(shard):
                    self.ledger.fail(f"I4: a commit of {token} was taken, and others own {shard}")

    def _claimed(self, shard: int, token: str, epoch: int) -> None:
        if token not in self.epoch_of:
            if epoch <= self.epochs.get(shard, 0):
                self.ledger.fail(f"incarnation {epoch} of shard {shard} after {self.epochs[shard]}")
            self.epochs[shard] = self.epoch_of[token] = epoch
        self.owners[shard] = token

    def pause_redis(self) -> None:
        self.is_redis_paused = True

    def resume_redis(self) -> None:
        self.is_redis_paused = False
        late, self.late = self.late, []
        for commands in late:
            self._observe(commands, self.redis.execute(commands))

    def snapshot(self) -> None:
        self.redis.snapshot()
        self.ledger.snapshot()
        self.owners_since = set(self.processes)
        self.has_snapshot = True

    def fail_over(self) -> None:
        """The replica becomes the primary; what it lacks is lost."""
        if not self.has_snapshot or self.is_redis_paused:
            return
        self.has_snapshot = False
        self.counts["fail-overs"] += 1
        self.redis.fail_over()
        self.generation += 1
        for link in self._links:
            link.close()
        self._links.clear()
        owners = frozenset(self.owners_since)
        asked = {
            (each.name, each.asked[2].decode())
            for each in self.subscribers
            if each.asked is not None
        }
        self.ledger.lost_tail(
            lambda: any(each.was_disturbed or each.stands for each in owners),
            {entry[:2] for each in self.processes for entry in each.under_way},
            asked,
            self.publishers,
        )
        before = self.owners
        self.owners = {
            shard: self.redis.owner(f"{PREFIX}.{shard}") for shard in range(self.shards_count)
        }
        for each in self.processes:
            each.is_back |= before.get(each.shard) != each.token == self.owners[each.shard]

    # --- machines --------------------------------------------------------------------------------

    @property
    def all_machines(self) -> list[Machine]:
        return list(self.machines.values())

    @property
    def all_processes(self) -> list[Process]:
        return [each for machine in self.all_machines for each in machine.processes.values()]

    def _machine_of(self, fibre: Fibre) -> Machine:
        for machine in self.all_machines:
            if machine.fibre is fibre:
                return machine
            if any(process.fibre is fibre for process in machine.processes.values()):
                return machine
        raise AssertionError("a fibre without a machine")

    def start(self, name: str, shards_max: int = SHARDS_MAX) -> None:
        if name not in self.machines:
            self.machines[name] = Machine(self, name, shards_max)

    def kill(self, name: str) -> None:
        machine = self.machines.pop(name, None)
        if machine is not None:
            self.counts["machines killed"] += 1
            machine.kill()

    def node(self, process: Process, loaded: LoadedStore) -> ShardNode:
        """Return the node of a process that has the lease and has read its sessions."""
        node: ShardNode = self.parts.links.node(  # type: ignore[assignment]
            process.name, process.incarnation, loaded, self.names, self.ledger, 8, self.parts.links
        )
        node.is_stopped = lambda: process.stands
        self.processes.append(process)
        self.owners_since.add(process)
        return node

    def crashed(self, node: ShardNode) -> None:
        node.has_crashed = True
        self.processes = [each for each in self.processes if each.node is not node]
        for wire, _ in self.wires:
            for side in wire.sides:
                if side.node is node:
                    wire.close(side)
        for client in self.clients:
            if client.connection is not None and client.connection.node is node:
                client.connection = None

    def nodes_of(self, name: str) -> list[Process]:
        return [each for each in self.processes if each.name == name and each.node is not None]

    # --- progress --------------------------------------------------------------------------------

    @property
    def fibres(self) -> Iterator[Fibre]:
        """Fibres that have something to do now."""
        for machine in self.all_machines:
            if not machine.is_paused:
                yield machine.fibre
                for process in machine.processes.values():
                    if not process.is_paused:
                        yield process.fibre

    def step(self, fibre: Fibre) -> bool:
        if fibre.is_done or fibre.wake_s > self.now_s:
            return False
        self.current = fibre
        try:
            fibre.step()
        finally:
            self.current = None
        for name in [name for name, each in self.machines.items() if each.fibre.is_done]:
            self.counts["machines that left"] += 1
            del self.machines[name]
        return True

    def work(self, steps: int) -> None:
        random = self.random
        for _ in range(steps):
            kind = random.randrange(8)
            if kind < 3 and self.wires:
                wire, _ = random.choice(self.wires)
                index = random.randrange(2)
                wire.send(index)
                if random.randrange(2):
                    wire.receive(1 - index, self.now_s)
            elif kind < 5:
                self.client_step(random.choice(self.clients))
            elif kind < 7:
                fibres = list(self.fibres)
                if fibres:
                    self.step(random.choice(fibres))
            elif not (self.notices and random.randrange(2) and self.notify()):
                self.dial()

    def pass_time(self, seconds: float, steps: int = 12) -> None:
        """Let time pass; each process may run in each slice."""
        for _ in range(round(seconds / SLICE_S)):
            self.redis.advance(SLICE_S)
            for fibre in list(self.fibres):
                self.step(fibre)
            self.work(steps)
            self.tick()

    def tick(self) -> None:
        for process in self.processes:
            if process.node is not None and process.node.runs:
                process.node.tick(self.now_s)
        self.wires = [each for each in self.wires if each[0].is_open]

    def dial(self) -> bool:
        done = False
        for process in list(self.processes):
            node = process.node
            if node is None or not node.runs:
                continue
            for peer in list(node.mesh.undialled()):
                found = [
                    each
                    for each in self.nodes_of(peer)
                    if frozenset({each.machine.name, process.machine.name}) not in self.split
                ]
                if found:
                    other = self.random.choice(found)
                    assert other.node is not None
                    ends = frozenset({process.machine.name, other.machine.name})
                    self.wires.append((Wire(node, other.node), ends))
                    self.counts["links opened"] += 1
                    done = True
        return done

    def notify(self) -> bool:
        return tell_of_death(self.notices)

    def client_step(self, client: Publisher | Subscriber) -> bool:
        connection = client.connection
        if connection is None:
            found = self.nodes_of(client.owner)
            if not found:
                return False
            node = self.random.choice(found).node
            assert node is not None
            client.connect(ClientConnection(node))
            return True
        if connection.to_client:
            packet = connection.to_client.popleft()
            if packet[0] == "suback" and isinstance(client, Subscriber):
                self.ledger.subscribed(client.name, packet[2].decode())
            client.receive(packet)
            return True
        if not connection.node.runs:
            if self.random.random() < 0.02:  # It waits no longer.
                client.connection = None
            return False
        return bool(connection.to_node) and connection.node.serve(connection)

    def split_off(self, first: str, second: str) -> None:
        pair = frozenset({first, second})
        if len(pair) == 2:
            self.split.add(pair)
            for wire, ends in self.wires:
                if ends == pair:
                    wire.cut()

    # --- the end ---------------------------------------------------------------------------------

    def heal(self, names: Sequence[str]) -> None:
        """End all faults; the cluster has these machines again."""
        self.resume_redis()
        self.without_redis.clear()
        self.split.clear()
        self.lose_answer = 0.0
        for machine in self.all_machines:
            if machine.record.is_leaving:
                self.kill(machine.name)
            machine.is_paused = False
            for process in machine.processes.values():
                process.is_paused = False
        for name in names:
            self.start(name)

    def rest(self) -> None:
        """Let time pass until nothing is left to do. Fails if that takes too long."""
        until_s = self.now_s + REST_S
        why = "the shards have no places"
        while self.now_s < until_s:
            self.pass_time(0.5, 0)
            why = self.unrest()
            self.settle()
            if not why:
                return
        self.ledger.fail(f"no rest: {why}")

    def settle(self) -> None:
        """Let connections and commits work, without time, until they have nothing to do."""
        for _ in range(300):
            if not any(list(self._everything())):
                return

    def _everything(self) -> Iterator[bool]:
        yield self.dial()
        yield self.notify()
        for wire, _ in self.wires:
            for index in (0, 1):
                yield wire.send(index)
                yield wire.receive(index, self.now_s)
        for process in list(self.processes):
            if process.node is not None and process.node.has_work:
                process.fibre.wake_s = 0.0
                yield not process.stands and self.step(process.fibre)
        for client in self.clients:
            yield self.client_step(client)

    def unrest(self) -> str:
        """Return what is not as it is to be in the end, or ""."""
        loads = Counter[str]()
        for shard in range(self.shards_count):
            found = self.nodes_of(name_of(shard))
            if len(found) != 1:
                return f"shard {shard} has {len(found)} owners"
            loads[found[0].machine.name] += 1
        parts = [loads[name] for name in self.machines]
        if max(parts) - min(parts) > 1:
            return f"the shards are not in balance: {dict(loads)}"
        for process in self.processes:
            streams = [] if process.node is None else process.node.mesh.outgoing.items()
            for peer, stream in streams:
                if stream.messages_count:
                    return f"{process.name} has messages for {peer}"
        waiting = [each.name for each in self.publishers if each.outstanding]
        waiting += [each.name for each in self.subscribers if each.asked is not None]
        return f"{waiting} wait for an answer" if waiting else ""

    def check_end(self) -> None:
        """All invariants, after `rest`: also what Redis has is compared."""
        self.ledger.check_all()
        for process in self.processes:
            process.is_stopping = True
        # Other processes read everything.
        self.rest()
        self.ledger.check_all()

    def close(self) -> None:
        self.is_disturbing = False
        with suppress(BaseException):
            for machine in self.all_machines:
                machine.kill()
        for link in self._links:
            link.close()


def _shard_of(meta: bytes) -> int:
    return int(meta.decode().removeprefix(f"{PREFIX}.").partition(":")[0])
