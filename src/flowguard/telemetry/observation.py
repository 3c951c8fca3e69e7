"""Observation: a watched node, as rows of docs/reference/parquet-schema.md.

It reads what the node keeps anyway, and is told of attempts to connect; time and memory are
arguments. Counts of events are those since the rows before, across the end of a run.
"""

from collections.abc import Iterator
from typing import Final, final

from flowguard import __version__
from flowguard.config import Settings
from flowguard.flow import Reason
from flowguard.flow.histogram import Histogram
from flowguard.flow.observer import BOUNDS_S
from flowguard.flow.pressure import objectives_of
from flowguard.node.connect.attempts import CLOSED, CONNECTED
from flowguard.node.node import Node
from flowguard.telemetry.pending import Row
from flowguard.telemetry.rows import Decisions, sample_row
from flowguard.telemetry.schema import VERSION

POPULATION: Final = "all"
NODE: Final = 0
LIVE: Final = "live"
QUEUES: Final = frozenset(
    (
        Reason.QUEUE_MESSAGES,
        Reason.QUEUE_BYTES,
        Reason.NODE_QUEUE_BYTES,
        Reason.NODE_DISK_QUEUE_BYTES,
        Reason.OUTBOX_BYTES,
    )
)
"""Reasons for dropping a message that mean: a subscriber's queue is full."""
OWN_SECTION: Final = "telemetry"


def run_row(settings: Settings, policy: str, started_unix_s: float) -> Row:
    """The row of table `run`; its parameters are the settings that have not their defaults."""
    usual = Settings().model_dump()
    parameters = [
        (f"{section}.{key}", _text(value))
        for section, values in settings.model_dump().items()
        for key, value in values.items()
        if section != OWN_SECTION and value != usual[section][key]
    ]
    limits = [(key, _text(value)) for key, value in settings.flow.model_dump().items()]
    described = ("broker", __version__, LIVE, policy, None, 1, None)
    times = (settings.telemetry.run_s, started_unix_s, None, None)
    return (VERSION, *described, *times, None, None, None, parameters, limits, "")


def _text(value: object) -> str:
    """The value, without the user and password of a URL."""
    scheme, separator, place = ("" if value is None else str(value)).partition("://")
    return f"{scheme}{separator}{place.rpartition('@')[2]}" if separator else scheme


