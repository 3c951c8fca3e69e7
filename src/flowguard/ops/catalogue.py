"""The catalogue of a broker: everything that `/status` and `/metrics` show of a node.

A measurement is one entry here, or in `common.measurements`. Names of metrics end in their unit,
docs/reference/metrics.md lists them. A status has the measurements with a path, in this order.
"""

from dataclasses import asdict
from typing import Any, Final

from flowguard.bounds import CONNECTION_BYTES, SESSION_BYTES
from flowguard.flow import Budget, FairBudget
from flowguard.flow.shadow import ShadowReport
from flowguard.node.node import Node
from flowguard.ops.common.measurement import (
    Kind,
    Look,
    Measurement,
    counter,
    counts,
    gauge,
    histogram,
    shown,
)
from flowguard.ops.common.measurements import (
    CLIENTS,
    GATE,
    IDENTITY,
    LAW,
    LISTENERS,
    PROCESS,
    TRAFFIC,
    WORK,
    limit_or_none,
)
from flowguard.telemetry.progress import BOUNDS, OF_A_BROKER, RecordingProgress

# A table: one entry is one or two lines.
# fmt: off
CATALOGUE: Final[tuple[Measurement[Node], ...]] = (
    *IDENTITY,
    gauge("draining", "draining", lambda at: at.node.state.draining or at.node.door.leaving,
        "1 while the node drains, else 0."),
    gauge("", "standby", lambda at: False,
        "1 while the broker waits for the end of another one, else 0."),
    *LAW,
    *CLIENTS,
    gauge("clients.paused", "clients_paused", lambda at: at.node.state.paused_count,
        "Clients with packets that wait for a window."),
    gauge("clients.sessions", "sessions", lambda at: len(at.node.registry.sessions),
        "Sessions, connected or not."),
    gauge("clients.retained", "retained_messages", lambda at: len(at.node.router.retained),
        "Retained messages."),
    gauge("", "queued_messages", lambda at: at.queued,
        "Messages of QoS 1 and 2 in queues of clients and shared subscriptions, without those in "
        "the durable log."),
    gauge("clients.subscriptions", "subscriptions",
        lambda at: at.node.router.queues.subscriptions_count, "Subscriptions."),
    *WORK,
    *LISTENERS,
    counter("listener.checks", "identity_checks", lambda at: counts(at.node.door.checks),
        "Authentications of CONNECTs (password, token, certificate), by outcome.",
        "reason"),
    *GATE,
    *TRAFFIC,
    counter("traffic.publish_received_bytes", "publish_received_bytes",
        lambda at: at.node.counters.publish_bytes_received, "Payloads of PUBLISH received."),
    counter("traffic.publish_sent_bytes", "publish_sent_bytes",
        lambda at: at.node.counters.publish_bytes_sent, "Payloads of PUBLISH sent."),
    counter("traffic.packets_received", "packets_received",
        lambda at: at.node.counters.messages_received, "Control packets received."),
    counter("traffic.packets_sent", "packets_sent",
        lambda at: at.node.counters.messages_sent + at.node.counters.publish_sent,
        "Control packets sent."),
    counter("traffic.clients_expired", "sessions_expired",
        lambda at: at.node.counters.clients_expired, "Sessions that expired."),
    counter("traffic.dead_letters", "dead_letters", lambda at: at.node.counters.dead_letters,
        "Messages that expired in a session and were published again as dead letters."),
    counter("traffic.wills_published", "wills_published",
        lambda at: at.node.counters.wills_published, "Wills published."),
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
    gauge("links.waiting", "link_messages_waiting", lambda at: at.node.router.peers.waiting(),
        "Messages for another worker that it has not confirmed.", "peer"),
    gauge("links.down", "link_down", lambda at: at.node.router.peers.down(),
        "1 while there is no link to another worker, else 0.", "peer"),
    gauge("links.window", "link_window", lambda at: _link_windows(at),
        "Packets that a client may have in process if they are for another worker.", "peer"),
    gauge("relayed.clients", "relayed_clients", lambda at: at.node.door.relayed_count,
        "Connections whose bytes this worker passes on to another one."),
    counter("relayed.bytes", "relayed_bytes", lambda at: at.node.door.relayed_bytes,
        "Bytes of these connections, both directions."),
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
    histogram("journal_wait_seconds", lambda at: at.node.journal.written.sojourn,
        "Work for the store: from its arrival until it was durable; all of a batch as its oldest."),
    histogram("acknowledgement_seconds", lambda at: at.node.router.acknowledgements.latency,
        "PUBLISH of QoS 1 and 2: from the time slice that decodes it to the one that sends PUBACK "
        "or PUBREC; time before in the socket or undecoded is not included."),
    histogram("connect_service_seconds", lambda at: at.node.attempts.service,
        "CONNECTs: from taking their client id to CONNACK."),
    *PROCESS,
    shown("shadow", lambda at: _shadow(at)),
    gauge("", "shadow_window_packets", lambda at: (it := _shadow_of(at)) and it.window,
        "Window that the shadow policy would grant, packets."),
    gauge("", "shadow_clients_paused", lambda at: (it := _shadow_of(at)) and it.paused,
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


def _link_windows(at: Look[Node]) -> dict[str, int]:
    most = at.node.settings.flow.window_max
    peers = at.node.router.peers.by_name.items()
    return {name: min(peer.window, most) for name, peer in peers}


def _shadow_of(at: Look[Node]) -> ShadowReport | None:
    shadow = at.node.guard.shadow
    return None if shadow is None else shadow.report()


def _shadow(at: Look[Node]) -> dict[str, Any] | None:
    """Return a `ShadowReport`, and `limits`: its settings that differ from those in force."""
    report = _shadow_of(at)
    if report is None:
        return None
    flow, settings = at.node.settings.flow.model_dump(), at.node.guard.shadow_settings.model_dump()
    limits = {key: value for key, value in settings.items() if value != flow[key]}
    return {**asdict(report), "limits": limits}


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
        "unfinished": {"used": window.in_process_bytes, "limit": limit_or_none(window.bytes_max)},
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
