"""Observation: an observed node, as rows of docs/reference/parquet-schema.md.

It reads the node's own values, and gets a call for each attempt to connect; time and memory are
arguments. Counts of events are those since the previous rows, also across the end of a run.
"""

from collections.abc import Collection, Iterator, Mapping
from socket import gethostname
from typing import Any, Final, final

from flowguard import __version__
from flowguard.config import Settings
from flowguard.flow import Reason
from flowguard.flow.load.histogram import Histogram
from flowguard.flow.load.observer import BOUNDS_S
from flowguard.flow.load.pressure import objectives_of
from flowguard.node.connect.attempts import CLOSED, CONNECTED
from flowguard.node.node import Node
from flowguard.session.connection import ServerConnection
from flowguard.telemetry.rows import Decisions, Growth, guard_columns
from flowguard.telemetry.schema import (
    VERSION,
    AttemptRow,
    ConnectionRow,
    DecisionRow,
    GoodputRow,
    LatencyRow,
    ReasonRow,
    RunRow,
    SampleRow,
)
from flowguard.telemetry.survey import Survey, number_of

POPULATION: Final = "all"
NODE: Final = 0
LIVE: Final = "live"
CONNECT: Final = "connect"
MESSAGE: Final = "message"
QUEUES: Final = frozenset(
    (
        Reason.QUEUE_MESSAGES,
        Reason.QUEUE_BYTES,
        Reason.NODE_QUEUE_BYTES,
        Reason.NODE_DISK_QUEUE_BYTES,
        Reason.OUTBOX_BYTES,
    )
)
"""Reasons for dropping a message that mean a full subscriber queue."""
OWN_SECTION: Final = "telemetry"


def run_row(
    settings: Settings,
    policy: str,
    started_unix_s: float,
    given: Collection[str] | None = None,
) -> RunRow:
    """Return the row of table `run`; its parameters are the settings that differ from defaults.

    `given` are the keys of the settings that have a value of their own, or None if unknown; others
    follow from the machine's memory.
    """
    usual = Settings().model_dump()
    parameters = [
        (f"{section}.{key}", _text(value))
        for section, values in settings.model_dump().items()
        for key, value in values.items()
        if section != OWN_SECTION and value != usual[section][key]
        if given is None or f"{section}.{key}" in given
    ]
    limits = [(key, _text(value)) for key, value in settings.flow.model_dump().items()]
    return RunRow(
        schema_version=VERSION,
        source="broker",
        flowguard_version=__version__,
        scenario=LIVE,
        policy=policy,
        seed=None,
        nodes_count=1,
        clients_count=None,
        duration_s=settings.telemetry.run_s,
        started_unix_s=started_unix_s,
        trigger_at_s=None,
        trigger_until_s=None,
        load_ratio=None,
        connect_deadline_s=None,
        acknowledge_deadline_s=None,
        parameters=parameters,
        limits=limits,
        command="",
        host=gethostname(),
    )