@final
class Observation:
    """The observation of one node; `begin` a run first."""

    def __init__(self, node: Node, memory_limit_bytes: int) -> None:
        self._node = node
        self._objectives = objectives_of(node.settings.flow)
        self._memory_limit_bytes = memory_limit_bytes
        self._started_s = 0.0
        self._counts = self._node_counts()
        self._busy_s: float | None = None
        self._arrivals = self._arrivals_count()
        self._closed_count = node.counters.connections_closed
        self._flows = self._flow_counts()
        self._declined_count = 0
        self._ended_s = 0.0
        self._client = 0
        self._connects = Histogram(BOUNDS_S)
        latencies = {
            "acknowledgement": node.router.acknowledgements.latency,
            "connect": self._connects,
        }
        self._latencies = [(kind, each, each.counts.copy()) for kind, each in latencies.items()]
        """Kind, all observations, and those already told."""
        self._decided_s = 0.0
        self._decisions = Decisions(NODE)

    def begin(self, now_s: float) -> None:
        """A run begins now; its decisions begin with what is in force."""
        guard = self._node.guard
        self._started_s = self._decided_s = self._ended_s = now_s
        self._client = 0
        self._decisions.begin(guard.grant.window, guard.gate)

    def t_s(self, now_s: float) -> float:
        return max(0.0, now_s - self._started_s)

    # --- samples -----------------------------------------------------------------------------

    def sample(self, now_s: float, memory_bytes: int, busy_s: float) -> Row:
        """A row of table `samples`; `busy_s`: the loop's working time so far, from any start."""
        node = self._node
        counts = self._node_counts()
        since = [now - before for now, before in zip(counts, self._counts, strict=True)]
        worked_s = None if self._busy_s is None else busy_s - self._busy_s
        self._counts, self._busy_s = counts, busy_s
        return sample_row(
            NODE,
            self.t_s(now_s),
            node.guard.grant,
            node.guard.gate,
            node.guard.window,
            self._objectives,
            (None, node.connections_count),
            None,
            (memory_bytes, self._memory_limit_bytes),
            # What is acknowledged is stored: nothing of it gets lost while the process lives.
            (*since[:-1], 0, since[-1], worked_s, None),
        )

    def _node_counts(self) -> tuple[int, ...]:
        """Counts of the node from accepted to delivered, as the table has them, then dropped."""
        node = self._node
        counters, refused = node.counters, node.guard.gate.refused
        discarded_count = refused.get(Reason.GATE_SUPERSEDED, 0)
        return (
            counters.connects_accepted,
            sum(refused.values()) - discarded_count,
            discarded_count,
            counters.connections_closed,
            counters.publish_received,
            counters.publish_sent,
            sum(count for reason, count in counters.dropped.items() if reason in QUEUES),
        )

    # --- goodput and attempts ----------------------------------------------------------------

    def goodput(self, now_s: float) -> Row:
        """A row of table `goodput`; call it after `closed_at_once`."""
        node = self._node
        arrivals, flows = self._arrivals_count(), self._flow_counts()
        attempts_count = arrivals - self._arrivals
        acknowledged_count = flows[0] - self._flows[0]
        delivered_count = flows[1] - self._flows[1]
        declined_count, self._declined_count = self._declined_count, 0
        self._arrivals, self._flows = arrivals, flows
        known = (None, node.connected_count, None, attempts_count, declined_count, None, None)
        return (POPULATION, self.t_s(now_s), *known, acknowledged_count, None, delivered_count)

    def _arrivals_count(self) -> int:
        counters = self._node.counters
        return counters.connections_accepted + counters.connections_closed

    def _flow_counts(self) -> tuple[int, int]:
        return self._node.counters.publish_received, self._node.counters.publish_sent

    def attempt(self, since_s: float, until_s: float, outcome: str) -> Row:
        """A row of table `attempts`."""
        if outcome == CONNECTED:
            self._connects.observe(until_s - since_s)
        else:
            self._declined_count += 1
        # A turn's clock may be a little behind that of a commit; rows are in order.
        ended_s = self._ended_s = max(self._ended_s, until_s)
        client = self._client
        self._client += 1
        times = (self.t_s(since_s), self.t_s(ended_s))
        return (POPULATION, client, None, NODE, *times, outcome)

    def closed_at_once(self, now_s: float) -> Iterator[Row]:
        """Rows of table `attempts`: sockets that were closed before anything of them was read."""
        count = self._node.counters.connections_closed
        for _ in range(count - self._closed_count):
            yield self.attempt(now_s, now_s, CLOSED)
        self._closed_count = count

    # --- latencies ---------------------------------------------------------------------------

    def latencies(self, now_s: float) -> Iterator[Row]:
        """Rows of table `latencies`: those observed since the last call."""
        t_s = self.t_s(now_s)
        for kind, latency, told in self._latencies:
            for bound_s, count in latency.grown(told):
                yield POPULATION, kind, t_s, bound_s, count

    # --- decisions ---------------------------------------------------------------------------

    def decisions(self, now_s: float) -> Iterator[Row]:
        """Rows of table `decisions`: those since the last call, as far as the node remembers
        them."""
        guard = self._node.guard
        decided = [each for each in guard.decisions if each[0] > self._decided_s]
        if decided:
            self._decided_s = decided[-1][0]
        timed = [(self.t_s(at_s), grant) for at_s, grant in decided]
        t_s = self.t_s(now_s)
        yield from self._decisions.rows(timed, guard.grant, guard.gate, t_s)
