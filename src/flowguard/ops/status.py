"""The state of a node at one instant, ready for JSON: what `/status` answers.

The one place that knows where a node keeps its numbers: metrics, `flowguard top` and `flowguard
explain` read what is written here. Numbers are in the unit that their name ends with; a pressure is
a quotient by the objective of its signal, 1 is just at it (docs/explain/overload.md, "Pressure").
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import log
from typing import Any, Final

from typing_extensions import TypedDict

from flowguard import __version__
from flowguard.bounds import CONNECTION_BYTES, SESSION_BYTES
from flowguard.broker.logs.output_lines import STDERR
from flowguard.config import FlowSettings
from flowguard.flow import Budget, FairBudget, Grant, Signal
from flowguard.flow.pressure import MEMORY_FOURFOLD_SHARE, objectives_of
from flowguard.flow.signals import Objectives
from flowguard.flow.window import UNBOUNDED
from flowguard.node.node import Node
from flowguard.telemetry.progress import RecordingProgress

DECISIONS_SHOWN: Final = 16
"""The latest decisions; one that led to a pause is among them, or was more than a second ago."""
COUNTED: Final = (
    *("connections_accepted", "connections_closed", "connects_accepted", "connects_refused"),
    *("publish_received", "publish_sent", "takeovers", "clients_expired", "dead_letters"),
    *("wills_published", "unknown_acknowledgements"),
)
"""The node's `Counters` that are shown under their own names."""
UNITS: Final = {signal: "s" for signal in Signal} | {Signal.MEMORY: "share"}
MEAN_DRAW: Final = 0.5


class Use(TypedDict):
    """The use of something bounded; a limit of None: nobody set one."""

    used: int
    limit: int | None


class Decision(TypedDict):
    """One change of the window, and what led to it; all of a decision is None without a cause."""

    at_s: float
    """Unix time of the decision."""
    window: float
    pressure: float
    why: str
    signal: str | None
    """A signal of the pressure."""
    value: float | None
    """The value that was observed, in `unit`."""
    threshold: float | None
    """The signal's objective, in `unit`."""
    unit: str | None


class WindowStatus(TypedDict):
    limit: int
    """Cost units that one client may have in process."""
    limit_max: int
    granted: float
    """The law's own value; below 1 clients take turns."""
    work_share: float | None
    """Share of the loop's work that smaller windows would put off, or None if unknown."""
    closed: bool
    """Whether nothing is admitted: the journal is full, or the node drains."""
    shared: bool
    """Whether clients take turns."""


class PressureStatus(TypedDict):
    value: float
    cause: str | None
    signals: dict[str, float]
    """The pressure of every signal: its value by its objective."""
    observed: dict[str, float]
    """The values themselves: seconds, of memory a share."""
    objectives: dict[str, float]


class ClientsStatus(TypedDict):
    connected: int
    paused: int
    maximum: int
    sessions: int
    subscriptions: int


class UnfinishedStatus(TypedDict):
    """Packets admitted and not yet done."""

    packets: Use
    """Their cost units."""
    bytes: Use


class GateStatus(TypedDict):
    limit: int
    in_process: int
    buffered: Use
    buffered_bytes: Use
    rung: str
    retry_after_s: float
    """The time that a 5.0 client refused now is told to stay away, before its jitter."""
    accepted: int
    refused: dict[str, int]
    cuts: dict[str, int]
    """How often the limit was cut, by what for."""


class LayersStatus(TypedDict):
    """The gate for handshakes of TLS and WebSocket."""

    limit: int
    in_process: int
    waiting: int
    refused: dict[str, int]


class ListenerStatus(TypedDict):
    """The listening sockets."""

    connections: Use
    """Open connections, also those without a CONNECT yet; the limit is the descriptors there
    are."""
    resting: str | None
    """Why no connection is accepted now: descriptors, pressure or refusals; None: they are."""
    rests: dict[str, int]
    """How often a listener paused for a tick, by the same reasons."""
    faults: dict[str, int]
    """Connections that a layer between socket and MQTT gave up on, by reason."""
    handshakes: LayersStatus
    checks: dict[str, int]
    """Answers to the question who a CONNECT is from, by outcome."""


