"""Prometheus metrics: read off the node's status when somebody scrapes, nothing before.

Names end in their unit (`_seconds`, `_bytes`) and, for counters, in `_total`; a label takes a few
known values and never a client's name. docs/reference/metrics.md lists them all.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from flowguard.flow import Reason
from flowguard.flow.histogram import Histogram
from flowguard.flow.policy import Rung
from flowguard.flow.signals import Signal
from flowguard.flow.verdict import Cut
from flowguard.ops.status import Status, View
from flowguard.telemetry.progress import BOUNDS, OF_A_BROKER

AT_THE_GATE: Final = tuple(
    str(reason) for reason in Reason if reason is Reason.DRAINING or reason.name.startswith("GATE_")
)
"""Reasons of overload protection for refusing a CONNECT, or a handshake before it."""
FOR_CONNECTS: Final = (
    *AT_THE_GATE,
    *map(str, (Reason.CONNECTIONS_MAX, Reason.SESSIONS_MAX, Reason.ROLE_CONNECTIONS_MAX)),
)
"""Those and the bounds on clients and sessions; all others are for dropping a message."""
FOR_MESSAGES: Final = tuple(str(reason) for reason in Reason if str(reason) not in FOR_CONNECTS)


GAUGES: Final = {
    "start_time_seconds": ("started_s", "Unix time at which the node started."),
    "draining": ("draining", "1 while the node drains, else 0."),
    "pressure_ratio": (
        "pressure.value",
        "The worst signal by its objective, 0 to 16; 1 is just at the objective.",
    ),
    "window_packets": (
        "window.granted",
        "Cost units that the law grants each client in process; below 1 clients take turns.",
    ),
    "window_work_ratio": (
        "window.work_share",
        "Share of the loop's work that smaller windows would put off, 0 to 1.",
    ),
    "window_max_packets": ("window.limit_max", "Window of a calm node, packets."),
    "window_closed": (
        "window.closed",
        "1 while no packet is admitted (full journal, drain), else 0.",
    ),
    "clients_connected": ("clients.connected", "Clients connected."),
    "clients_paused": ("clients.paused", "Clients with packets that wait for a window."),
    "sessions": ("clients.sessions", "Sessions, connected or not."),
    "applications": ("applications.sessions", "Sessions of applications, connected or not."),
    "applications_connected": ("applications.connected", "Applications connected."),
    "applications_away_seconds": (
        "applications.away_s",
        "Time since Kafka stopped accepting messages for applications, or 0.",
    ),
    "applications_operations": (
        "applications.operations.used",
        "Store operations that wait for Kafka or are being sent to it.",
    ),
    "applications_publishers_waiting": (
        "applications.publishers",
        "Clients whose message for an application waits for Kafka.",
    ),
    "application_groups": (
        "applications.groups",
        "Shared subscriptions that several brokers serve (kafka.groups_prefix).",
    ),
    "application_groups_messages": (
        "applications.group_messages",
        "Unacknowledged messages of these subscriptions on this broker.",
    ),
    "application_groups_in_trouble": (
        "applications.groups_in_trouble",
        "Shared groups with an active fault (see the log).",
    ),
    "subscriptions": ("clients.subscriptions", "Subscriptions."),
    "unfinished_packets": ("unfinished.packets.used", "Cost units of all packets in process."),
    "unfinished_bytes": ("unfinished.bytes.used", "Bytes of all packets in process."),
    "connections": (
        "listener.connections.used",
        "Sockets of clients, with or without a CONNECT.",
    ),
    "connections_limit": (
        "listener.connections.limit",
        "Sockets that descriptors and memory allow; no more are accepted.",
    ),
    "connects_limit": ("gate.limit", "CONNECTs that may be in process at once."),
    "connects_in_process": ("gate.in_process", "CONNECTs in process."),
    "connects_waiting": ("gate.buffered.used", "CONNECTs in the connect queue."),
    "connects_retry_after_seconds": (
        "gate.retry_after_s",
        "Retry-after hint for rejected MQTT 5 clients, seconds, before jitter (±50 %).",
    ),
    "shadow_window_packets": (
        "shadow.window",
        "Window that the shadow policy would grant, packets.",
    ),
    "shadow_clients_paused": (
        "shadow.paused",
        "Clients that the shadow policy would pause and the real one does not.",
    ),
    "journal_operations": (
        "journal.operations.used",
        "Store operations waiting for their commit, or in it.",
    ),
    "journal_waiting_seconds": (
        "journal.waiting_s",
        "Age of the oldest operation that is not being committed yet.",
    ),
    "journal_commit_seconds": (
        "journal.committing_s",
        "Age of the commit in progress.",
    ),
    "store_read_only": (
        "store.read_only",
        "1 while the disk is full and durable work is refused, else 0.",
    ),
    "store_used_bytes": ("store.used_bytes", "Size of the store."),
    "store_free_bytes": ("store.free_bytes", "Free space on its disk."),
    "memory_resident_bytes": (
        "memory.resident_bytes",
        "Resident memory of the process; the allocator may keep more than is held.",
    ),
    "memory_held_bytes": (
        "memory.held_bytes",
        "Memory that the node accounts for; divided by the limit it is the memory signal.",
    ),
    "memory_limit_bytes": ("memory.limit_bytes", "Memory limit of the process."),
    "handshakes_limit": (
        "listener.handshakes.limit",
        "Handshakes of TLS and WebSocket that may be in process at once.",
    ),
    "handshakes_in_process": (
        "listener.handshakes.in_process",
        "Handshakes of TLS and WebSocket in process.",
    ),
    "handshakes_waiting": (
        "listener.handshakes.waiting",
        "Connections whose handshake has not been read yet.",
    ),
    "log_catching_up": (
        "log.catching_up",
        "Clients and shared subscriptions that replay missed messages from the durable log.",
    ),
    "recording_used_bytes": ("recording.used_bytes", "Size of the recorded runs on the disk."),
    "recording_limit_bytes": (
        "recording.limit_bytes",
        "Size at which the oldest recorded run is deleted.",
    ),
}
"""Names, without `flowguard_`; where in the status the value is, and help. What is absent there, or
None, has no metric."""
COUNTERS: Final = {
    "connections_accepted": ("traffic.connections_accepted", "Sockets accepted."),
    "connections_closed": (
        "traffic.connections_closed",
        "Sockets closed at once: the load was too high even to refuse them.",
    ),
    "connects_accepted": ("traffic.connects_accepted", "CONNECTs answered with success."),
    "connects_failed": ("traffic.connects_refused", "CONNECTs answered with an error."),
    "publish_received": ("traffic.publish_received", "PUBLISH received."),
    "publish_sent": ("traffic.publish_sent", "PUBLISH sent."),
    "publish_received_bytes": ("traffic.publish_received_bytes", "Payloads of PUBLISH received."),
    "publish_sent_bytes": ("traffic.publish_sent_bytes", "Payloads of PUBLISH sent."),
    "packets_received": ("traffic.packets_received", "Control packets received."),
    "packets_sent": ("traffic.packets_sent", "Control packets sent."),
    "received_bytes": ("traffic.received_bytes", "Bytes received from clients."),
    "sent_bytes": ("traffic.sent_bytes", "Bytes sent to clients."),
    "takeovers": ("traffic.takeovers", "Connections ended by a newer one of the same client."),
    "sessions_expired": ("traffic.clients_expired", "Sessions that expired."),
    "dead_letters": (
        "traffic.dead_letters",
        "Messages that expired in a session and were published again as dead letters.",
    ),
    "wills_published": ("traffic.wills_published", "Wills published."),
    "protocol_errors": ("traffic.protocol_errors", "Connections ended for their bytes."),
    "errors": ("traffic.errors", "Errors of flowguard or of a hook (see the log)."),
    "log_lines_dropped": (
        "traffic.log_lines_dropped",
        "Lines of the log that standard error did not take.",
    ),
    "unknown_acknowledgements": (
        "traffic.unknown_acknowledgements",
        "Acknowledgements of packet identifiers that are not in use.",
    ),
    "store_pages_unreadable": (
        "store.pages_unreadable",
        "Pages of queues that the store could not read: what is in them is held back.",
    ),
    "log_messages_appended": ("log.appended", "Messages stored in the durable log, once each."),
    "log_messages_read": (
        "log.read",
        "Messages that sessions have got from the durable log, each counted.",
    ),
    "applications_lost": (
        "applications.lost",
        "Messages that Kafka had no longer, or damaged, when an application was to get them, each "
        "counted.",
    ),
    "recording_rows": ("recording.written_rows", "Rows handed to files."),
}
"""As `GAUGES`; what is exported ends in `_total`."""


@final
class NodeCollector(Collector):
    """Makes the metrics of one node, at every scrape anew."""

    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        status, node = self._view.status(), self._view.node
        for family, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, (place, documentation) in table.items():
                value = _at(status, place)
                if value is not None:
                    yield family(f"flowguard_{name}", documentation, float(value))
        yield from _labelled(status)
        yield from _budgets(status)
        if status["recording"] is not None:
            yield from _recording(status["recording"])
        yield _histogram(
            "flowguard_journal_wait_seconds",
            "Work for the store: from its arrival until it was durable; "
            "all of a batch as its oldest.",
            node.journal.sojourn,
        )
        yield _histogram(
            "flowguard_connect_service_seconds",
            "CONNECTs: from taking their client id to CONNACK.",
            node.connect_service,
        )


def registry_of(view: View) -> CollectorRegistry:
    """A registry with the metrics of this node and no other."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(view))
    return registry


