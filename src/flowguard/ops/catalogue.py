"""The catalogue of measurements: everything that `/status` and `/metrics` show of a node.

A measurement is one entry here. Names of metrics end in their unit, docs/reference/metrics.md lists
them. A status has the measurements with a path, in this order.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from os import getpid, stat
from resource import RLIMIT_NOFILE, getrlimit
from time import process_time
from typing import Any, Final

from typing_extensions import TypedDict

from flowguard import __version__
from flowguard.bounds import CONNECTION_BYTES, SESSION_BYTES
from flowguard.broker.logs.output_lines import STDERR
from flowguard.flow import Budget, FairBudget, Reason, Signal
from flowguard.flow.policy import Gate, Rung
from flowguard.flow.shadow import ShadowReport
from flowguard.flow.verdict import Cut
from flowguard.flow.windows.window import UNBOUNDED
from flowguard.node.node import Node
from flowguard.ops.pressure import decisions_of, objectives, observed, parts
from flowguard.session.lives import AUTHENTICATION, REASONS
from flowguard.telemetry.progress import BOUNDS, OF_A_BROKER, RecordingProgress

MEAN_DRAW: Final = 0.5
AT_THE_GATE: Final = tuple(
    str(reason) for reason in Reason if reason is Reason.DRAINING or reason.name.startswith("GATE_")
)
"""Reasons of overload protection for rejecting a CONNECT or a handshake."""
FOR_CONNECTS: Final = (
    *AT_THE_GATE,
    *map(str, (Reason.CONNECTIONS_MAX, Reason.SESSIONS_MAX, Reason.ROLE_CONNECTIONS_MAX)),
    str(Reason.WORKER_UNAVAILABLE),
)
"""These reasons and the limits of clients and sessions; all other reasons drop a message."""
FOR_MESSAGES: Final = tuple(str(reason) for reason in Reason if str(reason) not in FOR_CONNECTS)
CUTS: Final = tuple(map(str, Cut))


class MemoryStatus(TypedDict):
    """Memory of the process, bytes."""

    held_bytes: int
    resident_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Look:
    """A node at one instant, with values of its process."""

    node: Node
    now_s: float
    memory: MemoryStatus | None = None
    recording: RecordingProgress | None = None

    @property
    def shadow(self) -> ShadowReport | None:
        shadow = self.node.guard.shadow
        return None if shadow is None else shadow.report()


Get = Callable[[Look], Any]


class Kind(Enum):
    """The type of a metric in Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement: a value, or a mapping from labels to values."""

    path: str
    """Keys in the status, joined by dots, or "" if the status has it in another form."""
    get: Get
    """Reads the value; without a value there is no metric."""
    kind: Kind = Kind.GAUGE
    metric: str = ""
    """Name without `flowguard_` and `_total`, or "" if only the status has it."""
    help: str = ""
    labels: tuple[str, ...] = ()
    known: Collection[str] = ()
    """Labels that the metric has from the start."""


def shown(path: str, get: Get) -> Measurement:
    return Measurement(path, get)


def gauge(path: str, metric: str, get: Get, help: str, *labels: str) -> Measurement:
    return Measurement(path, get, Kind.GAUGE, metric, help, labels)


def counter(
    path: str, metric: str, get: Get, help: str, label: str = "", known: Collection[str] = ()
) -> Measurement:
    labels = (label,) if label else ()
    return Measurement(path, get, Kind.COUNTER, metric, help, labels, known)


def histogram(metric: str, get: Get, help: str) -> Measurement:
    return Measurement("", get, Kind.HISTOGRAM, metric, help)


# A table: one entry is one or two lines.
# fmt: off
CATALOGUE: Final = (
    shown("version", lambda at: __version__),
    shown("pid", lambda at: getpid()),
    shown("policy", lambda at: at.node.guard.policy.name),
    gauge("", "info", lambda at: {(__version__, at.node.guard.policy.name): 1},
        "Always 1; version and policy as labels.", "version", "policy"),
    shown("now_s", lambda at: at.now_s),
    gauge("started_s", "start_time_seconds", lambda at: at.node.started_s,
        "Unix time at which the node started."),
    gauge("draining", "draining", lambda at: at.node.state.draining or at.node.door.leaving,
        "1 while the node drains, else 0."),
    gauge("", "standby", lambda at: False,
        "1 while the broker waits for the end of another one, else 0."),

    shown("window.limit", lambda at: at.node.guard.window.limit),
    gauge("window.limit_max", "window_max_packets", lambda at: at.node.guard.window.limit_max,
        "Window of a calm node, packets."),
    gauge("window.granted", "window_packets", lambda at: at.node.guard.grant.window,
        "Cost units that the law grants each client in process; below 1 clients take turns."),
    gauge("window.work_share", "window_work_ratio", lambda at: at.node.guard.grant.leverage,
        "Share of the loop's work that smaller windows would put off, 0 to 1."),
    gauge("window.closed", "window_closed", lambda at: at.node.guard.window.closed,
        "1 while no packet is admitted (full journal, drain), else 0."),
    shown("window.shared", lambda at: at.node.guard.window.shared),

    gauge("pressure.value", "pressure_ratio", lambda at: at.node.guard.grant.pressure.value,
        "The worst signal by its objective, 0 to 16; 1 is just at the objective."),
    shown("pressure.cause", lambda at: _cause(at)),
    gauge("pressure.signals", "signal_pressure_ratio", lambda at: parts(at.node.guard.grant),
        "Each signal by its objective; 1 is just at the objective.", "signal"),
    gauge("", "pressure_cause", lambda at: _one_of(Signal, _cause(at)),
        "1 for the signal that is worst, 0 for the others.", "signal"),
    shown("pressure.observed", lambda at: observed(at.node.guard.grant, at.node.settings.flow)),
    shown("pressure.objectives", lambda at: objectives(at.node.settings.flow)),
    shown("why", lambda at: at.node.guard.grant.why),
    shown("decisions", lambda at: decisions_of(at.node)),

    gauge("clients.connected", "clients_connected", lambda at: at.node.counters.clients_connected,
        "Clients connected."),
    gauge("clients.paused", "clients_paused", lambda at: at.node.state.paused_count,
        "Clients with packets that wait for a window."),
    shown("clients.maximum", lambda at: at.node.counters.clients_maximum),
    gauge("clients.sessions", "sessions", lambda at: len(at.node.registry.sessions),
        "Sessions, connected or not."),
    counter("clients.disconnects", "disconnects", lambda at: dict(at.node.counters.lives.ends),
        "Ended connections of clients, by the reason code of either side; connection_lost: the "
        "socket ended first; closed: the broker closed it without a code.", "reason", REASONS),
    counter("clients.authentication_failures", "authentication_failures",
        lambda at: dict(at.node.counters.lives.authentication_failures),
        "CONNECTs rejected because of the client's identity, by reason code.", "reason",
        sorted(code.name.lower() for code in AUTHENTICATION)),
    gauge("clients.retained", "retained_messages", lambda at: len(at.node.router.retained),
        "Retained messages."),
    gauge("clients.subscriptions", "subscriptions",
        lambda at: at.node.router.queues.subscriptions_count, "Subscriptions."),

    gauge("unfinished.packets.used", "unfinished_packets",
        lambda at: at.node.guard.window.in_process, "Cost units of all packets in process."),
    shown("unfinished.packets.limit", lambda at: _limit(at.node.guard.window.units_max)),
    gauge("unfinished.bytes.used", "unfinished_bytes",
        lambda at: at.node.guard.window.in_process_bytes, "Bytes of all packets in process."),
    shown("unfinished.bytes.limit", lambda at: _limit(at.node.guard.window.bytes_max)),

    gauge("listener.connections.used", "connections", lambda at: at.node.connections_count,
        "Sockets of clients, with or without a CONNECT."),
    gauge("listener.connections.limit", "connections_limit", lambda at: at.node.door.places,
        "Sockets that descriptors and memory allow; no more are accepted."),
    shown("listener.resting", lambda at: _text(at.node.door.resting)),
    counter("listener.rests", "accept_rests", lambda at: _counts(at.node.door.rests),
        "Ticks in which a listener accepted no connection, by reason.", "reason"),
    counter("listener.faults", "layer_faults", lambda at: _counts(at.node.door.faults),
        "Connections that TLS or WebSocket ended, before MQTT began or later.",
        "reason"),
    gauge("listener.handshakes.limit", "handshakes_limit",
        lambda at: _handshakes(at, lambda gate: gate.limit),
        "Handshakes of TLS and WebSocket that may be in process at once."),
    gauge("listener.handshakes.in_process", "handshakes_in_process",
        lambda at: _handshakes(at, lambda gate: gate.in_process),
        "Handshakes of TLS and WebSocket in process."),
    gauge("listener.handshakes.waiting", "handshakes_waiting",
        lambda at: _handshakes(at, lambda gate: gate.buffered),
        "Connections whose handshake has not been read yet."),
    counter("listener.handshakes.refused", "handshakes_refused",
        lambda at: _counts(_handshakes(at, lambda gate: gate.refused) or {}),
        "Connections rejected before their handshake of TLS or WebSocket began.",
        "reason", AT_THE_GATE),
    counter("listener.checks", "identity_checks", lambda at: _counts(at.node.door.checks),
        "Authentications of CONNECTs (password, token, certificate), by outcome.",
        "reason"),

    gauge("gate.limit", "connects_limit", lambda at: at.node.guard.gate.limit,
        "CONNECTs that may be in process at once."),
    gauge("gate.in_process", "connects_in_process", lambda at: at.node.guard.gate.in_process,
        "CONNECTs in process."),
    gauge("gate.buffered.used", "connects_waiting", lambda at: at.node.guard.gate.buffered,
        "CONNECTs in the connect queue."),
    shown("gate.buffered.limit", lambda at: at.node.settings.flow.connect_buffer_max),
    shown("gate.buffered_bytes.used", lambda at: at.node.guard.gate.buffered_bytes),
    shown("gate.buffered_bytes.limit", lambda at: at.node.settings.flow.connect_buffer_bytes_max),
    shown("gate.rung", lambda at: _rung(at)),
    gauge("", "gate_rung", lambda at: _one_of((rung.name.lower() for rung in Rung), _rung(at)),
        "1 for the current overload level, 0 for the others.", "rung"),
    gauge("gate.retry_after_s", "connects_retry_after_seconds",
        lambda at: at.node.guard.gate.retry_after_s(MEAN_DRAW),
        "Retry-after hint for rejected MQTT 5 clients, seconds, before jitter (±50 %)."),
    shown("gate.accepted", lambda at: at.node.counters.connects_accepted),
    counter("gate.refused", "connects_refused", lambda at: _counts(at.node.refused_connects()),
        "CONNECTs rejected or dropped by overload protection or a limit of clients or sessions.",
        "reason", FOR_CONNECTS),
    counter("gate.cuts", "connects_limit_cuts", lambda at: _counts(at.node.guard.gate.cuts),
        "Times that flowguard_connects_limit was cut, by cause.", "cause", CUTS),
    counter("dropped", "messages_dropped", lambda at: _counts(at.node.counters.dropped),
        "Messages dropped or rejected, by the bound that was reached.", "reason", FOR_MESSAGES),

    counter("traffic.connections_accepted", "connections_accepted",
        lambda at: at.node.counters.connections_accepted, "Sockets accepted."),
    counter("traffic.connections_closed", "connections_closed",
        lambda at: at.node.counters.connections_closed,
        "Sockets closed at once: the load was too high even to reject their CONNECTs."),
    counter("traffic.connects_accepted", "connects_accepted",
        lambda at: at.node.counters.connects_accepted, "CONNECTs answered with success."),
    counter("traffic.connects_refused", "connects_failed",
        lambda at: at.node.counters.connects_refused, "CONNECTs answered with an error."),
    counter("traffic.publish_received", "publish_received",
        lambda at: at.node.counters.publish_received, "PUBLISH received."),
    counter("traffic.publish_sent", "publish_sent",
        lambda at: at.node.counters.publish_sent, "PUBLISH sent."),
    counter("traffic.publish_received_bytes", "publish_received_bytes",
        lambda at: at.node.counters.publish_bytes_received, "Payloads of PUBLISH received."),
    counter("traffic.publish_sent_bytes", "publish_sent_bytes",
        lambda at: at.node.counters.publish_bytes_sent, "Payloads of PUBLISH sent."),
    counter("traffic.packets_received", "packets_received",
        lambda at: at.node.counters.messages_received, "Control packets received."),
    counter("traffic.packets_sent", "packets_sent",
        lambda at: at.node.counters.messages_sent + at.node.counters.publish_sent,
        "Control packets sent."),
    counter("traffic.received_bytes", "received_bytes",
        lambda at: at.node.counters.bytes_received, "Bytes received from clients."),
    counter("traffic.sent_bytes", "sent_bytes",
        lambda at: at.node.counters.bytes_sent, "Bytes sent to clients."),
    counter("traffic.takeovers", "takeovers", lambda at: at.node.counters.takeovers,
        "Connections ended by a newer one of the same client."),
    counter("traffic.clients_expired", "sessions_expired",
        lambda at: at.node.counters.clients_expired, "Sessions that expired."),
    counter("traffic.dead_letters", "dead_letters", lambda at: at.node.counters.dead_letters,
        "Messages that expired in a session and were published again as dead letters."),
    counter("traffic.wills_published", "wills_published",
        lambda at: at.node.counters.wills_published, "Wills published."),
    counter("traffic.protocol_errors", "protocol_errors", lambda at: at.node.counters.malformed,
        "Connections ended because their client broke MQTT."),
    counter("traffic.errors", "errors", lambda at: at.node.counters.errors,
        "Errors of flowguard or of a hook (see the log)."),
    counter("traffic.log_lines_dropped", "log_lines_dropped", lambda at: STDERR.dropped,
        "Lines of the log that standard error did not accept."),
    counter("traffic.unknown_acknowledgements", "unknown_acknowledgements",
        lambda at: at.node.counters.unknown_acknowledgements,
        "Acknowledgements of packet identifiers that are not in use."),

    shown("budgets", lambda at: _budgets(at.node)),
    gauge("", "budget_used_bytes", lambda at: _budget_bytes(at.node, "used"),
        "Bytes in use of budgets that all clients share.", "budget"),
    gauge("", "budget_limit_bytes", lambda at: _budget_bytes(at.node, "limit"),
        "Limit of flowguard_budget_used_bytes.", "budget"),

    shown("store.kind", lambda at: at.node.settings.store.kind),
    shown("store.state", lambda at: at.node.store_load.state.name.lower()),
    gauge("store.read_only", "store_read_only", lambda at: at.node.state.read_only,
        "1 while the disk is full and durable work is rejected, else 0."),
    gauge("store.away_s", "store_away_seconds", lambda at: at.node.outage.lasted_s(at.now_s),
        "Time since the store stopped accepting writes, or 0."),
    shown("store.why", lambda at: at.node.outage.why),
    gauge("store.used_bytes", "store_used_bytes", lambda at: at.node.store_load.used_bytes,
        "Size of the store."),
    gauge("store.free_bytes", "store_free_bytes", lambda at: at.node.store_load.free_bytes,
        "Free space on its disk, less what rows in memory need."),
    counter("store.pages_unreadable", "store_pages_unreadable",
        lambda at: at.node.counters.pages_unreadable,
        "Pages of queues that the store could not read; their messages are not sent."),

    counter("log.appended", "log_messages_appended", lambda at: at.node.router.log.appended_count,
        "Messages stored in the durable log, once each."),
    counter("log.read", "log_messages_read", lambda at: at.node.router.log.read_count,
        "Messages that sessions have got from the durable log, each counted."),
    gauge("log.catching_up", "log_catching_up", lambda at: at.node.router.log.catching_up_count,
        "Clients and shared subscriptions that replay missed messages from the durable log."),

    gauge("applications.sessions", "applications", lambda at: len(at.node.router.applications),
        "Sessions of applications, connected or not."),
    gauge("applications.connected", "applications_connected",
        lambda at: at.node.router.applications.connected_count, "Applications connected."),
    counter("applications.lost", "applications_lost",
        lambda at: at.node.router.applications.lost_count,
        "Messages that Kafka had no longer, or damaged, when an application was to get them, each "
        "counted."),
    gauge("applications.away_s", "applications_away_seconds",
        lambda at: at.node.router.lane.away_s(at.now_s),
        "Time since Kafka stopped accepting messages for applications, or 0."),
    gauge("applications.operations.used", "applications_operations",
        lambda at: at.node.router.lane.depth,
        "Store operations that wait for Kafka or are being sent to it."),
    shown("applications.operations.limit", lambda at: at.node.router.lane.ops_max),
    shown("applications.bytes.used", lambda at: at.node.router.lane.size_bytes),
    shown("applications.bytes.limit", lambda at: at.node.router.lane.bytes_max),
    gauge("applications.publishers", "applications_publishers_waiting",
        lambda at: at.node.router.lane.waiting_count,
        "Clients whose message for an application waits for Kafka."),
    gauge("applications.groups", "application_groups",
        lambda at: at.node.router.queues.spread.count,
        "Shared subscriptions that several brokers serve (kafka.groups_prefix)."),
    gauge("applications.group_messages", "application_groups_messages",
        lambda at: at.node.router.queues.spread.held_count,
        "Unacknowledged messages of these subscriptions on this broker."),
    gauge("applications.groups_in_trouble", "application_groups_in_trouble",
        lambda at: at.node.router.queues.spread.troubled_count,
        "Shared groups with an active fault (see the log)."),

    gauge("journal.operations.used", "journal_operations", lambda at: at.node.journal.depth,
        "Store operations waiting for their commit, or in it."),
    shown("journal.operations.limit", lambda at: at.node.settings.flow.journal_ops_max),
    shown("journal.bytes.used", lambda at: at.node.journal.size_bytes),
    shown("journal.bytes.limit", lambda at: at.node.settings.flow.journal_bytes_max),
    gauge("journal.waiting_s", "journal_waiting_seconds",
        lambda at: at.node.journal.waiting_s(at.now_s),
        "Age of the oldest operation that is not being committed yet."),
    gauge("journal.committing_s", "journal_commit_seconds",
        lambda at: at.node.journal.committing_s(at.now_s), "Age of the commit in progress."),
    histogram("journal_wait_seconds", lambda at: at.node.journal.sojourn,
        "Work for the store: from its arrival until it was durable; all of a batch as its oldest."),
    histogram("acknowledgement_seconds", lambda at: at.node.router.acknowledgements.latency,
        "PUBLISH of QoS 1 and 2: from the time slice that decodes it to the one that sends PUBACK "
        "or PUBREC; time before in the socket or undecoded is not included."),
    histogram("connect_service_seconds", lambda at: at.node.attempts.service,
        "CONNECTs: from taking their client id to CONNACK."),

    gauge("listener.certificates", "certificate_expiry_seconds",
        lambda at: dict(at.node.door.certificates) or None,
        "Unix time at which the first certificate or list of revoked ones in a file expires.",
        "file"),
    counter("process.cpu_s", "process_cpu_seconds", lambda at: process_time(),
        "Processor time of the process, user and system."),
    gauge("process.descriptors.used", "process_descriptors", lambda at: _descriptors(),
        "Open descriptors of the process, on Linux 6.2 and newer."),
    gauge("process.descriptors.limit", "process_descriptors_limit",
        lambda at: getrlimit(RLIMIT_NOFILE)[0], "Limit of open descriptors of the process."),

    shown("memory", lambda at: at.memory),
    gauge("", "memory_resident_bytes", lambda at: at.memory and at.memory["resident_bytes"],
        "Resident memory of the process; the allocator may keep more than is held."),
    gauge("", "memory_held_bytes", lambda at: at.memory and at.memory["held_bytes"],
        "Memory that the node accounts for; divided by the limit it is the memory signal."),
    gauge("", "memory_limit_bytes", lambda at: at.memory and at.memory["limit_bytes"],
        "Memory limit of the process."),

    shown("shadow", lambda at: _shadow(at)),
    gauge("", "shadow_window_packets", lambda at: at.shadow and at.shadow.window,
        "Window that the shadow policy would grant, packets."),
    gauge("", "shadow_clients_paused", lambda at: at.shadow and at.shadow.paused,
        "Clients that the shadow policy would pause and the real one does not."),

    shown("recording", lambda at: None if at.recording is None else asdict(at.recording)),
    gauge("", "recording", lambda at: None if at.recording is None else at.recording.error is None,
        "1 while the broker records itself, 0 after an error has ended that."),
    counter("", "recording_rows", lambda at: at.recording and at.recording.written_rows,
        "Rows handed to files."),
    Measurement("", lambda at: _dropped_rows(at.recording), Kind.COUNTER, "recording_rows_dropped",
        "Rows dropped before they reached the disk; label bound: rows or bytes.",
        ("table", "bound")),
    gauge("", "recording_used_bytes", lambda at: at.recording and at.recording.used_bytes,
        "Size of the recorded runs on the disk."),
    gauge("", "recording_limit_bytes", lambda at: at.recording and at.recording.limit_bytes,
        "Size at which the oldest recorded run is deleted."),
)
# fmt: on


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _limit(limit: int) -> int | None:
    return limit if limit < UNBOUNDED else None


def _counts(counts: Mapping[Any, int]) -> dict[str, int]:
    return {str(reason): count for reason, count in counts.items()}


def _one_of(names: Iterable[str], name: str | None) -> dict[str, bool]:
    return {str(each): each == name for each in names}


def _cause(at: Look) -> str | None:
    return _text(at.node.guard.grant.pressure.cause)


def _rung(at: Look) -> str:
    return at.node.guard.gate.rung.name.lower()


def _handshakes(at: Look, figure: Callable[[Gate[Any]], Any]) -> Any:
    gate = at.node.door.handshakes
    return 0 if gate is None else figure(gate)


def _shadow(at: Look) -> dict[str, Any] | None:
    """Return a `ShadowReport`, and `limits`: its settings that differ from those in force."""
    if at.shadow is None:
        return None
    flow, settings = at.node.settings.flow.model_dump(), at.node.guard.shadow_settings.model_dump()
    limits = {key: value for key, value in settings.items() if value != flow[key]}
    return {**asdict(at.shadow), "limits": limits}


def _descriptors() -> int | None:
    """Return the number of open descriptors; older kernels could only list them, which is slow."""
    return stat("/proc/self/fd").st_size or None


def _budgets(node: Node) -> dict[str, dict[str, int | None]]:
    """Return the bytes that all clients share, by their purpose."""
    budgets: dict[str, Budget | FairBudget] = {
        "queue": node.state.queue_budget,
        "inflight": node.state.inflight.budget,
        "outbox": node.state.outbox_budget,
        "input": node.state.input_holders.budget,
        "state": node.state.state_budget,
        "plans": node.router.plans.budget,
    }
    groups = node.router.queues.spread
    if groups.count:
        budgets["groups"] = groups.budget
    if node.state.spills:
        budgets["disk_queue"] = node.state.disk_queue_budget
    clients, kept, bounds = node.connections_count, node.registry.kept_count, node.bounds
    uses = {name: (each.used_bytes, each.limit_bytes) for name, each in budgets.items()} | {
        "clients": (CONNECTION_BYTES * clients, CONNECTION_BYTES * bounds.sockets_max),
        "sessions": (SESSION_BYTES * kept, SESSION_BYTES * bounds.sessions_max),
        "retained": (node.router.retained.size_bytes, bounds.retained_bytes),
    }
    return {name: {"used": used, "limit": limit} for name, (used, limit) in uses.items()}


def _budget_bytes(node: Node, name: str) -> dict[str, int]:
    window, gate, journal, flow = (
        node.guard.window,
        node.guard.gate,
        node.journal,
        node.settings.flow,
    )
    uses: dict[str, dict[str, int | None]] = {
        "unfinished": {"used": window.in_process_bytes, "limit": _limit(window.bytes_max)},
        "connects": {"used": gate.buffered_bytes, "limit": flow.connect_buffer_bytes_max},
        "journal": {"used": journal.size_bytes, "limit": flow.journal_bytes_max},
        **_budgets(node),
    }
    return {budget: bytes for budget, use in uses.items() if (bytes := use[name]) is not None}


def _dropped_rows(recording: RecordingProgress | None) -> dict[tuple[str, str], int] | None:
    if recording is None:
        return None
    dropped = recording.dropped_rows
    return {
        (table, bound): dropped.get(table, {}).get(bound, 0)
        for table in OF_A_BROKER
        for bound in BOUNDS
    }