class JournalStatus(TypedDict):
    operations: Use
    bytes: Use
    waiting_s: float
    """The wait so far of the oldest work that is not in a commit yet."""
    committing_s: float
    """The time that the commit under way has taken so far."""


class MemoryStatus(TypedDict):
    held_bytes: int
    """Memory that the node holds, by its own count."""
    resident_bytes: int
    limit_bytes: int


class StoreStatus(TypedDict):
    """The store's own signals."""

    state: str
    """"flowing", "delayed" or "stopped"."""
    read_only: bool
    """Whether the disk is full: new durable work is refused."""
    used_bytes: int
    free_bytes: int | None
    """Free space on its disk; None: it has none."""
    pages_unreadable: int
    """Pages of queues that it could not read: the messages in them are held back."""


class LogStatus(TypedDict):
    """The durable log, as far as this node has used it since its start."""

    appended: int
    """Messages logged, once each."""
    read: int
    """Messages that sessions have got from there."""
    catching_up: int
    """Clients, and shared subscriptions of applications, that read what they have missed."""


class ApplicationsStatus(TypedDict):
    """Clients that consume everything, however far they fall behind."""

    sessions: int
    connected: int
    lost: int
    """Messages that a store which keeps them apart had no longer."""
    away_s: float
    """For so long that store has taken nothing; 0: it takes what there is."""
    operations: Use
    """That wait for it, or for those who wait with them; 0 of 0 where there is no such store."""
    bytes: Use
    publishers: int
    """Who wait with a message until there is room."""
    groups: int
    """Shared subscriptions that other brokers have, too."""
    group_messages: int
    """Messages of theirs that are here and not acknowledged."""
    groups_in_trouble: int
    """Of those groups: something is wrong with so many, which the log has named."""


class Status(TypedDict):
    version: str
    pid: int
    policy: str
    now_s: float
    started_s: float
    draining: bool
    window: WindowStatus
    pressure: PressureStatus
    why: str
    """What the law did in the last tick, for people; empty: nothing yet."""
    decisions: list[Decision]
    """The latest changes of the window, oldest first."""
    clients: ClientsStatus
    unfinished: UnfinishedStatus
    listener: ListenerStatus
    gate: GateStatus
    dropped: dict[str, int]
    """Messages not delivered to a subscriber, by reason."""
    traffic: dict[str, int]
    """Totals since the start, by the names of `COUNTED` and `_traffic`."""
    budgets: dict[str, Use]
    """Bytes that all clients share, by their purpose."""
    journal: JournalStatus
    store: StoreStatus
    log: LogStatus
    applications: ApplicationsStatus
    memory: MemoryStatus | None
    shadow: dict[str, Any] | None
    """What another policy, or other limits, would have done; None: there is no shadow."""
    recording: dict[str, Any] | None
    """The recording of the broker (`telemetry.progress`); None: there is none."""


@dataclass(frozen=True, slots=True)
class View:
    """A node, and the means to look at it: its clock, and the memory of the process."""

    node: Node
    clock: Callable[[], float]
    memory: Callable[[], MemoryStatus | None]
    recording: RecordingProgress | None = None

    def status(self) -> Status:
        return status_of(self.node, self.clock(), self.memory(), self.recording)


