"""Clients: populations that connect, are rejected, time out, reconnect, and publish once connected.

A client is a row in a few arrays and, while it has one, a `Connection`. A client's random draws are
addressed by its number and the number of its attempt (`simulations.draws`), so that every policy
meets the same crowd.

The model of the network: a connection attempt takes three one-way latencies until the node has its
CONNECT (SYN, SYN-ACK, ACK with data). If the listen backlog is full, the SYN is lost, and the
client's kernel sends it again after 1, 3 and 7 s. If no process listens, the answer is a reset.
"""

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

from flowguard.flow.load.histogram import LATENCY_BOUNDS_S, Histogram
from simulations.crowd.connection import (
    CONNECTED,
    ENDED,
    KNOCKING,
    Attempt,
    Connection,
    Outcome,
    send,
)
from simulations.crowd.publishers import Publishers
from simulations.crowd.retry import Retry
from simulations.draws import Draws
from simulations.engine import Lane
from simulations.process.shard_places import INTERVAL_S
from simulations.scenario import PopulationPlan
from simulations.scenario_files.traces import Curve

if TYPE_CHECKING:
    from simulations.crowd.topics import Topic
    from simulations.world import World

HANDSHAKE_LATENCIES: Final = 3.0
KNOCK_AGAIN_S: Final = (1.0, 2.0, 4.0)
"""Times from one SYN to the next, seconds; a client's time-out comes before the fourth."""
NEVER_S: Final = -1.0


