"""Broker: one process of flowguard, with its real `Guard` and the cost of its work.

What decides here is flowguard's: gate, windows, pool, journal, observer and policy are the objects
of `flowguard serve`, and are asked at the same points of a turn (`flowguard.broker.reactor`,
`.committer` and `.housekeeping` are what this file imitates). What is modelled is what they meet:
how long work takes (`NodePlan`), how long a commit takes (`Disk`), how much memory it all needs.

A process that dies takes its connections and all that was not committed with it; sessions stay.
"""

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final, final

from flowguard.broker.housekeeping import JITTER
from flowguard.broker.reactor import (
    ANSWERS,
    EVENTS_MAX,
    ROUND_TURN_S,
    SLICE_CONNECTIONS,
    SLICE_S,
)
from flowguard.flow import Admission, Cluster, Guard, PressureRecord
from flowguard.flow.signals import TICK_S
from flowguard.node.journal import Batch, Journal
from flowguard.node.rounds import Rounds
from flowguard.node.timers import Wheel
from simulations.connection import (
    CONNECTED,
    CONNECTING,
    ENDED,
    OPENED,
    Connection,
    Packet,
)
from simulations.counters import MachineCounters
from simulations.draws import random_for
from simulations.entrance import Entrance
from simulations.listener import Listener
from simulations.loop import Loop
from simulations.packets import Packets
from simulations.replays import Replays

if TYPE_CHECKING:
    from simulations.machine import Machine
    from simulations.topics import Message

ACCEPTOR_TURN_S: Final = 0.02
"""How long accepting goes on before anything else is looked at."""
KEEP_ALIVE_GRACE: Final = 1.5
"""[MQTT-3.1.2-22]"""
UNFINISHED_SHARE: Final = 0.25
"""Of a node's memory, for bytes in process, where the scenario does not say; see `bounds.WORK`."""