def _at(status: Status, place: str) -> Any:
    """The value at a place like `listener.connections.used`; None: there is none."""
    part: Any = status
    for key in place.split("."):
        part = None if part is None else part[key]
    return part


def _labelled(status: Status) -> Iterator[Metric]:
    """Metrics with a value for each signal, rung or reason."""
    pressure, gate = status["pressure"], status["gate"]
    info = GaugeMetricFamily(
        "flowguard_info", "Always 1; version and policy as labels.", labels=("version", "policy")
    )
    info.add_metric((status["version"], status["policy"]), 1)
    yield info
    yield _labelled_gauge(
        "flowguard_signal_pressure_ratio",
        "Each signal by its objective; 1 is just at the objective.",
        "signal",
        pressure["signals"],
    )
    yield _labelled_gauge(
        "flowguard_pressure_cause",
        "1 for the signal that is worst, 0 for the others.",
        "signal",
        {str(signal): signal == pressure["cause"] for signal in Signal},
    )
    yield _labelled_gauge(
        "flowguard_gate_rung",
        "1 for the current overload level, 0 for the others.",
        "rung",
        {rung.name.lower(): rung.name.lower() == gate["rung"] for rung in Rung},
    )
    yield _reasons(
        "flowguard_accept_rests",
        "Ticks in which a listener accepted no connection, by reason.",
        status["listener"]["rests"],
    )
    yield _reasons(
        "flowguard_layer_faults",
        "Connections that ended before MQTT, or below it: what TLS or WebSocket gave up on.",
        status["listener"]["faults"],
    )
    yield _reasons(
        "flowguard_identity_checks",
        "CONNECTs that were asked who they are from (password, token, certificate), by outcome.",
        status["listener"]["checks"],
    )
    yield _reasons(
        "flowguard_handshakes_refused",
        "Connections closed before their handshake of TLS or WebSocket cost anything.",
        dict.fromkeys(AT_THE_GATE, 0) | status["listener"]["handshakes"]["refused"],
    )
    yield _reasons(
        "flowguard_connects_refused",
        "CONNECTs refused or dropped by overload protection, or by a bound on clients or sessions.",
        dict.fromkeys(FOR_CONNECTS, 0) | gate["refused"],
    )
    yield _counts(
        "flowguard_connects_limit_cuts",
        "Times that flowguard_connects_limit was cut, by what for.",
        "cause",
        dict.fromkeys(map(str, Cut), 0) | gate["cuts"],
    )
    yield _reasons(
        "flowguard_messages_dropped",
        "Messages dropped or rejected, by the bound that was reached.",
        dict.fromkeys(FOR_MESSAGES, 0) | status["dropped"],
    )


