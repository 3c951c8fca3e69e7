"""Packets: the packets of connected clients, from decoding to acknowledgement.

`flowguard.session.inbound.packets` and `flowguard.node.publish.publishing` without bytes: windows,
pool and journal are the real ones and decide which packet begins when. `NodePlan` has their costs.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, final

from flowguard.flow import Guard
from flowguard.flow.load.histogram import Histogram
from flowguard.flow.load.observer import BOUNDS_S
from flowguard.flow.windows.window import UNBOUNDED, AdmissionWindow
from flowguard.node.journal import Journal
from flowguard.records import PutSession, Settle
from flowguard.session.chores import Chores
from flowguard.session.inbound.input import READ_BYTES_MAX
from flowguard.session.inbound.packets import RUN_MAX
from simulations.crowd.connection import CONNECTED, ClientPackets, Connection, Packet
from simulations.crowd.topics import Message, Topic
from simulations.process.host import ProcessHost
from simulations.process.loop import Loop
from simulations.process.wide import WideDelivery, is_wide

SUBSCRIPTION_OP: Final = PutSession("", 0, None)
"""Only the number of operations matters, because a `Disk` counts them."""
SETTLE_OP: Final = Settle("", 1, None)
"""Stores the acknowledgement of a durable subscriber; no task waits for it."""


@final
class Packets:
    def __init__(
        self,
        host: ProcessHost,
        guard: Guard[Connection],
        journal: Journal,
        loop: Loop,
        chores: Chores,
        spend: Callable[[float], None],
    ) -> None:
        """`spend` does work of a duration, seconds."""
        self.waiting_count = 0
        self.in_process_units = 0
        """Packets begun and not done, in cost units; the windows should count the same."""
        self.in_process_bytes = 0
        self.acknowledgements = Histogram(BOUNDS_S)
        """Times from decoding a PUBLISH to its PUBACK, as a broker records them."""
        self.arriving: dict[WideDelivery, Message] = {}
        """Messages of other nodes that not all subscribers of this node have yet."""
        self._reached: set[tuple[Topic, int]] = set()
        """Receivers that get something in this turn anyway."""
        self._host = host
        self._plan = host.world.scenario.node
        self._guard = guard
        self._window = guard.window
        self._journal = journal
        self._loop = loop
        self._chores = chores
        self._spend = spend

    def add(self, connection: Connection, packet: Packet) -> None:
        inbound = connection.inbound
        if inbound is None:
            inbound = connection.inbound = ClientPackets(AdmissionWindow(self._window))
        inbound.waiting.append(packet)
        self.waiting_count += 1

    def begin_turn(self) -> None:
        """Forget the reached receivers: each is sent to, and its acknowledgements are read, once a
        turn."""
        self._reached.clear()

    def forget(self, connection: Connection) -> None:
        """Forget the waiting packets of a connection that has ended. Packets in process go on."""
        inbound = connection.inbound
        if inbound is not None:
            self.waiting_count -= len(inbound.waiting)
            inbound.waiting.clear()

    def run(self, connection: Connection, now_s: float) -> None:
        """Run the packets that the window admits, at most those of one read and `RUN_MAX`."""
        inbound = connection.inbound
        assert inbound is not None
        connection.last_received_s = now_s
        window, waiting = inbound.window, inbound.waiting
        credited = self._window.credits is not None
        room = min(window.room(), self._run_max(connection))
        while waiting and room > 0:
            packet = waiting[0]
            if packet is None:
                self._subscribe(connection, inbound, now_s)
            elif not self._publish(connection, inbound, packet, now_s):
                break
            waiting.popleft()
            self.waiting_count -= 1
            if credited:
                window.spend(1)
            room = min(room - 1, window.room())
        window.rest(bool(waiting))
        if waiting:
            if window.room():
                connection.schedule()
            else:
                self._guard.paused(connection, now_s)

    def _run_max(self, connection: Connection) -> int:
        topic = connection.population.topic
        if not self._plan.takes_turns:
            return UNBOUNDED
        if topic is None or topic.payload_bytes * RUN_MAX <= READ_BYTES_MAX:
            return RUN_MAX
        return max(1, READ_BYTES_MAX // topic.payload_bytes)

    def _publish(
        self, connection: Connection, inbound: ClientPackets, due_s: float, now_s: float
    ) -> bool:
        """Admit a message and have its work made durable. Return False if it does not fit and
        waits."""
        topic = connection.population.topic
        assert topic is not None
        message = topic.route(connection.client, due_s, self._host.index)
        weigh, ops = self._host.cost.of, len(message.ops)
        cost = weigh(message.deliveries, topic.payload_bytes, ops)
        work_s = self._plan.publish_s
        if is_wide(self._plan, message.deliveries):
            cost = max(cost, self._window.limit_max)
        elif topic.is_stored:
            work_s += max(0, ops - 1) * self._plan.queue_s
        if cost > 1 and not inbound.window.fits(cost):
            return False
        self._spend(work_s)
        inbound.window.admit(cost, topic.payload_bytes)
        self.in_process_units += cost
        self.in_process_bytes += topic.payload_bytes
        done = partial(self._published, connection, message, cost, now_s)
        if not ops and self._journal.is_idle:
            done(now_s)
        elif self._plan.takes_turns and weigh(message.deliveries, 0, ops) > 1:
            self._journal.append_heavy(message.ops, done, message.deliveries, now_s)
        else:
            self._journal.append(message.ops, done, now_s)
        return True

    def _published(
        self, connection: Connection, message: Message, cost: int, since_s: float, now_s: float
    ) -> None:
        """The message is durable: forward it, deliver it on this node, then call `_done`."""
        host, here = self._host, 0
        # As in a broker, the deliveries of the same time slice do not count.
        self.acknowledgements.observe(now_s - since_s)
        started_s = self._loop.clock_s
        for node, deliveries in message.targets:
            if node == host.index:
                here = deliveries
            else:
                self._spend(self._plan.forward_s)
                host.world.forward(host.index, node, message, deliveries, self._loop.clock_s)
        done = partial(self._done, connection, message, cost)
        inbound = connection.inbound
        assert inbound is not None
        if is_wide(self._plan, here):
            inbound.window.worked(self._loop.clock_s - started_s)
            deliver = partial(self._deliver_widely, inbound.window, message)
            self._chores.add(WideDelivery(here, deliver, done).step)
            return
        if here:
            self.deliver(message, here)
        inbound.window.worked(self._loop.clock_s - started_s)
        done()

    def _deliver_widely(
        self, window: AdmissionWindow | None, message: Message, deliveries: int
    ) -> None:
        """Deliver a piece; `window` is that of the publisher, or None if that is on another
        node."""
        started_s = self._loop.clock_s
        # The previous piece had other subscribers.
        self._reached.discard((message.topic, message.receiver))
        self.deliver(message, deliveries)
        took_s = self._loop.clock_s - started_s
        if window is None:
            self._window.worked(took_s, movable=True)
        else:
            window.worked(took_s)

    def arrived(self, message: Message, deliveries: int) -> None:
        """Receive an acknowledged message of another node for `deliveries` subscribers of this
        one."""
        if not is_wide(self._plan, deliveries):
            self._deliver_widely(None, message, deliveries)
            return
        deliver = partial(self._deliver_widely, None, message)
        arriving = WideDelivery(deliveries, deliver, lambda: self.arriving.pop(arriving))
        self.arriving[arriving] = message
        self._chores.add(arriving.step)

    def _done(self, connection: Connection, message: Message, cost: int) -> None:
        """All subscribers on this node have the message: acknowledge it and free its window
        slot."""
        self._settle(connection, cost, message.topic.payload_bytes)
        if connection.state == CONNECTED:
            self._host.counters.published_count += 1
        connection.population.finished(connection, message.due_s, cost, self._loop.clock_s)

    def _subscribe(self, connection: Connection, inbound: ClientPackets, now_s: float) -> None:
        self._spend(self._plan.subscribe_s)
        inbound.window.admit()
        self.in_process_units += 1
        self._journal.append([SUBSCRIPTION_OP], partial(self._subscribed, connection), now_s)

    def _subscribed(self, connection: Connection, now_s: float) -> None:
        self._settle(connection, 1, 0)
        if connection.state == CONNECTED:
            connection.population.subscribed(connection)

    def _settle(self, connection: Connection, cost: int, size_bytes: int) -> None:
        inbound = connection.inbound
        assert inbound is not None
        inbound.window.settle(cost, size_bytes)
        self.in_process_units -= cost
        self.in_process_bytes -= size_bytes
        if inbound.waiting:
            connection.schedule()

    def deliver(self, message: Message, deliveries: int) -> None:
        """Deliver to `deliveries` subscribers that are connected to this node.

        A wide message is also queued now, piece by piece; others were before their commit.
        """
        cost_s = deliveries * self._plan.delivery_s
        receiver = (message.topic, message.receiver)
        is_stored = message.topic.is_stored
        if is_stored and is_wide(self._plan, message.deliveries):
            cost_s += (deliveries - 1) * self._plan.queue_s
        if receiver not in self._reached:
            self._reached.add(receiver)
            cost_s += deliveries * self._plan.send_s
            if is_stored:
                self._journal.sent.update(message.positions)
        self._spend(cost_s)
        if is_stored:
            for _ in range(deliveries):
                self._journal.note(SETTLE_OP)
        self._host.counters.delivered_count += deliveries
        message.topic.delivered(message, deliveries, self._loop.clock_s)
