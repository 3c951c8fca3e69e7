"""Publishers: the messages that connected clients of a population send, QoS 1.

Open loop: messages are due at the instants of a Poisson process while the client is connected,
independently of the broker. Those that may not be sent yet (`outstanding`, Receive Maximum) wait at
the client, and their latency includes this wait. Closed loop: the next one is due when an
acknowledgement frees a slot. Messages not acknowledged when the connection ends are sent again on
the next one.
"""

from array import array
from dataclasses import dataclass, field
from typing import Final, final

from flowguard.config import SessionSettings
from flowguard.flow.load.histogram import LATENCY_BOUNDS_S, Histogram
from flowguard.session.handshake import receive_maximum_of
from simulations.crowd.connection import Connection, send
from simulations.draws import Draws
from simulations.engine import Engine
from simulations.scenario import PublishPlan, Scenario
from simulations.scenario_files.traces import Curve

FINE_BOUNDS_S: Final = tuple(0.000_1 * 1.01**n for n in range(1_400))
"""Upper bounds of buckets for latencies that must be exact to a few per cent; each is 1 % wide."""


@final
@dataclass(slots=True, eq=False)
class _Publisher:
    """One client's due messages; the first `sent` of them are in flight."""

    due_s: list[float] = field(default_factory=list)
    sent: int = 0
    limit: int = 0


@final
class Publishers:
    """The publishing half of a population."""

    def __init__(
        self,
        name: str,
        clients: int,
        plan: PublishPlan,
        scenario: Scenario,
        session: SessionSettings,
        engine: Engine,
    ) -> None:
        """`name` and `clients` are those of the population."""
        self.plan = plan
        self.due_count = 0
        """Number of messages that were due while their clients were connected."""
        self.acknowledged_count = 0
        self.in_time_count = 0
        """Messages acknowledged within their deadline."""
        self.acknowledgements = Histogram(LATENCY_BOUNDS_S)
        """Times from the instant a PUBLISH was due to its PUBACK."""
        self.acknowledged_counts = array("L", bytes(8 * clients))
        """Acknowledged messages by client; so are the next two."""
        self.in_time_counts = array("L", bytes(8 * clients))
        self.cost_units = array("L", bytes(8 * clients))
        """Cost of the nodes' work by client."""
        self.weights = array("L", [1]) * clients
        """Weight of each client's last finished message, cost units."""
        self._clients = clients
        self._engine = engine
        self._latency_s = scenario.network.latency_s
        self._receive_maximum = session.receive_maximum
        self._mean_s = None if plan.rate_per_s is None else 1.0 / plan.rate_per_s
        self._curve = None if plan.trace is None else Curve(plan.trace)
        self._is_open = plan.rate_per_s is not None or plan.trace is not None
        self._gaps = Draws(scenario.seed, f"{name}: publish")
        self._counts = array("L", bytes(8 * clients))
        self._publishers: list[_Publisher | None] = [None] * clients

    def start(self, connection: Connection, at_s: float) -> None:
        """Start at `at_s`, when it is connected: send unacknowledged messages again, then go on."""
        client = connection.client
        publisher = self._publishers[client]
        if publisher is None:
            publisher = self._publishers[client] = _Publisher()
            if self._is_open:
                publisher.due_s = [at_s] * self.plan.collected
                self.due_count += self.plan.collected
        publisher.sent = 0
        publisher.limit = self.plan.outstanding
        if self.plan.v5:
            window = connection.broker.guard.window.limit
            allowance = receive_maximum_of(window, self.weights[client])
            publisher.limit = min(publisher.limit, self._receive_maximum, allowance)
        self._pump(connection, publisher, at_s)
        if self._is_open:
            self._schedule(connection, at_s)

    def _schedule(self, connection: Connection, after_s: float) -> None:
        client = connection.client
        count = self._counts[client]
        self._counts[client] = count + 1
        due_s = self._next_s(after_s, self._gap(client, count))
        if due_s is not None:
            # The instant of arrival, if the message may be sent at once: one event serves both.
            when_s = max(due_s + self._latency_s, self._engine.now_s)
            self._engine.at(when_s, self._on_due, connection)

    def _gap(self, client: int, count: int) -> float:
        """Return the gap to the next message, of mean 1; even ones begin at a random phase."""
        if not self.plan.even:
            return self._gaps.exponential(client, count)
        return 1.0 if count else self._gaps.uniform(client)

    def _next_s(self, after_s: float, gap: float) -> float | None:
        """Return when the next message is due, or None after the end of the trace.

        `gap` has the mean 1.
        """
        curve = self._curve
        if curve is not None:
            return curve.when(curve.by(after_s) + gap * self._clients)
        assert self._mean_s is not None
        return after_s + gap * self._mean_s

    def _on_due(self, connection: Connection) -> None:
        if not connection.is_alive:
            return
        publisher = self._publishers[connection.client]
        assert publisher is not None
        due_s = self._engine.now_s - self._latency_s
        self.due_count += 1
        publisher.due_s.append(due_s)
        if publisher.sent < publisher.limit:
            publisher.sent += 1
            connection.broker.receive(connection, due_s)
        self._schedule(connection, due_s)

    def _pump(self, connection: Connection, publisher: _Publisher, at_s: float) -> None:
        """Send the messages that may be sent at `at_s`."""
        if not self._is_open:
            for _ in range(publisher.limit - len(publisher.due_s)):
                publisher.due_s.append(at_s)
                self.due_count += 1
        while publisher.sent < min(publisher.limit, len(publisher.due_s)):
            due_s = publisher.due_s[publisher.sent]
            publisher.sent += 1
            send(self._engine, connection, due_s, at_s + self._latency_s)

    def acknowledged(self, connection: Connection, due_s: float, at_s: float) -> None:
        client = connection.client
        publisher = self._publishers[client]
        assert publisher is not None
        if not publisher.sent:
            return  # Acknowledgement of an earlier connection.
        publisher.sent -= 1
        publisher.due_s.remove(due_s)
        self.acknowledged_count += 1
        self.acknowledged_counts[client] += 1
        latency_s = at_s - due_s
        self.acknowledgements.observe(latency_s)
        if latency_s <= self.plan.deadline_s:
            self.in_time_count += 1
            self.in_time_counts[client] += 1
        self._pump(connection, publisher, at_s)
