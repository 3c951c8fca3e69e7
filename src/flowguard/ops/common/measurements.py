"""Measurements of both a broker and the proxy, in the order in which catalogues show them."""

from collections.abc import Callable, Iterable
from os import getpid, stat
from resource import RLIMIT_NOFILE, getrlimit
from time import process_time
from typing import Any, Final

from flowguard import __version__
from flowguard.broker.logs.output_lines import STDERR
from flowguard.broker.protected import Protected
from flowguard.flow import Reason, Signal
from flowguard.flow.policy import Gate, Rung
from flowguard.flow.verdict import Cut
from flowguard.flow.windows.window import UNBOUNDED
from flowguard.ops.common.measurement import Look, Measurement, counter, counts, gauge, shown
from flowguard.ops.pressure import decisions_of, objectives, observed, parts
from flowguard.session.lives import AUTHENTICATION, REASONS

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

# Tables: one entry is one or two lines.
# fmt: off
IDENTITY: Final[tuple[Measurement[Protected], ...]] = (
    shown("version", lambda at: __version__),
    shown("pid", lambda at: getpid()),
    shown("policy", lambda at: at.node.guard.policy.name),
    gauge("", "info", lambda at: {(__version__, at.node.guard.policy.name): 1},
        "Always 1; version and policy as labels.", "version", "policy"),
    shown("now_s", lambda at: at.now_s),
    gauge("started_s", "start_time_seconds", lambda at: at.node.started_s,
        "Unix time at which the node started."),
    shown("drain", lambda at: at.node.door.drain and at.node.door.drain(at.now_s)),
)
LAW: Final[tuple[Measurement[Protected], ...]] = (
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
)
CLIENTS: Final[tuple[Measurement[Protected], ...]] = (
    gauge("clients.connected", "clients_connected", lambda at: at.node.counters.clients_connected,
        "Clients connected."),
    shown("clients.maximum", lambda at: at.node.counters.clients_maximum),
    counter("clients.disconnects", "disconnects", lambda at: dict(at.node.counters.lives.ends),
        "Ended connections of clients, by the reason code of either side; connection_lost: the "
        "socket ended first; closed: the broker closed it without a code.", "reason", REASONS),
    counter("clients.authentication_failures", "authentication_failures",
        lambda at: dict(at.node.counters.lives.authentication_failures),
        "CONNECTs rejected because of the client's identity, by reason code.", "reason",
        sorted(code.name.lower() for code in AUTHENTICATION)),
)
WORK: Final[tuple[Measurement[Protected], ...]] = (
    gauge("unfinished.packets.used", "unfinished_packets",
        lambda at: at.node.guard.window.in_process, "Cost units of all packets in process."),
    shown("unfinished.packets.limit", lambda at: limit_or_none(at.node.guard.window.units_max)),
    gauge("unfinished.bytes.used", "unfinished_bytes",
        lambda at: at.node.guard.window.in_process_bytes, "Bytes of all packets in process."),
    shown("unfinished.bytes.limit", lambda at: limit_or_none(at.node.guard.window.bytes_max)),
)
LISTENERS: Final[tuple[Measurement[Protected], ...]] = (
    gauge("listener.connections.used", "connections", lambda at: at.node.connections_count,
        "Sockets of clients, with or without a CONNECT."),
    gauge("listener.connections.limit", "connections_limit", lambda at: at.node.door.places,
        "Sockets that descriptors and memory allow; no more are accepted."),
    shown("listener.resting", lambda at: _text(at.node.door.resting)),
    counter("listener.rests", "accept_rests", lambda at: counts(at.node.door.rests),
        "Ticks in which a listener accepted no connection, by reason.", "reason"),
    counter("listener.faults", "layer_faults", lambda at: counts(at.node.door.faults),
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
        lambda at: counts(_handshakes(at, lambda gate: gate.refused) or {}),
        "Connections rejected before their handshake of TLS or WebSocket began.",
        "reason", AT_THE_GATE),
)
GATE: Final[tuple[Measurement[Protected], ...]] = (
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
    counter("gate.refused", "connects_refused", lambda at: counts(at.node.refused_connects()),
        "CONNECTs rejected or dropped by overload protection or a limit of clients or sessions.",
        "reason", FOR_CONNECTS),
    counter("gate.cuts", "connects_limit_cuts", lambda at: counts(at.node.guard.gate.cuts),
        "Times that flowguard_connects_limit was cut, by cause.", "cause", CUTS),
    counter("dropped", "messages_dropped", lambda at: counts(at.node.counters.dropped),
        "Messages dropped or rejected, by the bound that was reached.", "reason", FOR_MESSAGES),
)
TRAFFIC: Final[tuple[Measurement[Protected], ...]] = (
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
    counter("traffic.received_bytes", "received_bytes",
        lambda at: at.node.counters.bytes_received, "Bytes received from clients."),
    counter("traffic.sent_bytes", "sent_bytes",
        lambda at: at.node.counters.bytes_sent, "Bytes sent to clients."),
    counter("traffic.takeovers", "takeovers", lambda at: at.node.counters.takeovers,
        "Connections ended by a newer one of the same client."),
    counter("traffic.protocol_errors", "protocol_errors", lambda at: at.node.counters.malformed,
        "Connections ended because their client broke MQTT."),
    counter("traffic.errors", "errors", lambda at: at.node.counters.errors,
        "Errors of flowguard or of a hook (see the log)."),
    counter("traffic.log_lines_dropped", "log_lines_dropped", lambda at: STDERR.dropped,
        "Lines of the log that standard error did not accept."),
)
PROCESS: Final[tuple[Measurement[Protected], ...]] = (
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
)
# fmt: on


def limit_or_none(limit: int) -> int | None:
    return limit if limit < UNBOUNDED else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _one_of(names: Iterable[str], name: str | None) -> dict[str, bool]:
    return {str(each): each == name for each in names}


def _cause(at: Look[Protected]) -> str | None:
    return _text(at.node.guard.grant.pressure.cause)


def _rung(at: Look[Protected]) -> str:
    return at.node.guard.gate.rung.name.lower()


def _handshakes(at: Look[Protected], figure: Callable[[Gate[Any]], Any]) -> Any:
    gate = at.node.door.handshakes
    return 0 if gate is None else figure(gate)


def _descriptors() -> int | None:
    """Return the number of open descriptors; older kernels could only list them, which is slow."""
    return stat("/proc/self/fd").st_size or None