@final
class Population:
    """Clients that behave alike."""

    def __init__(self, world: "World", name: str, plan: PopulationPlan) -> None:
        seed = world.scenario.seed
        engine = world.engine
        self.world = world
        self.name = name
        self.plan = plan
        self.topic: Topic | None = None
        self.publishers: Publishers | None = None
        self.homes = bytearray(plan.clients)
        """The node that has the client's session, plus 1; 0 if none has."""
        self.connections: list[Connection | None] = [None] * plan.clients
        """The attempt under way, or the connection."""
        self.attempts = array("L", bytes(8 * plan.clients))
        self.attempts_count = 0
        self.arrived_count = 0
        """Clients that have made an attempt."""
        self.starts_s = array("d")
        """Start of each client's first attempt, seconds."""
        self.first_connected_s = array("d", [NEVER_S]) * plan.clients
        self.connects = Histogram(LATENCY_BOUNDS_S)
        """Times from the start of the attempt that succeeded to its CONNACK; first connections."""
        self.connected_count = 0
        """Number of connected clients, as the clients see it."""
        self.first_connected_count = 0
        self.given_up_count = 0
        self.queued = array("L", [plan.queued]) * plan.clients
        self.replayed_count = 0
        """Number of queued messages that were sent and acknowledged."""
        self.replayed_last_s = NEVER_S
        self.wasted_count = 0
        """Number of CONNECTs served for clients that had left or given up waiting."""
        self.outcomes = [0] * len(Outcome)
        self.subscribed_counts = [0] * world.scenario.nodes
        self.subscribed_version = 0
        self._failures = bytearray(plan.clients)
        self._latency_s = world.scenario.network.latency_s
        self._handshake_s = HANDSHAKE_LATENCIES * self._latency_s
        self._retry = Retry(plan.retry, seed, name)
        self._starts = Draws(seed, f"{name}: start")
        self._nodes = Draws(seed, f"{name}: node")
        self._subscribed = bytearray(plan.clients)
        self._deadlines = Lane(engine, self._time_out, _is_answered)
        self._knocks = [Lane(engine, self._knock, _is_gone) for _ in KNOCK_AGAIN_S]
        self._hang_ups: Lane[Connection] = Lane(engine, lambda c: c.broker.hang_up(c))
        self._arrivals = Lane(engine, self._attempt)
        self._silences = Lane(engine, self._on_silence, _is_gone)
        self._pings: Lane[Connection] = Lane(engine, lambda c: c.broker.ping(c))

    @property
    def clients(self) -> int:
        return self.plan.clients

    def start(self) -> None:
        """Schedule the first attempt of each client."""
        plan, draw = self.plan, self._starts.uniform
        if plan.arrivals is None:
            times_s = [plan.start_s + plan.start_over_s * draw(c) for c in range(self.clients)]
        else:
            curve, clients = Curve(plan.arrivals), self.clients
            shares = ((client + draw(client)) / clients for client in range(clients))
            times_s = [plan.start_s + (curve.when(s * curve.total) or 0.0) for s in shares]
        self.starts_s = array("d", times_s)
        for client in sorted(range(self.clients), key=times_s.__getitem__):
            self._arrivals.add(times_s[client] + self._handshake_s, client)

    def client_id(self, client: int) -> str:
        return f"{self.name}-{client}"

    # --- connecting --------------------------------------------------------------------------

    def _attempt(self, client: int) -> None:
        """Make an attempt: its CONNECT arrives at a node, or its SYN does not."""
        now_s = self.world.engine.now_s
        node = self._node_for(client, self.attempts[client])
        if node is None:  # The node that accepts it waits until a node serves the shard.
            self.world.engine.at(now_s + INTERVAL_S, self._attempt, client)
            return
        number = self.attempts[client]
        self.attempts[client] = number + 1
        self.attempts_count += 1
        if not number:
            self.arrived_count += 1
        started_s = now_s - self._handshake_s
        broker = self.world.machines[node].broker
        if broker is None:
            times_s = (started_s, now_s)
            self._fail(Attempt(self.name, client, number, node, *times_s, Outcome.UNREACHABLE))
            return
        deadline_s = started_s + self.plan.timeout_s
        connection = Connection(self, broker, client, number, started_s, deadline_s)
        self.connections[client] = connection
        self._deadlines.add(deadline_s, connection)
        self._knock(connection)

    def _node_for(self, client: int, number: int) -> int | None:
        at: Sequence[int] = self.plan.at or range(self.world.scenario.nodes)
        nodes = len(at)
        match self.plan.node:
            case "round-robin":
                return at[(client + number) % nodes]
            case "random":
                return at[int(nodes * self._nodes.uniform(client, number))]
            case "balanced":
                living: Sequence[int] = self.world.living
                if self.plan.at:
                    living = [node for node in living if node in at]
                living = living or at
                return living[int(len(living) * self._nodes.uniform(client, number))]
            case "shard":
                places = self.world.places
                assert places is not None
                return places.node_of(places.shards_of(self.name, self.clients)[client])
            case "next":
                # A client that was connected reconnects to the same node, unless that fails. Then
                # half of the clients try the nodes upwards, the other half downwards.
                home = self.homes[client]
                first = at.index(home - 1) if home else client
                failures = self._failures[client]
                return at[(first + (failures if client & 1 else -failures)) % nodes]

    def _knock(self, connection: Connection) -> None:
        broker = connection.broker
        if broker.loop.ended:
            self.closed(connection, self.world.engine.now_s)
        elif not broker.knock(connection) and connection.knocks < len(KNOCK_AGAIN_S):
            again_s = KNOCK_AGAIN_S[connection.knocks]
            self._knocks[connection.knocks].add(self.world.engine.now_s + again_s, connection)
            connection.knocks += 1

    def _time_out(self, connection: Connection) -> None:
        """End an attempt without an answer in time: the client closes, and tries again later."""
        now_s = self.world.engine.now_s
        self._close(connection)
        self._fail(self._ended(connection, now_s, Outcome.TIMED_OUT))

    def _close(self, connection: Connection) -> None:
        """Close the client's end. The node gets the hang-up if it ever accepted the connection."""
        connection.is_alive = False
        if KNOCKING < connection.state < ENDED:
            self._hang_ups.add(self.world.engine.now_s + self._latency_s, connection)

    # --- what nodes answer; `sent_s` may be ahead of the engine's clock ----------------------

    def accepted(self, connection: Connection, sent_s: float) -> None:
        """Receive CONNACK 0."""
        at_s = sent_s + self._latency_s
        if not connection.is_alive or at_s > connection.deadline_s:
            self.wasted_count += 1
            return
        client = connection.client
        self._count(self._ended(connection, at_s, Outcome.CONNECTED))
        self.connected_count += 1
        self._failures[client] = 0
        if self.first_connected_s[client] == NEVER_S:
            self.first_connected_s[client] = at_s
            self.first_connected_count += 1
            self.connects.observe(at_s - connection.started_s)
            self.world.on_decided()
        if self.plan.stay_s is not None:
            leaves_s = max(at_s + self.plan.stay_s, self.world.engine.now_s)
            self.world.engine.at(leaves_s, self._leave, connection)
        if self.plan.subscribes:
            send(self.world.engine, connection, None, at_s + self._latency_s)
        if self.publishers is not None:
            self.publishers.start(connection, at_s)
        if self.plan.keep_alive_s:
            self.world.engine.at(at_s, self._begin_silence, connection)

    def refused(self, connection: Connection, sent_s: float, hint_s: float) -> None:
        """Receive CONNACK 0x89 (Server busy); `hint_s` is 0 if it has no `retry-after-ms`."""
        at_s = sent_s + self._latency_s
        if connection.is_alive and at_s <= connection.deadline_s:
            connection.is_alive = False
            self._fail(self._ended(connection, at_s, Outcome.REFUSED), hint_s or None)

    def closed(self, connection: Connection, sent_s: float) -> None:
        """The connection was closed without a packet."""
        at_s = sent_s + self._latency_s
        if not connection.is_alive:
            return
        if connection.outcome is Outcome.CONNECTED:
            connection.is_alive = False
            self._lose(connection, at_s)
        elif at_s <= connection.deadline_s:
            connection.is_alive = False
            self._fail(self._ended(connection, at_s, Outcome.CLOSED))

    def _lose(self, connection: Connection, at_s: float) -> None:
        client = connection.client
        self.connected_count -= 1
        self.connections[client] = None
        self._failures[client] = 1
        self._come_back(client, at_s, self._retry.delay_s(client, 1, self.attempts[client], None))

    def _ended(self, connection: Connection, at_s: float, outcome: Outcome) -> Attempt:
        connection.outcome = outcome
        client, node = connection.client, connection.broker.node
        times_s = (connection.started_s, at_s)
        return Attempt(self.name, client, connection.attempt, node, *times_s, outcome)

    def _fail(self, attempt: Attempt, hint_s: float | None = None) -> None:
        client = attempt.client
        self.connections[client] = None
        self._count(attempt)
        failures = self._failures[client] = min(255, self._failures[client] + 1)
        delay_s = self._retry.delay_s(client, failures, attempt.number, hint_s)
        self._come_back(client, attempt.ended_s, delay_s)

    def _come_back(self, client: int, at_s: float, delay_s: float | None) -> None:
        if delay_s is None:
            self.given_up_count += 1
            if self.first_connected_s[client] == NEVER_S:
                self.world.on_decided()
        else:
            self.world.engine.at(at_s + delay_s + self._handshake_s, self._attempt, client)

    def _count(self, attempt: Attempt) -> None:
        self.outcomes[attempt.outcome] += 1
        on_attempt = self.world.on_attempt
        if on_attempt is not None:
            on_attempt(attempt)

    def _leave(self, connection: Connection) -> None:
        if connection.is_alive:
            self.connected_count -= 1
            self.connections[connection.client] = None
            self._close(connection)

    def replayed(self, client: int, count: int, now_s: float) -> None:
        """Count messages that had waited for the client and are acknowledged."""
        self.queued[client] -= count
        self.replayed_count += count
        self.replayed_last_s = now_s

    # --- being connected ---------------------------------------------------------------------

    def finished(self, connection: Connection, due_s: float, cost: int, sent_s: float) -> None:
        """Book the cost of a message, and receive its PUBACK if the client is still connected."""
        publishers = self.publishers
        assert publishers is not None
        publishers.cost_units[connection.client] += cost
        publishers.weights[connection.client] = cost
        if connection.state == CONNECTED and connection.is_alive:
            publishers.acknowledged(connection, due_s, sent_s + self._latency_s)

    def keep(self, client: int, node: int) -> None:
        """Note the node that has the client's session."""
        self.homes[client] = node + 1

    def subscribed(self, connection: Connection) -> None:
        """Receive a SUBACK; called at the node's instant."""
        if not self._subscribed[connection.client]:
            self._subscribed[connection.client] = 1
            self.subscribed_counts[connection.broker.node] += 1
            self.subscribed_version += 1

    def left(self, connection: Connection) -> None:
        """The node has noticed that the client has disconnected."""
        if self._subscribed[connection.client] and (
            self.homes[connection.client] == connection.broker.node + 1
        ):
            self._subscribed[connection.client] = 0
            self.subscribed_counts[connection.broker.node] -= 1
            self.subscribed_version += 1

    def place_of(self, client: int) -> int | None:
        """Return the node to which a subscriber is connected, or None."""
        connection = self.connections[client]
        if connection is None or not self._subscribed[client]:
            return None
        return connection.broker.node if connection.state == CONNECTED else None

    def _begin_silence(self, connection: Connection) -> None:
        self._silences.add(self.world.engine.now_s + self.plan.keep_alive_s, connection)

    def _on_silence(self, connection: Connection) -> None:
        """Send PINGREQ, even if something else was sent meanwhile, as most clients do."""
        now_s = self.world.engine.now_s
        self._pings.add(now_s + self._latency_s, connection)
        self._silences.add(now_s + self.plan.keep_alive_s, connection)


def _is_gone(connection: Connection) -> bool:
    return not connection.is_alive


def _is_answered(connection: Connection) -> bool:
    return not connection.is_alive or connection.outcome is not None
