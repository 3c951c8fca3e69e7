"""Broker: one process of flowguard, with its real `Intake` and the cost of its work.

What decides here is flowguard's: gate, windows, pool, journal, observer and policy are the objects
of `flowguard serve`, and are asked at the same points of a turn (`flowguard.broker.reactor`,
`.committer` and `.housekeeping` are what this file imitates). What is modelled is what they meet:
how long work takes (`NodePlan`), how long a commit takes (`Disk`), how much memory it all needs.

A process that dies takes its connections and all that was not committed with it; sessions stay.
"""

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, final

from flowguard.broker.housekeeping import JITTER
from flowguard.broker.reactor import EVENTS_MAX, SLICE_CONNECTIONS
from flowguard.flow import Arrival, Cluster, PressureRecord, Resumption
from flowguard.flow.signals import TICK_S
from flowguard.node.intake import Intake
from flowguard.node.journal import Batch, Journal
from flowguard.node.protection import Protection
from flowguard.node.timers import Wheel
from flowguard.records import PutSession, StoreOp
from flowguard.session.handshake import CONNECT_BYTES
from simulations.connection import (
    CONNECTED,
    CONNECTING,
    ENDED,
    OPENED,
    SERVED,
    WAITING,
    Connection,
    Packet,
)
from simulations.draws import random_for
from simulations.listener import Listener
from simulations.loop import Loop
from simulations.packets import Packets
from simulations.replays import Replays

if TYPE_CHECKING:
    from simulations.machine import Machine
    from simulations.topics import Message

SESSION_OP: Final = PutSession("", 0, None)
ACCEPTOR_TURN_S: Final = 0.02
"""How long accepting goes on before anything else is looked at (design/overload.md 8)."""
KEEP_ALIVE_GRACE: Final = 1.5
"""[MQTT-3.1.2-22]"""