def _budgets(status: Status) -> Iterator[Metric]:
    uses = {
        "unfinished": status["unfinished"]["bytes"],
        "connects": status["gate"]["buffered_bytes"],
        "journal": status["journal"]["bytes"],
        **status["budgets"],
    }
    yield _labelled_gauge(
        "flowguard_budget_used_bytes",
        "Bytes in use of budgets that all clients share.",
        "budget",
        {name: use["used"] for name, use in uses.items()},
    )
    yield _labelled_gauge(
        "flowguard_budget_limit_bytes",
        "Limit of flowguard_budget_used_bytes.",
        "budget",
        {name: use["limit"] for name, use in uses.items() if use["limit"] is not None},
    )


def _recording(recording: Mapping[str, Any]) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "flowguard_recording",
        "1 while the broker records itself, 0 after an error has ended that.",
        float(recording["error"] is None),
    )
    dropped = CounterMetricFamily(
        "flowguard_recording_rows_dropped",
        "Rows dropped before they reached the disk; label bound: rows or bytes.",
        labels=("table", "bound"),
    )
    for table in OF_A_BROKER:
        counts = recording["dropped_rows"].get(table, {})
        for bound in BOUNDS:
            dropped.add_metric((table, bound), counts.get(bound, 0))
    yield dropped


def _labelled_gauge(
    name: str, documentation: str, label: str, values: Mapping[str, float]
) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), float(value))
    return family


def _reasons(name: str, documentation: str, counts: Mapping[str, int]) -> Metric:
    return _counts(name, documentation, "reason", counts)


def _counts(name: str, documentation: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, documentation, labels=(label,))
    for key, count in counts.items():
        family.add_metric((key,), count)
    return family


def _histogram(name: str, documentation: str, histogram: Histogram) -> Metric:
    bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, histogram.cumulative()), strict=True))
    return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=histogram.total)