def _text(value: object) -> str:
    """Return the value, without the user and password of a URL; of a listener its address."""
    if isinstance(value, tuple | list):
        return ", ".join(map(_text, value))
    if isinstance(value, dict) and "address" in value:
        return str(value["address"])
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
        self._declined_count = 0
        self._sampled = Growth(self._sample_counts())
        self._busy_s: float | None = None
        self._closed_count = node.counters.connections_closed
        self._gained = Growth(self._goodput_counts())
        self._ended_s = 0.0
        self._unknown_count = 0
        self._survey = Survey(NODE)
        self._connects = Histogram(BOUNDS_S)
        latencies = {
            "acknowledgement": node.router.acknowledgements.latency,
            "commit": node.journal.written.latency,
            "connect": self._connects,
        }
        self._latencies = [(kind, each, each.counts.copy()) for kind, each in latencies.items()]
        """Kind, histogram, and the counts that were already returned."""
        self._lost = Growth(self._lost_counts())
        self._decided_s = 0.0
        self._decisions = Decisions(NODE)

    def begin(self, now_s: float) -> None:
        """Begin a run now; its decisions begin with the window in force."""
        guard = self._node.guard
        self._started_s = self._decided_s = self._ended_s = now_s
        self._decisions.begin(guard.grant.window, guard.gate)

    def t_s(self, now_s: float) -> float:
        return max(0.0, now_s - self._started_s)

    # --- samples -----------------------------------------------------------------------------

    def sample(self, now_s: float, memory_bytes: int, busy_s: float) -> SampleRow:
        """Return a row of table `samples`; `busy_s`: working time of the loop, from any start."""
        node = self._node
        worked_s = None if self._busy_s is None else busy_s - self._busy_s
        self._busy_s = busy_s
        shadow = None if node.guard.shadow is None else node.guard.shadow.report()
        return SampleRow(
            node=NODE,
            t_s=self.t_s(now_s),
            is_alive=True,
            **guard_columns(node.guard, self._objectives),
            backlog_count=None,
            connections_count=node.connections_count,
            packets_waiting_count=None,
            memory_bytes=memory_bytes,
            memory_limit_bytes=self._memory_limit_bytes,
            **self._sampled.since(self._sample_counts()),
            lost_count=0,  # Acknowledged messages are stored, so a living process loses none.
            busy_s=worked_s,
            refusing_s=None,
            running_ratio=node.guard.observer.running_share,
            shadow_window=None if shadow is None else shadow.window,
            shadow_paused_count=None if shadow is None else shadow.paused,
        )

    def _sample_counts(self) -> dict[str, float]:
        node = self._node
        written = node.journal.written
        counters, refused = node.counters, node.guard.gate.refused
        discarded_count = refused.get(Reason.GATE_SUPERSEDED, 0)
        dropped = counters.dropped.items()
        return {
            "accepted_count": counters.connects_accepted,
            "refused_count": sum(refused.values()) - discarded_count,
            "discarded_count": discarded_count,
            "closed_count": counters.connections_closed,
            "published_count": counters.publish_received,
            "delivered_count": counters.publish_sent,
            "dropped_count": sum(count for reason, count in dropped if reason in QUEUES),
            "commits_count": written.commits_count,
            "stored_count": written.ops_count,
            "committing_s": written.latency.total,
            "payload_bytes": counters.publish_bytes_received,
        }

    def connection(self, now_s: float) -> ConnectionRow | None:
        """Return a row of table `connections`, or None if no client is connected."""
        return self._survey.look(self.t_s(now_s), now_s)

    # --- goodput and attempts ----------------------------------------------------------------

    def goodput(self, now_s: float) -> GoodputRow:
        """Return a row of table `goodput`; call it after `closed_at_once`."""
        return GoodputRow(
            population=POPULATION,
            t_s=self.t_s(now_s),
            clients_count=None,
            connected_count=self._node.counters.clients_connected,
            first_connected_count=None,
            **self._gained.since(self._goodput_counts()),
            wasted_count=None,
            due_count=None,
            in_time_count=None,
        )

    def _goodput_counts(self) -> dict[str, int]:
        counters = self._node.counters
        return {
            "attempts_count": counters.connections_accepted + counters.connections_closed,
            "declined_count": self._declined_count,
            "acknowledged_count": counters.publish_received,
            "delivered_count": counters.publish_sent,
        }

    def attempt(
        self, connection: ServerConnection | None, since_s: float, until_s: float, outcome: str
    ) -> AttemptRow:
        """Return a row of table `attempts`; `connection` is None if it was closed at once."""
        if outcome == CONNECTED:
            self._connects.observe(until_s - since_s)
            if connection is not None:
                self._survey.connected(connection)
        else:
            self._declined_count += 1
        # A turn's clock may be slightly behind that of a commit; rows must be in order.
        ended_s = self._ended_s = max(self._ended_s, until_s)
        client_id = None if connection is None else connection.client_id
        if not client_id:  # Closed at once, or rejected before it got an id.
            self._unknown_count += 1
        return AttemptRow(
            population=POPULATION,
            client=number_of(client_id) if client_id else -self._unknown_count,
            number=None,
            node=NODE,
            started_s=self.t_s(since_s),
            ended_s=self.t_s(ended_s),
            outcome=outcome,
        )

    def closed_at_once(self, now_s: float) -> Iterator[AttemptRow]:
        """Yield rows of table `attempts` for sockets that were closed before they were read."""
        count = self._node.counters.connections_closed
        for _ in range(count - self._closed_count):
            yield self.attempt(None, now_s, now_s, CLOSED)
        self._closed_count = count

    # --- latencies ---------------------------------------------------------------------------

    def latencies(self, now_s: float) -> Iterator[LatencyRow]:
        """Yield rows of table `latencies` observed since the last call."""
        t_s = self.t_s(now_s)
        for kind, latency, told in self._latencies:
            for bound_s, count in latency.grown(told):
                yield LatencyRow(POPULATION, kind, t_s, bound_s, count)

    # --- reasons -----------------------------------------------------------------------------

    def reasons(self, now_s: float) -> Iterator[ReasonRow]:
        """Yield rows of table `reasons` for what was rejected or dropped since the last call."""
        t_s = self.t_s(now_s)
        for (kind, reason), count in self._lost.since(self._lost_counts()).items():
            if count:
                yield ReasonRow(NODE, t_s, kind, reason, count)

    def _lost_counts(self) -> dict[tuple[str, str], int]:
        node = self._node
        kinds: tuple[tuple[str, Mapping[Any, int]], ...] = (
            (CONNECT, node.refused_connects()),
            (CONNECT, node.counters.lives.authentication_failures),
            (MESSAGE, node.counters.dropped),
        )
        return {
            (kind, str(reason)): count for kind, counts in kinds for reason, count in counts.items()
        }

    # --- decisions ---------------------------------------------------------------------------

    def decisions(self, now_s: float) -> Iterator[DecisionRow]:
        """Yield rows of table `decisions` since the last call, as far as the node remembers
        them."""
        guard = self._node.guard
        decided = [each for each in guard.decisions if each[0] > self._decided_s]
        if decided:
            self._decided_s = decided[-1][0]
        timed = [(self.t_s(at_s), grant) for at_s, grant in decided]
        t_s = self.t_s(now_s)
        yield from self._decisions.rows(timed, guard.grant, guard.gate, t_s)