@final
class Broker:
    """A life of the process on a `Machine`; implements `Reception` and `Work`."""

    def __init__(self, machine: "Machine", incarnation: int) -> None:
        world = machine.world
        plan = world.scenario.node
        settings = world.settings
        self.machine = machine
        self.world = world
        self.engine = world.engine
        self.plan = plan
        self.node = machine.index
        cluster = None
        if world.scenario.nodes > 1:
            cluster = Cluster(machine.name, incarnation, settings)
        self.cluster = cluster
        self.protection: Protection[Connection] = Protection(
            settings, plan.memory_max_bytes, cluster, self._tell
        )
        self.journal = Journal(
            ops_max=settings.journal_ops_max, bytes_max=settings.journal_bytes_max
        )
        self.intake: Intake[Connection] = Intake(self.protection, self.journal, self)
        self.gate = self.protection.gate
        self.loop = Loop(self.engine, self, self.protection.observer)
        self.wheel: Wheel[Connection] = Wheel(self.engine.now_s)
        self.runnable: list[Connection] = []
        self.connections: dict[Connection, None] = {}
        """Accepted and not ended."""
        self.waiting_count = 0
        """Of them, those whose CONNECT waits for its outcome: what the gate should say, too."""
        self.served_count = 0
        """The same of those admitted and not answered."""
        self.counters = machine.counters
        self._random = random_for(
            world.scenario.seed, f"{machine.name}, life {incarnation}: tick, hints, noise"
        )
        self.ready: deque[Connection | None] = deque()
        """As epoll has it: who became ready first is reported first; None is the listener."""
        self._serving: deque[tuple[Connection, float]] = deque()
        """Admitted, and since when; only where an acceptor goes first."""
        self._forwarded: deque[tuple[Message, int]] = deque()
        self.listener = Listener(self)
        self.packets = Packets(self)
        self.replays = Replays(self)
        self._answers: list[tuple[Connection, float | None]] = []
        """CONNACKs of this slice: None is success, else the hint of a refusal in seconds."""
        self._batch: Batch | None = None
        self._batch_since_s = 0.0
        self._batch_is_done = False
        self._tick_is_due = False
        self._ticked = False
        self._next_tick()

    # --- from the network --------------------------------------------------------------------

    def hang_up(self, connection: Connection) -> None:
        """The client's end of stream."""
        connection.ended_by_peer = True
        if OPENED <= connection.state < ENDED:
            self._announce(connection)

    def receive(self, connection: Connection, packet: Packet) -> None:
        """A packet arrives on a connection that may be gone meanwhile."""
        if connection.state != CONNECTED:
            return
        self.packets.add(connection, packet)
        self._announce(connection)

    def ping(self, connection: Connection) -> None:
        """A PINGREQ."""
        if connection.state == CONNECTED:
            connection.pings += 1
            self._announce(connection)

    def forward(self, message: "Message", deliveries: int) -> None:
        """Another node has a message for subscribers of this one."""
        if self.loop.ended:
            self.world.lose(message, deliveries)
        else:
            self._forwarded.append((message, deliveries))
            self.loop.wake()

    def hear(self, record: PressureRecord) -> None:
        """Gossip."""
        if self.cluster is not None and not self.loop.ended:
            self.cluster.merge(record, self.engine.now_s)

    def _tell(self, record: PressureRecord) -> None:
        self.world.gossip(self.node, record, self.loop.clock_s)

    def _announce(self, connection: Connection) -> None:
        if not connection.is_ready:
            connection.is_ready = True
            self.ready.append(connection)
            self.loop.wake()

    # --- a turn ------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """See `Work`."""
        return bool(
            self.ready
            or self.listener.is_ready
            or self.runnable
            or self._serving
            or self._forwarded
            or self.intake.has_work
        )

    def turn(self, now_s: float) -> bool:
        """See `Work`."""
        if self.plan.accepts_first:
            return self._turn_of_acceptor(now_s)
        return self._turn(now_s)

    def _turn(self, now_s: float) -> bool:
        """See `Reactor._turn`."""
        runnable, forwarded = self.runnable, self._forwarded
        worked = bool(self.ready or runnable or forwarded)
        slice_s = self._serve(now_s)
        while forwarded:
            message, deliveries = forwarded.popleft()
            self.packets.deliver(message, deliveries)
        if runnable:
            self.runnable = []
            slice_s = self._run_slices(runnable, slice_s)
        self._settle(slice_s)
        return worked or self.intake.has_work

    def _turn_of_acceptor(self, now_s: float) -> bool:
        """Who knocks is heard before anybody is served; what is admitted is served one by one."""
        until_s = now_s + ACCEPTOR_TURN_S
        worked = self.listener.is_ready or bool(self._serving)
        if self.listener.is_ready:
            self.listener.accept_until(until_s)
        worked |= self._turn(self.loop.clock_s)
        serving, loop = self._serving, self.loop
        while serving and loop.clock_s < until_s:
            connection, since_s = serving.popleft()
            if connection.state != ENDED:
                self._claim(connection, since_s)
        self._settle(loop.clock_s)
        return worked

    def _serve(self, slice_s: float) -> float:
        """Read every ready socket once, in slices; returns the time."""
        ready, served = self.ready, 0
        for _ in range(min(len(ready), EVENTS_MAX)):
            connection = ready.popleft()
            if connection is None:
                self.listener.accept(slice_s)
                continue
            if connection.queued and connection.state != ENDED:
                ready.append(connection)  # It has enough to do: its bytes wait in the socket.
                continue
            connection.is_ready = False
            self._read(connection, slice_s)
            served += 1
            if served % SLICE_CONNECTIONS == 0:
                self._settle(slice_s)
                slice_s = self.loop.clock_s
        return slice_s

    def _run_slices(self, runnable: list[Connection], slice_s: float) -> float:
        for position, connection in enumerate(runnable, 1):
            connection.queued = False
            if connection.state == CONNECTED:
                self.packets.run(connection, slice_s)
            if position % SLICE_CONNECTIONS == 0:
                self._settle(slice_s)
                slice_s = self.loop.clock_s
        return slice_s

    def _settle(self, slice_s: float) -> None:
        """End a slice: admit, ask for a commit, send."""
        self.intake.turn(slice_s)
        if self._answers:
            answers, self._answers = self._answers, []
            sent_s = self.loop.clock_s
            for connection, hint_s in answers:
                if hint_s is None:
                    self.counters.accepted_count += 1
                    connection.population.accepted(connection, sent_s)
                else:
                    connection.population.refused(connection, sent_s, hint_s)

    def _read(self, connection: Connection, now_s: float) -> None:
        """What a socket has, once; the end of its stream comes after what was sent before."""
        state = connection.state
        if state == OPENED:
            self.offer(connection, now_s)
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
            if connection.inbound is not None:
                self.packets.run(connection, now_s)

    def offer(self, connection: Connection, now_s: float) -> None:
        """Its CONNECT comes to the gate, which has an outcome at once, or lets it wait."""
        connection.state = CONNECTING
        self.intake.connect(connection, self._arrival(connection), now_s)
        if connection.state == CONNECTING:
            connection.state = WAITING
            self.waiting_count += 1

    def _arrival(self, connection: Connection) -> Arrival:
        """What the gate wants to know of its CONNECT."""
        client_id = connection.population.client_id(connection.client)
        resumption = Resumption.NEW
        if connection.population.is_durable:
            resumption = self.machine.resumption(connection.population, connection.client)
        return Arrival(client_id, CONNECT_BYTES + client_id.__sizeof__(), resumption)

    def end(self, connection: Connection, now_s: float) -> None:
        """See `ServerConnection.end`."""
        if CONNECTING <= connection.state < CONNECTED:
            self.counters.discarded_count += 1
        self._end(connection, now_s)

    def _end(self, connection: Connection, now_s: float) -> None:
        state = connection.state
        if state == ENDED:
            return
        self._leave_gate(connection)
        connection.state = ENDED
        self.connections.pop(connection, None)
        if state != CONNECTED:
            self.gate.settle(connection, now_s)
            return
        self.wheel.forget(connection)
        self.intake.left(connection)
        self.packets.forget(connection)
        connection.population.left(connection)

    def _leave_gate(self, connection: Connection) -> None:
        """It neither waits nor is served from now on."""
        if connection.state == WAITING:
            self.waiting_count -= 1
        elif connection.state == SERVED:
            self.served_count -= 1

    # --- CONNECTs: see `Reception` -----------------------------------------------------------

    def admit(self, connection: Connection, now_s: float) -> None:
        """See `Node.admit`."""
        self._leave_gate(connection)
        connection.state = SERVED
        self.served_count += 1
        if self.plan.accepts_first:
            self._serving.append((connection, now_s))
        else:
            self._claim(connection, now_s)

    def _claim(self, connection: Connection, now_s: float) -> None:
        """See `Node._claim`."""
        self.spend(self.plan.connect_s)
        ops: list[StoreOp] = [SESSION_OP] if connection.population.is_durable else []
        self.journal.append(ops, partial(self._claimed, connection), now_s)

    def _claimed(self, connection: Connection, now_s: float) -> None:
        """See `Node._claimed`."""
        if connection.state == ENDED:
            connection.population.wasted_count += 1
            return
        self.gate.settle(connection, now_s)
        self._leave_gate(connection)
        connection.state = CONNECTED
        connection.last_received_s = now_s
        population = connection.population
        if population.is_durable:
            self.machine.keep(population, connection.client)
        if population.keep_alive_s:
            self.wheel.watch(connection, now_s + KEEP_ALIVE_GRACE * population.keep_alive_s)
        self._answers.append((connection, None))
        self.replays.want(connection)

    def turn_away(self, connection: Connection, now_s: float) -> None:
        """See `Node.turn_away`."""
        started_s = self.loop.clock_s
        self.spend(self.plan.refuse_s)
        self.counters.refusing_s += self.loop.clock_s - started_s
        self.counters.refused_count += 1
        hint_s = self.gate.retry_after_s(self._random.random())
        self._end(connection, now_s)
        self._answers.append((connection, hint_s))

    def drop(self, connection: Connection, now_s: float) -> None:
        """See `Node.drop`."""
        self.end(connection, now_s)
        connection.population.closed(connection, self.loop.clock_s)

    def failed(self, connection: Connection, error: Exception, now_s: float) -> None:
        """Nothing here may break."""
        raise error

    # --- tasks -------------------------------------------------------------------------------

    def run_tasks(self) -> None:
        """See `Work`: the committer and housekeeping."""
        if self._tick_is_due:
            self._tick_is_due = False
            self._tick()
        if self._batch_is_done:
            self._complete()
        self.replays.run(self.loop.clock_s)
        journal = self.journal
        if self._batch is None:
            if journal.is_urgent or (self._ticked and not journal.is_empty):
                self._commit()
            self._ticked = False

    def _commit(self) -> None:
        """See `Committer._work_once`."""
        clock_s = self.loop.clock_s
        batch = self.intake.next_batch(clock_s)
        assert batch is not None
        self._batch, self._batch_since_s = batch, clock_s
        self.machine.commit(len(batch.ops), clock_s, self._on_commit, batch)

    def _on_commit(self, batch: Batch) -> None:
        """The disk is done, and the replicas."""
        if not self.loop.ended:
            assert batch is self._batch
            self._batch_is_done = True
            self.loop.wake()

    def _complete(self) -> None:
        batch = self._batch
        assert batch is not None
        self._batch, self._batch_is_done = None, False
        now_s = self.loop.clock_s
        self.intake.committed(batch, now_s, now_s - self._batch_since_s)
        self._settle(now_s)

    def _next_tick(self) -> None:
        self.engine.at(
            self.loop.clock_s + TICK_S * self._random.uniform(*JITTER), self._on_tick, None
        )

    def _on_tick(self, _: None) -> None:
        if not self.loop.ended:
            self._tick_is_due = True
            self.loop.wake()

    def _tick(self) -> None:
        """See `housekeeping.keep_house`."""
        now_s = self.loop.clock_s
        memory_bytes = self.memory_bytes
        self.protection.observe_memory(memory_bytes)
        self.protection.observer.replication(self.machine.replication_age_s(now_s))
        self.intake.tick(now_s)
        for connection in self.wheel.due(now_s):
            self._look_at(connection, now_s)
        self.listener.sweep()
        self._settle(now_s)
        self._ticked = True
        self._next_tick()
        if memory_bytes > self.plan.memory_max_bytes:
            self.machine.run_out_of_memory()

    def _look_at(self, connection: Connection, now_s: float) -> None:
        """See `Node._look_at`."""
        inbound = connection.inbound
        if inbound is not None and inbound.waiting and not inbound.window.room():
            connection.last_received_s = now_s  # We do not read: its silence is ours.
        grace_s = KEEP_ALIVE_GRACE * connection.population.keep_alive_s
        due_s = connection.last_received_s + grace_s
        if due_s > now_s:
            self.wheel.watch(connection, due_s)
            return
        self.end(connection, now_s)
        connection.population.closed(connection, self.loop.clock_s)

    # --- the process -------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """What it holds now."""
        plan, window = self.plan, self.protection.window
        packets = self.packets.waiting_count + window.in_process
        return (
            plan.process_bytes
            + plan.connection_bytes * len(self.connections)
            + plan.packet_bytes * packets
            + self.gate.buffered_bytes
            + self.journal.size_bytes
            + window.in_process_bytes
            + self.replays.held_bytes
        )

    def die(self) -> None:
        """Everything is gone; every client hears of it."""
        self.loop.ended = True
        broken = [*self.connections, *self.listener.backlog]
        for message, deliveries in self._forwarded:
            self.world.lose(message, deliveries)
        self._forwarded.clear()
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
        """Work that would take so long on a healthy machine."""
        factor = self.machine.slowness
        if self.plan.noise:
            factor *= 1.0 + self.plan.noise * (2.0 * self._random.random() - 1.0)
        self.loop.clock_s += cost_s * factor
