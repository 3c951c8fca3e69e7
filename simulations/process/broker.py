"""Broker: one process of flowguard, with its real `Guard` and the cost of its work.

All decisions are flowguard's: turns, gate, windows, pool, journal, observer and policy are the
objects of `flowguard serve`. The model covers the duration of work (`NodePlan`) and of a commit
(`Disk`), the memory that it all needs, and the tasks between the turns: commits and the tick.

A process that dies takes its connections and all uncommitted data with it; sessions stay.
"""

from math import inf
from typing import Final, final

from flowguard.cluster import Cluster, PressureRecord
from flowguard.config import MIB
from flowguard.flow import Admission, Guard
from flowguard.flow.load.signals import TICK_JITTER, TICK_S
from flowguard.node.journal import Batch, Journal
from flowguard.node.loop.turns import ROUND_TURN_S
from flowguard.node.upkeep.outage import LATE_S
from flowguard.node.upkeep.timers import Wheel
from flowguard.session.chores import Chores
from simulations.crowd.connection import (
    CONNECTED,
    CONNECTING,
    ENDED,
    OPENED,
    Connection,
    Packet,
)
from simulations.crowd.topics import Message
from simulations.draws import random_for
from simulations.process.counters import MachineCounters
from simulations.process.entrance import Entrance
from simulations.process.host import ProcessHost, ProcessWorld
from simulations.process.loop import Loop
from simulations.process.packets import Packets
from simulations.process.replays import Replays
from simulations.process.sockets import AcceptorTurns, BrokerPorts, BrokerTurns, Listener

KEEP_ALIVE_GRACE: Final = 1.5
"""[MQTT-3.1.2-22]"""
UNFINISHED_SHARE: Final = 0.25
"""Share of a node's memory for bytes in process, if the scenario has none; see `bounds.WORK`."""