@final
class Broker:
    """A life of the process on a `Machine`; implements `Work`."""

    def __init__(self, machine: "Machine", incarnation: int) -> None:
        world = machine.world
        plan = world.scenario.node
        settings = world.settings
        if settings.unfinished_bytes_max is None:
            share_bytes = int(UNFINISHED_SHARE * plan.memory_max_bytes)
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
            cluster=cluster,
            tell=self._tell,
        )
        self.journal = Journal.create(settings, self.guard.window, self.guard.observer)
        self.counters: MachineCounters = machine.counters
        self.loop: Loop = Loop(self.engine, self, self.guard.observer, wake_s=plan.wake_s)
        self.entrance = Entrance(self)
        self.wheel: Wheel[Connection] = Wheel(self.engine.now_s)
        self.runnable: list[Connection] = []
        self._rounds: Rounds[Connection] = Rounds()
        self._served_s = 0.0
        self.connections: dict[Connection, None] = {}
        """Accepted and not ended."""
        self.connected_count = 0
        """Of those, the ones that are connected."""
        self.ready: deque[Connection | None] = deque()
        """As epoll has it: who became ready first is reported first; None is the listener."""
        self._forwarded: deque[tuple[Message, int]] = deque()
        self.listener = Listener(self)
        self.packets = Packets(self)
        self.replays = Replays(self)
        self._batch: Batch | None = None
        self._batch_since_s = 0.0
        self._batch_is_done = False
        self._tick_is_due = False
        self._ticked = False
        self._is_immediate = world.scenario.store.immediate
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

    def acknowledge(self, connection: Connection, count: int) -> None:
        """PUBACKs for what was queued."""
        if connection.state == CONNECTED and connection.replay is not None:
            connection.replay.unread += count
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

    def _decided(self, connection: Connection, admission: Admission, now_s: float) -> None:
        self.entrance.follow(connection, admission, now_s)

    def _is_full(self) -> bool:
        return self.journal.is_full

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
            or self._rounds
            or self.entrance.is_serving
            or self._forwarded
            or self.guard.has_work
            or self.journal.is_answering
            or self.replays.is_ready
        )

    @property
    def is_awaited(self) -> bool:
        """See `Work`."""
        wanted = self._batch is None and not self._is_immediate and self.journal.is_urgent
        return wanted or self._batch_is_done

    def turn(self, now_s: float) -> bool:
        """See `Work`."""
        worked = self._turn_of_acceptor(now_s) if self.plan.accepts_first else self._turn(now_s)
        self._check()
        return worked

    def _check(self) -> None:
        invariants = self.world.invariants
        if invariants is not None:
            invariants.after_step(self)

    def _turn(self, now_s: float) -> bool:
        """See `Reactor._turn`."""
        forwarded = self._forwarded
        answers = self.journal.is_answering
        worked = bool(self.ready or answers or forwarded)
        slice_s = now_s
        self._serve(now_s)
        self._served_s = self.loop.clock_s - now_s
        if answers:
            slice_s = self._answer()
        while forwarded:
            message, deliveries = forwarded.popleft()
            self.packets.deliver(message, deliveries)
        self._settle(slice_s)
        return worked or self.guard.has_work

    def replay(self, *, idle: bool) -> bool:
        """See `Work`."""
        return self.replays.turn(idle=idle)

    def _turn_of_acceptor(self, now_s: float) -> bool:
        """Who knocks is heard before anybody is served; what is admitted is served one by one."""
        until_s = now_s + ACCEPTOR_TURN_S
        worked = self.listener.is_ready or self.entrance.is_serving
        if self.listener.is_ready:
            self.listener.accept_until(until_s)
        worked |= self._turn(self.loop.clock_s)
        worked |= self._run_round()
        self.entrance.serve_until(until_s)
        self._settle(self.loop.clock_s)
        return worked

    def _serve(self, slice_s: float) -> None:
        """See `Reactor._serve`."""
        ready, served = self.ready, 0
        for _ in range(min(len(ready), EVENTS_MAX)):
            connection = ready.popleft()
            if connection is None:
                self.listener.accept(slice_s)
                continue
            connection.is_ready = False
            self._read(connection, slice_s)
            served += 1
            if served % SLICE_CONNECTIONS == 0:
                self._settle(slice_s)
                slice_s = self.loop.clock_s

    def _answer(self) -> float:
        """See `Reactor._answer`."""
        journal, loop = self.journal, self.loop
        until_s = loop.clock_s + SLICE_S
        while journal.is_answering and loop.clock_s < until_s:
            slice_s = loop.clock_s
            journal.answer(ANSWERS, slice_s)
            self._settle(slice_s)
        return loop.clock_s

    def run_round(self) -> bool:
        """See `Work`; who accepts first has had it in its turn."""
        return not self.plan.accepts_first and self._run_round()

    def _run_round(self) -> bool:
        """See `Reactor._run_round`."""
        rounds, loop = self._rounds, self.loop
        if not self.runnable and not rounds:
            return False
        began_s = slice_s = loop.clock_s
        until_s = began_s + max(ROUND_TURN_S, self._served_s) if self.plan.takes_turns else inf
        self._join_round(began_s, until_s)
        count = 0
        while loop.clock_s < until_s and not rounds.is_over:
            connection = rounds.next()
            connection.queued = False
            if connection.state == CONNECTED:
                self.packets.run(connection, slice_s)
            count += 1
            if count % SLICE_CONNECTIONS == 0:
                self._settle(slice_s)
                slice_s = loop.clock_s
        self.guard.observer.kept_waiting(rounds.wait_s(loop.clock_s))
        self._settle(loop.clock_s)
        self._check()
        return True

    def _join_round(self, now_s: float, until_s: float) -> None:
        """See `Reactor._join_round`."""
        runnable, self.runnable = self.runnable, []
        if not self.guard.window.shared:
            self._rounds.join(runnable, now_s)
            return
        with_room = []
        for connection in runnable:
            inbound = connection.inbound
            has_room = connection.state != CONNECTED or inbound is None or inbound.window.room()
            if has_room or self.loop.clock_s >= until_s:
                with_room.append(connection)
            else:
                connection.queued = False
                self.packets.run(connection, now_s)
        self._rounds.follow(with_room, now_s)

    def _settle(self, slice_s: float) -> None:
        """End a slice: admit, commit or ask for it, send."""
        self.guard.turn(slice_s)
        if self._is_immediate:
            self._commit_at_once(slice_s)
        self.packets.flushed()
        self.entrance.answer()

    def _read(self, connection: Connection, now_s: float) -> None:
        """What a socket has, once; the end of its stream comes after what was sent before."""
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
                if connection.inbound.waiting:
                    self.spend(self.plan.read_s)
                if not connection.queued:
                    self.packets.run(connection, now_s)

    def end(self, connection: Connection, now_s: float, *, refused: bool = False) -> None:
        """See `ServerConnection.end`; `refused`: it is being answered."""
        state = connection.state
        if state == ENDED:
            return
        if CONNECTING <= state < CONNECTED and not refused:
            self.counters.discarded_count += 1
        self.entrance.leave(connection)
        connection.state = ENDED
        self.connections.pop(connection, None)
        if state != CONNECTED:
            self.guard.answered(connection, now_s)
            return
        self.connected_count -= 1
        self.wheel.forget(connection)
        self.guard.gone(connection, now_s)
        self.packets.forget(connection)
        self.replays.forget(connection)
        connection.population.left(connection)

    def watch(self, connection: Connection, now_s: float) -> None:
        """It is connected from now on, and may not be silent for too long."""
        keep_alive_s = connection.population.keep_alive_s
        self.connected_count += 1
        connection.last_received_s = now_s
        if keep_alive_s:
            self.wheel.watch(connection, now_s + KEEP_ALIVE_GRACE * keep_alive_s)

    # --- tasks -------------------------------------------------------------------------------

    def run_tasks(self) -> None:
        """See `Work`: the committer and housekeeping."""
        if self._tick_is_due:
            self._tick_is_due = False
            self._tick()
        if self._batch_is_done:
            self._complete()
        self.replays.read(self.loop.clock_s)
        journal = self.journal
        if self._batch is None and not self._is_immediate:
            noted = self._ticked and not journal.is_empty and not journal.is_answering
            if journal.is_urgent or noted:
                self._commit()
            self._ticked = False
        invariants = self.world.invariants
        if invariants is not None:
            invariants.after_step(self)

    def _commit(self) -> None:
        """See `Committer._work_once`."""
        clock_s = self.loop.clock_s
        batch = self.journal.take(clock_s)
        assert batch is not None
        self._batch, self._batch_since_s = batch, clock_s
        self.machine.commit(len(batch.ops), clock_s, self._on_commit, batch)

    def _commit_at_once(self, now_s: float) -> None:
        """See `Reactor._commit`."""
        while (batch := self.journal.take(now_s)) is not None:
            self.spend(self.machine.disk.commit_s(len(batch.ops)))
            self.journal.committed(batch, now_s, 0.0)

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
        self.spend(self.plan.handoff_s)
        now_s = self.loop.clock_s
        self.journal.durable(batch, now_s, now_s - self._batch_since_s)

    def _next_tick(self) -> None:
        self.engine.at(
            self.loop.clock_s + TICK_S * self.random.uniform(*JITTER), self._on_tick, None
        )

    def _on_tick(self, _: None) -> None:
        if not self.loop.ended:
            self._tick_is_due = True
            self.loop.wake()

    def _tick(self) -> None:
        """See `housekeeping.keep_house`."""
        now_s = self.loop.clock_s
        memory_bytes = self.memory_bytes
        self.guard.observe_memory(memory_bytes)
        self.guard.observer.replication(self.machine.replication_age_s(now_s))
        self.journal.observe(now_s)
        self.guard.tick(now_s)
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
        paused = inbound is not None and inbound.waiting and not inbound.window.room()
        if paused or connection.is_ready:
            connection.last_received_s = now_s  # We do not read: its silence is ours.
        grace_s = KEEP_ALIVE_GRACE * connection.population.keep_alive_s
        due_s = connection.last_received_s + grace_s
        if due_s > now_s:
            self.wheel.watch(connection, due_s)
            return
        invariants = self.world.invariants
        if invariants is not None:
            invariants.on_keep_alive(self, connection)
        self.end(connection, now_s)
        connection.population.closed(connection, self.loop.clock_s)

    # --- the process -------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """What it holds now."""
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
            factor *= 1.0 + self.plan.noise * (2.0 * self.random.random() - 1.0)
        self.loop.clock_s += cost_s * factor
