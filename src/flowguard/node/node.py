"""Node: the base of all connections of one broker process; it moves no bytes itself.

The driver (`flowguard.broker.sockets.reactor`, or a test's stage) has four tasks:

1. It makes a `ServerConnection` per socket (`opened`) and feeds it bytes.
2. It runs turns (`flowguard.node.loop.turns`, through `flowguard.node.loop.ports`). They run the
`runnable` connections, send to the `dirty` ones, and replay backlogs.
3. Between turns it commits (`journal.take`, the store, `journal.durable`), and asks the store for
the pages that sessions need (`pages`).
4. It calls `tick` every 100 ms.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, cast, final

from flowguard.access.rules import Rules
from flowguard.bounds import Bounds
from flowguard.cluster import Cluster, Members
from flowguard.codec.packets import Auth, Connect
from flowguard.config import FlowSettings
from flowguard.errors import PeerError, StoreError
from flowguard.flow import Admission, Guard, Holders, Reason, Tell
from flowguard.node.applications.divided_journal import DividedJournal
from flowguard.node.applications.log_fetch import LogFetch
from flowguard.node.applications.separate_lane import lane_of
from flowguard.node.connect.accept_state import Door
from flowguard.node.connect.attempts import CLOSED, REFUSED, Attempts
from flowguard.node.connect.authentication import Hooks
from flowguard.node.connect.connecting import ENDS, Handshakes
from flowguard.node.connect.partings import Partings
from flowguard.node.connect.parts import ConnectParts
from flowguard.node.connect.registry import Registry
from flowguard.node.connect.rejections import WILL_REFUSED
from flowguard.node.connect.reviews import Reviews
from flowguard.node.journal import Journal
from flowguard.node.loop.pages import Pages
from flowguard.node.peers.links import Announcer, join_cluster
from flowguard.node.publish.full_queues import FullQueues
from flowguard.node.publish.packets import PacketRouting
from flowguard.node.publish.publishing import Router
from flowguard.node.subscribe.subscribing import Subscriptions
from flowguard.node.upkeep.dead_letters import DeadLetters
from flowguard.node.upkeep.due import Due
from flowguard.node.upkeep.outage import StoreOutage
from flowguard.node.upkeep.timers import Timers, Wheel
from flowguard.records import QueueEntry
from flowguard.session.connection import ServerConnection
from flowguard.session.conversation import Sender
from flowguard.session.host import Lifecycle
from flowguard.session.node_state import NodeState
from flowguard.session.outbound.fetch import Fetch
from flowguard.session.outbound.messages import Outbound
from flowguard.session.owner import MessageSink, page_fetched, use_disk
from flowguard.session.states import State
from flowguard.stores import ApplicationStore, Fenced, Store, StoreLoad
from flowguard.types import ReasonCode

HALF_PACKET_S: Final = 2.0
"""Time limit of an incomplete packet without progress if memory for input is short, seconds."""
TurnedAway = Callable[[ServerConnection, ReasonCode, str], None]
"""Called for each CONNACK with an error, and for each connection that ends for breaking MQTT.
It takes the connection, the reason code, and an explanation or ""."""
Answered = tuple[Fetch, list[QueueEntry]]
"""A request to the store, and its answer."""


@dataclass(slots=True)
class Surroundings:
    """Random numbers, time, and callbacks; a node has none of its own."""

    random_id: Callable[[], str]
    draw: Callable[[], float]
    """Returns a number in [0, 1)."""
    processor_clock: Callable[[], float]
    """Returns the processor time of the loop, seconds."""
    on_error: Callable[[Exception], None] | None = None
    """Called for an error in a connection, or None to raise the error."""
    on_turned_away: TurnedAway | None = None


@final
class Node(Lifecycle[ServerConnection]):
    def __init__(
        self,
        bounds: Bounds,
        now_s: float,
        surroundings: Surroundings,
        *,
        hooks: Hooks | None = None,
        cluster: Members | tuple[Cluster, Tell] | None = None,
        shadow: FlowSettings | None = None,
        keeps_apart: bool = False,
    ) -> None:
        """`cluster` is the nodes of its cluster, or as for `Guard`.

        `shadow` is limits that only watch (`Guard`). `keeps_apart` if its store is an
        `ApplicationStore`.
        """
        self.bounds = bounds
        self.settings = settings = bounds.settings
        self.hooks, self.started_s = hooks or Hooks(), now_s
        announcer, members = Announcer(), None
        if isinstance(cluster, Members):
            members = cluster
            cluster = Cluster.of(members, settings.flow), announcer.send
        self.guard: Guard[ServerConnection] = Guard(
            settings.flow,
            bounds.memory_bytes,
            self._decided,
            draw=surroundings.draw,
            is_full=self._admits_nothing,
            cluster=cluster,
            shadow=shadow,
        )
        window = self.guard.window
        self.journal = self._journal(keeps_apart=keeps_apart)
        self.state = state = NodeState(bounds, window, self.journal, self.broke)
        """State that connections share."""
        self.counters = state.counters
        state.sent, state.moving = self.journal.sent, self.journal.moving
        self.pages: Pages[Fetch, Answered | Outbound] = Pages(moving=state.moving)
        state.fetches, state.replays = self.pages.wanted, cast("deque[Sender]", self.pages.ready)
        self.store_load = StoreLoad()
        """Load and state of the store at the last tick."""
        self.timers = Timers(self.broke)
        self.wheel: Wheel[ServerConnection] = Wheel(now_s)
        lane = lane_of(self.journal, self.counters, settings.flow)
        self.router = Router(state, self.journal, self.hooks, lane)
        join_cluster(state, self.journal, self.router, members, cluster and cluster[0], announcer)
        self._due = Due(state.chores, self.router, self.timers, self.wheel, self._look_at)
        self.full_queues = FullQueues(state, self.router)
        state.expired = DeadLetters(state, self.router, self.journal).expired
        self.registry = Registry(state, self.router, self.journal, self.timers)
        self.subscriptions = Subscriptions(state, self.router, self.hooks, self.full_queues)
        self.reviews = Reviews(state, self.registry, self.subscriptions)
        self.packets = PacketRouting(state, self.router, self.full_queues, self.subscriptions)
        self.attempts, self.door, self.partings = Attempts(), Door(), Partings(settings.flow)
        self.handshakes = self._handshakes(surroundings)
        self.outage = StoreOutage(state, self.journal, self.handshakes)
        self.connections_count = 0
        self._on_error = surroundings.on_error
        self.on_turned_away = surroundings.on_turned_away

    def _journal(self, *, keeps_apart: bool) -> Journal:
        kind = DividedJournal if keeps_apart else Journal
        return kind.create(self.settings.flow, self.guard.window, self.guard.observer)

    def _handshakes(self, surroundings: Surroundings) -> Handshakes:
        parts = ConnectParts(
            self.state,
            self.hooks,
            self.guard,
            self.journal,
            self.router,
            self.registry,
            self.subscriptions,
            self.reviews,
            self.packets,
            self.attempts,
            self.timers,
            self.wheel,
        )
        random_id, processor_clock = surroundings.random_id, surroundings.processor_clock
        return Handshakes(parts, self, random_id, processor_clock)

    # --- connections -------------------------------------------------------------------------

    def recover(self, store: Store, now_s: float) -> int:
        """Restore the content of the store before the first connection; return the session count.

        All of it is kept, even if limits are lower now; `check_restored` compares them.
        """
        if store.on_disk:
            use_disk(self.state)
        self.router.applications.use(store)
        assert isinstance(store, ApplicationStore) == isinstance(self.journal, DividedJournal)
        self.router.log.use(
            store,
            self.settings.session.log_threshold,
            keeps_applications=self.settings.store.application_store == "log",
        )
        if isinstance(store, ApplicationStore):
            self.router.queues.spread.use(store.groups, now_s)
            if store.groups is not None:
                self.router.lane.use_groups()
        load = store.load()
        self.observe_store(load)
        limit_bytes = self.settings.node.disk_queue_bytes_max
        if limit_bytes is None and load.free_bytes is not None:
            limit_bytes = (load.used_bytes + load.free_bytes) // 2
        if limit_bytes is not None:
            self.state.disk_queue_budget.limit_bytes = limit_bytes
        return self.registry.recover(store, now_s)

    def opened(self, transport: object, now_s: float, waited_s: float = 0.0) -> ServerConnection:
        """Add an accepted socket, which has waited in the kernel for `waited_s`.

        The peer has `connect_timeout_s` to become a client.
        """
        self.counters.connections_accepted += 1
        self.connections_count += 1
        connection = ServerConnection(self.state, self, transport, now_s, waited_s)
        self.attempts.began(connection, now_s - waited_s)
        self.wheel.watch(connection, now_s + self.settings.flow.connect_timeout_s)
        return connection

    def shook_hands(self, connection: ServerConnection, now_s: float) -> None:
        """Start the connect timeout again when the broker has done its part of a handshake."""
        if connection.state is State.OPENED:
            self.wheel.watch(connection, now_s + self.settings.flow.connect_timeout_s)

    def awaits_connect(self, connection: ServerConnection) -> bool:
        return connection.state is State.OPENED

    def closed(self) -> None:
        """Count a closed socket, whatever the reason."""
        self.connections_count -= 1

    def connect(self, connection: ServerConnection, packet: Connect, now_s: float) -> None:
        self.handshakes.connect(connection, packet, now_s)

    def authenticating(self, connection: ServerConnection) -> bool:
        return self.handshakes.authenticating(connection)

    def authenticate(self, connection: ServerConnection, packet: Auth, now_s: float) -> None:
        self.handshakes.authenticate(connection, packet, now_s)

    def _decided(self, connection: ServerConnection, admission: Admission, now_s: float) -> None:
        """Act on the guard's verdict about a CONNECT that waited; a failure ends only this one."""
        try:
            self.handshakes.follow(connection, admission, now_s)
        except Exception as error:
            self.failed(connection, error, now_s)

    def failed(self, connection: ServerConnection, error: Exception, now_s: float) -> None:
        """End a connection after an error of a hook or a bug; all others are not affected."""
        self.broke(error)
        connection.end(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, now_s)

    def broke(self, error: Exception) -> None:
        """Count and report an error of flowguard or of a hook; raises it if `on_error` is None."""
        self.counters.errors += 1
        if self._on_error is None:
            raise error
        self._on_error(error)

    def connection_ended(
        self, connection: ServerConnection, *, with_will: bool, now_s: float
    ) -> None:
        done = None
        if connection.is_parting:
            self.partings.begin(connection, now_s)
            done = partial(self.partings.durable, connection)
        self.counters.clients_connected -= 1
        self.wheel.forget(connection)
        self.guard.gone(connection, now_s)
        self.handshakes.disconnected(connection)
        session = connection.session
        assert session is not None
        if session.rights is not None:
            session.rights.leave()
        self.full_queues.left(session)
        self.router.lane.left(session)
        self.registry.disconnected(session, with_will=with_will, now_s=now_s, done=done)

    def refused_connects(self) -> Mapping[Reason, int]:
        """Return numbers of CONNECTs without capacity, at the gate or behind it, by reason."""
        return Counter(self.guard.gate.refused) + Counter(self.counters.connects_without_place)

    def refused(
        self, connection: ServerConnection, reason: ReasonCode, why: str, now_s: float
    ) -> None:
        self.counters.connects_refused += 1
        if why != WILL_REFUSED:
            self.counters.lives.refused(reason)
        if self.on_turned_away is not None:
            self.on_turned_away(connection, reason, why)
        self.attempts.ended(connection, REFUSED, now_s)

    def broken(self, connection: ServerConnection, error: PeerError) -> None:
        if self.on_turned_away is not None:
            self.on_turned_away(connection, error.reason_code, error.why)

    def handshake_ended(self, connection: ServerConnection, now_s: float) -> None:
        self.attempts.ended(connection, CLOSED, now_s)
        self.wheel.forget(connection)
        self.handshakes.left(connection, now_s)

    def replay(self, piece: Answered | Outbound, now_s: float) -> None:
        """Process a page that the store has read, or send more of a backlog."""
        if isinstance(piece, Outbound):
            piece.take_turn(now_s)
            return
        fetch, entries = piece
        if isinstance(fetch, LogFetch):
            self.router.log.came(fetch, now_s)
            return
        owner = fetch.owner
        assert isinstance(owner, MessageSink)
        if not owner.ended:
            page_fetched(owner, fetch, entries, self.state, now_s)

    def observe_store(self, load: StoreLoad) -> None:
        """Take the signals of the store, at the start and with every tick."""
        self.store_load = load
        self.guard.observer.store(load.state)
        self.state.read_only = load.read_only or self.journal.is_refused
        self.packets.doubt(in_doubt=load.in_doubt)

    def no_space(self, now_s: float) -> None:
        """Note that the store is full; the batch under way will be tried again.

        A CONNECT does not wait for that: it is rejected if its session must be durable.
        """
        self.journal.is_refused = True
        self.state.moving.count = 0  # Nothing waits for messages on their way any more.
        self.state.read_only = True
        self.handshakes.no_space(now_s)

    def store_away(self, now_s: float, why: str = "") -> None:
        """Note that the store is unavailable; the batch under way will be tried again."""
        self.state.is_store_away = True
        self.outage.why = why
        self.handshakes.store_away(now_s)

    def fence(self, client_ids: Fenced, now_s: float) -> None:
        """Forget sessions of another broker; the batch is durable except for their operations.

        A publisher of a message for one of them gets an error, or is disconnected.
        """
        self.state.is_store_away = False
        self.state.fenced = bool(client_ids)
        for client_id in client_ids:
            self.handshakes.fenced(client_id, now_s)
            self.registry.forget(client_id, now_s)

    def use_rules(self, rules: Rules, now_s: float) -> None:
        """Use new rules from now on, also for connected clients, one after the other.

        They replace other rules; a node without rules stays without them.
        """
        assert self.hooks.rules is not None
        rules.version = self.hooks.rules.version + 1
        self.hooks.rules = rules
        self.reviews.all_anew(rules, now_s)

    def paused(self, connection: ServerConnection, now_s: float) -> None:
        self.guard.paused(connection, now_s)

    # --- time --------------------------------------------------------------------------------

    def turn(self, now_s: float) -> None:
        """Continue clients that waited and may go on; called once per turn."""
        self.full_queues.turn(now_s)
        self.router.lane.turn(now_s)
        self.guard.turn(now_s)

    @property
    def has_work(self) -> bool:
        """True if another turn would find work without new events."""
        state = self.state
        begun = len(state.chores) > 0 or self.journal.has_answers
        return bool(begun or state.runnable or state.dirty or self.guard.has_work)

    def _admits_nothing(self) -> bool:
        """Return True if no window admits work now."""
        return self.state.draining or self.journal.is_full

    def tick(self, now_s: float, heard_s: float | None = None) -> None:
        """Handle deadlines and adapt the window; called every 100 ms.

        All data that peers had sent by `heard_s` (default: now) has been read. Deadlines of peers
        are checked against that time: after a pause the loop has to read before it decides.
        """
        if heard_s is None:
            heard_s = now_s
        parts: tuple[Callable[[], object], ...] = (
            partial(self.journal.observe, now_s),
            partial(self._tick_applications, now_s),
            partial(self.outage.tick, self.store_load, now_s),
            partial(self.guard.tick, now_s, heard_s),
            partial(self.full_queues.tick, heard_s),
            partial(self.router.peers.tick, now_s),
            self.subscriptions.searches.tick,
            self.router.plans.tidy,
            self.router.log.tick,
            self.state.wake_later,
            partial(self._end_half_packets, heard_s, now_s),
            partial(self.partings.tick, now_s),
            partial(self.registry.ends.tick, now_s, self.guard.gate.buffered),
            partial(self._due.tick, heard_s, now_s),
        )
        for part in parts:
            try:
                part()
            except StoreError:
                raise  # Nothing may be acknowledged any more.
            except Exception as error:
                self.broke(error)

    def _tick_applications(self, now_s: float) -> None:
        self.router.lane.tick(now_s)
        self.router.queues.spread.tick()
        if self.router.lane.is_away:
            self.handshakes.applications_away(now_s)

    def _end_half_packets(self, heard_s: float, now_s: float) -> None:
        """End stalled incomplete packets while input takes half of its memory."""
        holders = cast("Holders[ServerConnection]", self.state.input_holders)
        budget = holders.budget
        while 2 * budget.used_bytes > budget.limit_bytes:
            holder = holders.costliest(now_s, heard_s - HALF_PACKET_S)
            if holder is None:
                return
            holder.give_way(now_s)

    def _look_at(self, connection: ServerConnection, heard_s: float, now_s: float) -> None:
        try:
            self._end_if_late(connection, heard_s, now_s)
        except Exception as error:
            self.failed(connection, error, now_s)

    def _end_if_late(self, connection: ServerConnection, heard_s: float, now_s: float) -> None:
        """Enforce keep-alive [MQTT-3.1.2-22], and the time from accept to CONNACK."""
        state = connection.state
        handshakes = self.door.handshakes
        if handshakes is not None and handshakes.holds(connection.transport):
            self.shook_hands(connection, now_s)  # It waits for the broker.
        elif state is State.OPENED or (
            state is State.CONNECTING and self.handshakes.authenticating(connection)
        ):
            connection.end(None, now_s)
        elif state is State.CONNECTED and connection.keep_alive_s:
            if connection.blocked or connection.queued or not connection.wants_read:
                # The broker does not read its data, so its silence proves nothing.
                connection.last_received_s = now_s
            due_s = connection.last_received_s + connection.keep_alive_s
            if due_s <= heard_s:
                connection.end(ReasonCode.KEEP_ALIVE_TIMEOUT, now_s)
            else:
                self.wheel.watch(connection, due_s)

    def drain(self, now_s: float) -> None:
        """Admit nothing from now on, and reject waiting CONNECTs; work in process goes on."""
        self.state.draining = True
        self.registry.ends.store_all()
        while (connection := self.guard.gate.abandon_next()) is not None:
            connection.refuse(ReasonCode.SERVER_UNAVAILABLE, now_s, why=ENDS)