def status_of(
    node: Node,
    now_s: float,
    memory: MemoryStatus | None = None,
    recording: RecordingProgress | None = None,
) -> Status:
    """The node at `now_s`; cost: the same for one client and for a million."""
    flow, guard, window = node.settings.flow, node.guard, node.window
    return Status(
        version=__version__,
        pid=os.getpid(),
        policy=guard.policy.name,
        now_s=now_s,
        started_s=node.started_s,
        draining=node.draining,
        window=WindowStatus(
            limit=window.limit,
            limit_max=window.limit_max,
            granted=guard.grant.window,
            work_share=guard.grant.leverage,
            closed=window.closed,
            shared=window.shared,
        ),
        pressure=_pressure(guard.grant, objectives_of(flow)),
        why=guard.grant.why,
        decisions=decisions_of(node),
        clients=ClientsStatus(
            connected=node.connected_count,
            paused=node.state.paused_count,
            maximum=node.counters.clients_maximum,
            sessions=len(node.registry.sessions),
            subscriptions=node.router.queues.subscriptions_count,
        ),
        unfinished=UnfinishedStatus(
            packets=_use(window.in_process, window.units_max),
            bytes=_use(window.in_process_bytes, window.bytes_max),
        ),
        listener=ListenerStatus(
            connections=Use(used=node.connections_count, limit=node.door.places),
            resting=None if node.door.resting is None else str(node.door.resting),
            rests={str(reason): count for reason, count in node.door.rests.items()},
            faults={str(reason): count for reason, count in node.door.faults.items()},
            handshakes=_handshakes(node),
            checks={str(outcome): count for outcome, count in node.door.checks.items()},
        ),
        gate=_gate(node),
        dropped={str(reason): count for reason, count in node.counters.dropped.items()},
        traffic=_traffic(node),
        budgets=_budgets(node),
        store=_store(node),
        log=_log(node),
        applications=_applications(node, now_s),
        journal=JournalStatus(
            operations=Use(used=node.journal.depth, limit=flow.journal_ops_max),
            bytes=Use(used=node.journal.size_bytes, limit=flow.journal_bytes_max),
            waiting_s=node.journal.waiting_s(now_s),
            committing_s=node.journal.committing_s(now_s),
        ),
        memory=memory,
        shadow=_shadow(node),
        recording=None if recording is None else asdict(recording),
    )


def _applications(node: Node, now_s: float) -> ApplicationsStatus:
    applications, apart, flow = node.router.applications, node.router.apart, node.settings.flow
    unused = Use(used=0, limit=0)
    return ApplicationsStatus(
        sessions=len(applications),
        connected=applications.connected_count,
        lost=applications.lost_count,
        away_s=0.0 if apart is None or not apart.is_away else now_s - apart.away_since_s,
        operations=unused
        if apart is None
        else Use(used=apart.journal.depth, limit=flow.journal_ops_max),
        bytes=unused
        if apart is None
        else Use(used=apart.journal.size_bytes, limit=flow.journal_bytes_max),
        publishers=0 if apart is None else apart.waiting_count,
        groups=node.router.queues.spread.count,
        group_messages=node.router.queues.spread.held_count,
        groups_in_trouble=node.router.queues.spread.troubled_count,
    )


def _handshakes(node: Node) -> LayersStatus:
    gate = node.door.handshakes
    if gate is None:
        return LayersStatus(limit=0, in_process=0, waiting=0, refused={})
    return LayersStatus(
        limit=gate.limit,
        in_process=gate.in_process,
        waiting=gate.buffered,
        refused={str(reason): count for reason, count in gate.refused.items()},
    )


def _shadow(node: Node) -> dict[str, Any] | None:
    """A `ShadowReport`, and `limits`: its settings that differ from those in force."""
    guard = node.guard
    if guard.shadow is None:
        return None
    flow, settings = node.settings.flow.model_dump(), guard.shadow_settings.model_dump()
    limits = {key: value for key, value in settings.items() if value != flow[key]}
    return {**asdict(guard.shadow.report()), "limits": limits}


def decisions_of(node: Node) -> list[Decision]:
    """The latest changes of the window, oldest first."""
    latest = list(node.guard.decisions)[-DECISIONS_SHOWN:]
    return [_decision(at_s, grant, node.settings.flow) for at_s, grant in latest]


def _gate(node: Node) -> GateStatus:
    flow, gate = node.settings.flow, node.guard.gate
    return GateStatus(
        limit=gate.limit,
        in_process=gate.in_process,
        buffered=Use(used=gate.buffered, limit=flow.connect_buffer_max),
        buffered_bytes=Use(used=gate.buffered_bytes, limit=flow.connect_buffer_bytes_max),
        rung=gate.rung.name.lower(),
        retry_after_s=gate.retry_after_s(MEAN_DRAW),
        accepted=node.counters.connects_accepted,
        refused={str(reason): count for reason, count in node.refused_connects().items()},
        cuts={str(cut): count for cut, count in gate.cuts.items()},
    )