@final
class Broker:
    """One run of the process on a machine; implements `Work` and `ServerEnd`."""

    def __init__(self, machine: ProcessHost, incarnation: int) -> None:
        world: ProcessWorld = machine.world
        plan = world.scenario.node
        settings = world.settings
        if settings.unfinished_bytes_max is None:
            free_bytes = settings.memory_objective * plan.memory_max_bytes - plan.process_bytes
            # The journal holds the bytes in process a second time.
            share_bytes = int(min(UNFINISHED_SHARE * plan.memory_max_bytes, free_bytes / 2))
            share_bytes = max(MIB, share_bytes)
            settings = settings.model_copy(update={"unfinished_bytes_max": share_bytes})
        self.machine = machine
        self.world = world
        self.engine = world.engine
        self.plan = plan
        self.node = machine.index
        cluster = None
        if world.scenario.nodes > 1:
            cluster = Cluster(machine.name, incarnation, settings)
            cluster.path = world.path_of(machine.index)
        self.cluster = cluster
        self.random = random_for(
            world.scenario.seed, f"{machine.name}, life {incarnation}: tick, hints, noise"
        )
        self.guard: Guard[Connection] = Guard(
            settings,
            plan.memory_max_bytes,
            self._decided,
            draw=self.random.random,
            is_full=self._is_full,
            cluster=None if cluster is None else (cluster, self._tell),
        )
        self.journal = Journal.create(settings, self.guard.window, self.guard.observer)
        self.counters: MachineCounters = machine.counters
        self.loop: Loop = Loop(self.engine, self, self.guard.observer, wake_s=plan.wake_s)
        self.entrance = Entrance(self)
        self.wheel: Wheel[Connection] = Wheel(self.engine.now_s)
        self.connections: dict[Connection, None] = {}
        """Connections that are accepted and have not ended."""
        self.connected_count = 0
        """Number of `connections` whose CONNECT was accepted."""
        self.ports = BrokerPorts(self)
        self.schedule = self.ports.schedule
        self.listener = Listener(self)
        self.chores = Chores(None)
        self.packets = Packets(
            machine, self.guard, self.journal, self.loop, self.chores, self.spend
        )
        self.replays = Replays(machine, self.guard.window, self.loop, self.spend)
        self._is_immediate = world.scenario.store.immediate
        self.turns = self._make_turns()
        self._batch: Batch | None = None
        self._batch_since_s = 0.0
        self._batch_is_done = False
        self._tick_is_due = False
        self._ticked = False
        self._worked_s = 0.0
        """Work time of the loop that the observer already has."""
        self._next_tick()

    def _make_turns(self) -> BrokerTurns:
        loop, plan = self.loop, self.plan
        kind = AcceptorTurns if plan.accepts_first else BrokerTurns
        turns = kind(
            self.ports,
            lambda: loop.clock_s,
            self.journal,
            self.replays.pages,
            self.chores,
            immediate=self._is_immediate,
            round_turn_s=ROUND_TURN_S if plan.takes_turns else inf,
        )
        if isinstance(turns, AcceptorTurns):
            turns.broker = self
        return turns

    # --- from the network --------------------------------------------------------------------

    def knock(self, connection: Connection) -> bool:
        return self.listener.knock(connection)

    def hang_up(self, connection: Connection) -> None:
        connection.ended_by_peer = True
        if OPENED <= connection.state < ENDED:
            self._announce(connection)

    def receive(self, connection: Connection, packet: Packet) -> None:
        """Receive a packet. The connection may have ended meanwhile."""
        if connection.state != CONNECTED:
            return
        self.packets.add(connection, packet)
        self._announce(connection)

    def acknowledge(self, connection: Connection, count: int) -> None:
        """Receive PUBACKs for queued messages."""
        if connection.state == CONNECTED and connection.replay is not None:
            connection.replay.unread += count
            self._announce(connection)

    def ping(self, connection: Connection) -> None:
        if connection.state == CONNECTED:
            connection.pings += 1
            self._announce(connection)

    def forward(self, message: Message, deliveries: int) -> None:
        """Another node forwards a message for subscribers of this one."""
        if self.loop.ended:
            self.world.lose(message, deliveries)
        else:
            self.ports.forward(message, deliveries)
            self.loop.wake()

    def hear(self, record: PressureRecord) -> None:
        if self.cluster is not None and not self.loop.ended:
            self.cluster.merge(record, self.engine.now_s)

    def _decided(self, connection: Connection, admission: Admission, now_s: float) -> None:
        self.entrance.follow(connection, admission, now_s)

    def _is_full(self) -> bool:
        return self.journal.is_full

    def _tell(self, record: PressureRecord) -> None:
        self.world.gossip(self.node, record, self.loop.clock_s)

    def _announce(self, connection: Connection) -> None:
        if not connection.is_ready:
            connection.is_ready = True
            self.ports.announce(connection)
            self.loop.wake()

    # --- a turn ------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        return bool(
            self.ports.is_ready
            or self.listener.is_ready
            or self.turns.has_waiting
            or self.entrance.is_serving
            or self.guard.has_work
            or self.journal.is_answering
            or len(self.chores)
            or self.replays.is_ready
        )

    @property
    def is_store_free(self) -> bool:
        return self._batch is None

    def check(self) -> None:
        invariants = self.world.invariants
        if invariants is not None:
            invariants.after_step(self.node)

    def read(self, connection: Connection, now_s: float) -> None:
        """Read a socket once. The end of its stream comes after everything that was sent before."""
        state = connection.state
        if state == OPENED:
            self.entrance.offer(connection, now_s)
            if connection.ended_by_peer:
                self._announce(connection)
        elif connection.ended_by_peer:
            self.spend(self.plan.close_s)
            self.end(connection, now_s)
        elif state == CONNECTED:
            connection.last_received_s = now_s
            if connection.pings:
                self.spend(connection.pings * self.plan.ping_s)
                connection.pings = 0
            if connection.replay is not None:
                self.replays.acknowledged(connection, connection.replay, now_s)
            if connection.inbound is not None:
                started_s = self.loop.clock_s
                if connection.inbound.waiting:
                    self.spend(self.plan.read_s)
                if not connection.queued:
                    self.packets.run(connection, now_s)
                connection.inbound.window.worked(self.loop.clock_s - started_s)

    def end(self, connection: Connection, now_s: float, *, refused: bool = False) -> None:
        """End the connection; `refused` is True if a rejection is being sent."""
        state = connection.state
        if state == ENDED:
            return
        if CONNECTING <= state < CONNECTED and not refused:
            self.counters.discarded_count += 1
        self.entrance.leave(connection)
        connection.state = ENDED
        self.connections.pop(connection, None)
        if state != CONNECTED:
            self.entrance.ended(connection, now_s)
            return
        self.connected_count -= 1
        self.wheel.forget(connection)
        self.guard.gone(connection, now_s)
        self.packets.forget(connection)
        self.replays.forget(connection)
        connection.population.left(connection)

    def watch(self, connection: Connection, now_s: float) -> None:
        """Watch the keep-alive of a connection that is connected from now on."""
        keep_alive_s = connection.population.plan.keep_alive_s
        self.connected_count += 1
        connection.last_received_s = now_s
        if keep_alive_s:
            self.wheel.watch(connection, now_s + KEEP_ALIVE_GRACE * keep_alive_s)

    # --- tasks -------------------------------------------------------------------------------

    def run_tasks(self) -> None:
        """Run commits and the tick; see `Work`."""
        if self._tick_is_due:
            self._tick_is_due = False
            self._tick()
        if self._batch_is_done:
            self._complete()
        self.replays.read(self.loop.clock_s)
        if self._batch is None and not self._is_immediate:
            if self.journal.is_due(ticked=self._ticked):
                self._commit()
            self._ticked = False
        self.turns.awaited = False
        self.check()

    def _commit(self) -> None:
        """Give the waiting operations to the store, one batch at a time."""
        clock_s = self.loop.clock_s
        batch = self.journal.take(clock_s)
        assert batch is not None
        self._batch, self._batch_since_s = batch, clock_s
        self.machine.commit(batch, clock_s, self._on_commit)

    def _on_commit(self, batch: Batch) -> None:
        """The disk and the replicas have stored the batch."""
        if not self.loop.ended:
            assert batch is self._batch
            self._batch_is_done = self.turns.awaited = True
            self.loop.wake()

    def _complete(self) -> None:
        batch = self._batch
        assert batch is not None
        self._batch, self._batch_is_done = None, False
        self.spend(self.plan.handoff_s)
        now_s = self.loop.clock_s
        self.journal.durable(batch, now_s, now_s - self._batch_since_s)

    def _next_tick(self) -> None:
        self.engine.at(
            self.loop.clock_s + TICK_S * self.random.uniform(*TICK_JITTER), self._on_tick, None
        )

    def _on_tick(self, _: None) -> None:
        if not self.loop.ended:
            self._tick_is_due = True
            self.loop.wake()

    def _tick(self) -> None:
        """Observe the load, deadlines and the listener, and let the policy decide."""
        now_s = self.loop.clock_s
        memory_bytes = self.memory_bytes
        self.guard.observe_memory(memory_bytes)
        self.guard.observer.worked(self.loop.busy_s - self._worked_s)
        self._worked_s = self.loop.busy_s
        self.guard.observer.replication(self.machine.replication_age_s(now_s))
        self.journal.observe(now_s)
        if self.journal.committing_s(now_s) > LATE_S:
            self.entrance.free_abandoned(now_s)
        self.guard.tick(now_s)
        for connection in self.wheel.due(now_s):
            self._look_at(connection, now_s)
        self.listener.sweep()
        self.turns.end_slice(now_s)
        self._ticked = True
        self._next_tick()
        if memory_bytes > self.plan.memory_max_bytes:
            self.machine.run_out_of_memory()

    def _look_at(self, connection: Connection, now_s: float) -> None:
        """Disconnect a client that was silent for too long."""
        inbound = connection.inbound
        paused = inbound is not None and inbound.waiting and not inbound.window.room()
        if paused or connection.is_ready:
            connection.last_received_s = now_s  # The broker does not read: not its silence.
        grace_s = KEEP_ALIVE_GRACE * connection.population.plan.keep_alive_s
        due_s = connection.last_received_s + grace_s
        if due_s > now_s:
            self.wheel.watch(connection, due_s)
            return
        invariants = self.world.invariants
        if invariants is not None:
            invariants.on_keep_alive(connection)
        self.end(connection, now_s)
        connection.population.closed(connection, self.loop.clock_s)

    # --- the process -------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Memory that the process holds now, bytes."""
        plan, window = self.plan, self.guard.window
        packets = self.packets.waiting_count + window.in_process
        return (
            plan.process_bytes
            + plan.connection_bytes * len(self.connections)
            + plan.connecting_bytes * (len(self.connections) - self.connected_count)
            + plan.packet_bytes * packets
            + self.guard.gate.buffered_bytes
            + self.journal.size_bytes
            + window.in_process_bytes
            + self.replays.held_bytes
        )

    def die(self) -> None:
        """Lose everything in memory. Every client sees its connection close."""
        self.loop.ended = True
        broken = [*self.connections, *self.listener.backlog]
        for message, deliveries in self.ports.take_forwarded():
            self.world.lose(message, deliveries)
        for arriving, message in self.packets.arriving.items():
            self.world.lose(message, arriving.left)
        self.connections.clear()
        self.listener.backlog.clear()
        now_s = max(self.engine.now_s, self.loop.clock_s)
        for connection in broken:
            was_connected = connection.state == CONNECTED
            connection.state = ENDED
            if was_connected:
                connection.population.left(connection)
            connection.population.closed(connection, now_s)

    def spend(self, cost_s: float) -> None:
        """Do work that takes `cost_s` on a healthy machine."""
        factor = self.machine.slowness
        if self.plan.noise:
            factor *= 1.0 + self.plan.noise * (2.0 * self.random.random() - 1.0)
        self.loop.clock_s += cost_s * factor
