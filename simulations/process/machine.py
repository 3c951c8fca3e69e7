"""Machine: the host on which a broker process starts and dies; its disk stays. The network connects
machines; faults concern both."""

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from flowguard.flow import Cost
from flowguard.flow.load.signals import TICK_S
from flowguard.node.journal import Batch
from simulations.draws import Draws
from simulations.process.broker import Broker
from simulations.process.counters import MachineCounters
from simulations.process.disk import Disk
from simulations.scenario import Fault

if TYPE_CHECKING:
    from simulations.world import World


def name_of(index: int) -> str:
    return f"node-{index}"


@final
class Machine:
    """One node of the cluster; `broker` is None while no process runs there."""

    def __init__(self, world: "World", index: int) -> None:
        self.world = world
        self.index = index
        self.name = name_of(index)
        self.disk = Disk(world.scenario.store, Draws(world.scenario.seed, f"{self.name}: commits"))
        self.cost = Cost(world.settings)
        self.counters = MachineCounters()
        self.slowness = 1.0
        """The factor by which the loop's work takes longer than planned."""
        self.broker: Broker | None = None
        self.deaths_count = 0
        """Number of processes that died of memory."""
        self._lives = 0
        self._held_since_s: float | None = None

    # --- life --------------------------------------------------------------------------------

    def start(self, _: None = None) -> None:
        """Start a process, unless one runs."""
        if self.broker is None:
            self._lives += 1
            self.broker = Broker(self, self._lives)
            self.world.on_life()

    def kill(self, restart_s: float | None = None) -> None:
        """End the process as soon as its current work is done, which cannot be interrupted."""
        broker = self.broker
        if broker is not None and not broker.loop.ended:
            world = self.world
            world.engine.at(max(world.engine.now_s, broker.loop.clock_s), self._bury, broker)
            if restart_s is not None:
                world.engine.at(broker.loop.clock_s + restart_s, self.start, None)

    def run_out_of_memory(self) -> None:
        """Kill the process for want of memory, as the kernel does."""
        self.deaths_count += 1
        self.kill(self.world.scenario.node.restart_s)

    def _bury(self, broker: Broker) -> None:
        if broker is self.broker:
            self.broker = None
            self._held_since_s = None
            self.counters.busy_s += broker.loop.busy_s
            self.world.on_life()
            broker.die()

    # --- commits -----------------------------------------------------------------------------

    def commit(self, batch: Batch, now_s: float, done: Callable[[Batch], None]) -> None:
        """Store a batch on this disk and on its replicas, then call `done`."""
        self._held_since_s = now_s
        self._try(batch, now_s, done)

    def _try(self, batch: Batch, now_s: float, done: Callable[[Batch], None]) -> None:
        world = self.world
        peers = world.replicas_of(self.index)
        stuck = self.disk.stopped or any(
            not world.reaches(self.index, peer.index) for peer in peers
        )
        if stuck:
            world.engine.at(
                max(now_s, world.engine.now_s) + TICK_S,
                lambda _: self._try(batch, world.engine.now_s, done),
                None,
            )
            return
        round_trip_s = 2.0 * world.scenario.network.peer_latency_s
        count = len(batch.ops)
        times_s = [self.disk.commit_s(count)]
        times_s += [round_trip_s + peer.disk.commit_s(count) for peer in peers]
        self._held_since_s = None
        world.engine.at(now_s + max(times_s), done, batch)

    def replication_age_s(self, now_s: float) -> float:
        """Time that a commit has waited for a replica that does not answer."""
        since_s = self._held_since_s
        if since_s is None or self.disk.stopped:
            return 0.0
        return max(0.0, now_s - since_s)


@final
class Network:
    """Links between nodes, by their indices; clients reach every living node.

    A link that is up loses no message, and keeps the order: latencies are constant.
    """

    def __init__(self) -> None:
        self._cuts: dict[frozenset[int], int] = {}
        """The number of faults that cut a link."""

    def is_up(self, one: int, other: int) -> bool:
        return frozenset((one, other)) not in self._cuts

    def cut(self, one: int, other: int) -> None:
        link = frozenset((one, other))
        self._cuts[link] = self._cuts.get(link, 0) + 1

    def heal(self, one: int, other: int) -> None:
        link = frozenset((one, other))
        self._cuts[link] -= 1
        if not self._cuts[link]:
            del self._cuts[link]


@final
class Faults:
    def __init__(self, world: "World") -> None:
        self._world = world

    def schedule(self) -> None:
        engine = self._world.engine
        for fault in self._world.scenario.faults:
            engine.at(fault.at_s, self._begin, fault)
            if fault.until_s is not None:
                engine.at(fault.until_s, self._end, fault)

    def _begin(self, fault: Fault) -> None:
        machine = self._world.machines[fault.node]
        match fault.kind:
            case "node_down":
                machine.kill()
            case "pause":
                assert fault.until_s is not None
                if machine.broker is not None:
                    machine.broker.loop.pause(fault.until_s)
            case "link_cut":
                for peer in self._peers(fault):
                    self._world.network.cut(fault.node, peer)
            case "slow_cpu":
                machine.slowness *= fault.factor
            case "slow_store":
                machine.disk.factor *= fault.factor
            case "store_stop":
                machine.disk.stopped = True

    def _end(self, fault: Fault) -> None:
        machine = self._world.machines[fault.node]
        match fault.kind:
            case "node_down":
                machine.start()
            case "pause":
                pass  # The loop goes on by itself.
            case "link_cut":
                for peer in self._peers(fault):
                    self._world.network.heal(fault.node, peer)
            case "slow_cpu":
                machine.slowness /= fault.factor
            case "slow_store":
                machine.disk.factor /= fault.factor
            case "store_stop":
                machine.disk.stopped = False

    def _peers(self, fault: Fault) -> list[int]:
        if fault.peer is not None:
            return [fault.peer]
        return [index for index in range(self._world.scenario.nodes) if index != fault.node]