def _decision(at_s: float, grant: Grant, flow: FlowSettings) -> Decision:
    cause, pressure = grant.pressure.cause, grant.pressure.value
    signal = threshold = value = unit = None
    if cause is not None:
        signal, threshold, unit = str(cause), _threshold(cause, objectives_of(flow)), UNITS[cause]
        value = _observed(cause, grant.pressure.parts.get(cause, pressure), threshold)
    return Decision(
        at_s=at_s,
        window=grant.window,
        pressure=pressure,
        why=grant.why,
        signal=signal,
        value=value,
        threshold=threshold,
        unit=unit,
    )


def _threshold(signal: Signal, objectives: Objectives) -> float:
    return {
        Signal.QUEUE: objectives.queue_s,
        Signal.LOOP: objectives.loop_s,
        Signal.STORE: objectives.store_s,
        Signal.REPLICATION: objectives.replication_s,
        Signal.MEMORY: objectives.memory_share,
    }[signal]


def _observed(signal: Signal, part: float, threshold: float) -> float:
    """The observed value, computed back from its pressure."""
    if signal is not Signal.MEMORY:
        return part * threshold
    return threshold + MEMORY_FOURFOLD_SHARE * log(part, 4) if part > 0 else 0.0


def _pressure(grant: Grant, objectives: Objectives) -> PressureStatus:
    pressure = grant.pressure
    thresholds = {signal: _threshold(signal, objectives) for signal in Signal}
    return PressureStatus(
        value=pressure.value,
        cause=None if pressure.cause is None else str(pressure.cause),
        signals={str(signal): pressure.parts.get(signal, 0.0) for signal in Signal},
        observed={
            str(signal): _observed(signal, pressure.parts.get(signal, 0.0), threshold)
            for signal, threshold in thresholds.items()
        },
        objectives={str(signal): threshold for signal, threshold in thresholds.items()},
    )


def _store(node: Node) -> StoreStatus:
    load = node.store_load
    return StoreStatus(
        state=load.state.name.lower(),
        read_only=node.state.read_only,
        used_bytes=load.used_bytes,
        free_bytes=load.free_bytes,
        pages_unreadable=node.counters.pages_unreadable,
    )


def _log(node: Node) -> LogStatus:
    log = node.router.log
    return LogStatus(
        appended=log.appended_count, read=log.read_count, catching_up=log.catching_up_count
    )


def _use(used: int, limit: int) -> Use:
    return Use(used=used, limit=limit if limit < UNBOUNDED else None)


def _traffic(node: Node) -> dict[str, int]:
    counters = node.counters
    return {name: getattr(counters, name) for name in COUNTED} | {
        "publish_received_bytes": counters.publish_bytes_received,
        "publish_sent_bytes": counters.publish_bytes_sent,
        "packets_received": counters.messages_received,
        "packets_sent": counters.messages_sent + counters.publish_sent,
        "received_bytes": counters.bytes_received,
        "sent_bytes": counters.bytes_sent,
        "protocol_errors": counters.malformed,
        "errors": counters.errors,
        "log_lines_dropped": STDERR.dropped,
    }


def _budgets(node: Node) -> dict[str, Use]:
    budgets: dict[str, Budget | FairBudget] = {
        "queue": node.queue_budget,
        "inflight": node.inflight.budget,
        "outbox": node.outbox_budget,
        "input": node.input_budget,
        "state": node.state_budget,
        "plans": node.router.plans.budget,
    }
    groups = node.router.queues.spread
    if groups.count:
        budgets["groups"] = groups.budget
    if node.state.spills:
        budgets["disk_queue"] = node.disk_queue_budget
    clients, kept, bounds = node.connections_count, node.registry.kept_count, node.bounds
    return {
        **{name: Use(used=b.used_bytes, limit=b.limit_bytes) for name, b in budgets.items()},
        "clients": Use(
            used=CONNECTION_BYTES * clients, limit=CONNECTION_BYTES * bounds.sockets_max
        ),
        "sessions": Use(used=SESSION_BYTES * kept, limit=SESSION_BYTES * bounds.sessions_max),
        "retained": Use(used=node.router.retained.size_bytes, limit=bounds.retained_bytes),
    }
