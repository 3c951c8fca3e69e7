"""Observation: a watched node, as rows of docs/parquet-schema.md.

It reads what the node keeps anyway, and is told of attempts to connect; time and memory are
arguments. Counts of events are those since the rows before, across the end of a run.
"""

from bisect import bisect_left
from collections.abc import Iterator
from math import inf
from typing import Final, final

from flowguard import __version__
from flowguard.config import Settings
from flowguard.flow import Reason, Rung, Signal
from flowguard.flow.observer import BOUNDS_S
from flowguard.flow.pressure import objectives_of
from flowguard.flow.signals import Pressure
from flowguard.node.attempts import CLOSED, CONNECTED
from flowguard.node.node import Node
from flowguard.telemetry.pending import Row
from flowguard.telemetry.schema import VERSION

POPULATION: Final = "all"
NODE: Final = 0
LIVE: Final = "live"
BUCKETS_S: Final = (*BOUNDS_S, inf)
"""Upper bounds of the buckets."""
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
    return "" if value is None else str(value)


@final
class Observation:
    """The observation of one node; `begin` a run first."""

    def __init__(self, node: Node, memory_limit_bytes: int) -> None:
        objectives = objectives_of(node.settings.flow)
        self._node = node
        self._memory_limit_bytes = memory_limit_bytes
        self._queue_s = objectives.queue_s
        self._loop_s = objectives.loop_s
        self._store_s = objectives.store_s
        self._started_s = 0.0
        self._counts = self._node_counts()
        self._busy_s: float | None = None
        self._arrivals = self._arrivals_count()
        self._closed_count = node.counters.connections_closed
        self._flows = self._flow_counts()
        self._declined_count = 0
        self._ended_s = 0.0
        self._client = 0
        self._connects = [0] * len(BUCKETS_S)
        self._acknowledged = node.router.acknowledgements.latency.cumulative()
        self._decided_s = 0.0
        self._window = 0.0
        self._limit = 0
        self._rung = Rung.BUFFER

    def begin(self, now_s: float) -> None:
        """A run begins now; its decisions begin with what is in force."""
        guard = self._node.guard
        self._started_s = self._decided_s = self._ended_s = now_s
        self._client = 0
        self._window = guard.grant.window
        self._limit = guard.gate.limit
        self._rung = guard.gate.rung

    def t_s(self, now_s: float) -> float:
        """Time since the start of the run."""
        return max(0.0, now_s - self._started_s)

    # --- samples -----------------------------------------------------------------------------

    def sample(self, now_s: float, memory_bytes: int, busy_s: float) -> Row:
        """A row of table `samples`; `busy_s`: the loop's working time so far, from any start."""
        pressure = self._node.guard.grant.pressure
        parts = pressure.parts
        queue = parts.get(Signal.QUEUE, 0.0)
        loop = parts.get(Signal.LOOP, 0.0)
        store = parts.get(Signal.STORE, 0.0)
        counts = self._node_counts()
        since = [now - before for now, before in zip(counts, self._counts, strict=True)]
        worked_s = None if self._busy_s is None else busy_s - self._busy_s
        self._counts, self._busy_s = counts, busy_s
        return (
            NODE,
            self.t_s(now_s),
            True,
            pressure.value,
            queue,
            loop,
            store,
            parts.get(Signal.REPLICATION, 0.0),
            parts.get(Signal.MEMORY, 0.0),
            _name(pressure),
            *self._levels(),
            memory_bytes,
            self._memory_limit_bytes,
            *since[:-1],
            0,  # What is acknowledged is stored: nothing of it gets lost while the process lives.
            since[-1],
            worked_s,
            None,
            # The parts are these by their objectives; a store that says it stalls has more.
            queue * self._queue_s,
            loop * self._loop_s,
            store * self._store_s,
        )

    def _levels(self) -> Row:
        node = self._node
        gate, window = node.guard.gate, node.window
        return (
            node.guard.grant.window,
            gate.limit,
            gate.rung.name.lower(),
            gate.in_process,
            gate.buffered,
            gate.buffered_bytes,
            None,
            node.connections_count,
            window.in_process,
            None,
            window.in_process_bytes,
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
            self._connects[bisect_left(BUCKETS_S, until_s - since_s)] += 1
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
        acknowledged = self._node.router.acknowledgements.latency.cumulative()
        below = 0
        for bucket, bound_s in enumerate(BUCKETS_S):
            until = acknowledged[bucket] - self._acknowledged[bucket]
            if until > below:
                yield POPULATION, "acknowledgement", t_s, bound_s, until - below
            below = until
        self._acknowledged = acknowledged
        for bucket, count in enumerate(self._connects):
            if count:
                yield POPULATION, "connect", t_s, BUCKETS_S[bucket], count
                self._connects[bucket] = 0

    # --- decisions ---------------------------------------------------------------------------

    def decisions(self, now_s: float) -> Iterator[Row]:
        """Rows of table `decisions`: those since the last call, as far as the node remembers
        them."""
        guard = self._node.guard
        decided = guard.decisions
        if decided and decided[-1][0] > self._decided_s:
            for at_s, grant in decided:
                if at_s > self._decided_s:
                    change = (self._window, grant.window)
                    self._window = grant.window
                    pressed = (grant.pressure.value, _name(grant.pressure), grant.why)
                    yield NODE, self.t_s(at_s), "window", *change, *pressed
            self._decided_s = decided[-1][0]
        limit, rung = guard.gate.limit, guard.gate.rung
        if limit != self._limit or rung is not self._rung:
            yield from self._gate_decisions(self.t_s(now_s), limit, rung)

    def _gate_decisions(self, t_s: float, limit: int, rung: Rung) -> Iterator[Row]:
        pressure = self._node.guard.grant.pressure
        pressed = (pressure.value, _name(pressure), _why(pressure))
        if limit != self._limit:
            yield NODE, t_s, "connect_limit", float(self._limit), float(limit), *pressed
            self._limit = limit
        if rung is not self._rung:
            yield NODE, t_s, "rung", float(self._rung), float(rung), *pressed
            self._rung = rung


def _name(pressure: Pressure) -> str | None:
    return None if pressure.cause is None else pressure.cause.value


def _why(pressure: Pressure) -> str:
    if pressure.cause is None:
        return "no pressure"
    return f"{pressure.cause} at {pressure.value:.1f} times its objective"
