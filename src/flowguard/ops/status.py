"""The state of a node at one instant, ready for JSON: the answer of `/status`.

`catalogue` lists what a status has. The name of a number ends with its unit. A pressure is a value
divided by the objective of its signal (docs/explain/overload.md, "Pressure").
"""

from collections.abc import Sequence
from typing import Any, NotRequired, cast

from typing_extensions import TypedDict

from flowguard.node.node import Node
from flowguard.ops.catalogue import CATALOGUE
from flowguard.ops.common.measurement import Look, Measurement, MemoryStatus
from flowguard.ops.pressure import Decision


class Use(TypedDict):
    """The use of a bounded resource, with its limit or None."""

    used: int
    limit: int | None


class WindowStatus(TypedDict):
    limit: int
    limit_max: int
    granted: float
    closed: bool
    shared: bool


class PressureStatus(TypedDict):
    value: float
    cause: str | None
    signals: dict[str, float]
    observed: dict[str, float]


class ClientsStatus(TypedDict):
    connected: int
    paused: int
    sessions: NotRequired[int]


class UnfinishedStatus(TypedDict):
    packets: Use


class GateStatus(TypedDict):
    limit: int
    in_process: int
    buffered: Use
    rung: str
    refused: dict[str, int]


class JournalStatus(TypedDict):
    operations: Use


class StoreStatus(TypedDict):
    kind: str
    read_only: bool
    away_s: float
    why: str


class ApplicationsStatus(TypedDict):
    away_s: float


class UpstreamStatus(TypedDict):
    up: bool
    clients: int
    packets: int
    oldest_packet_s: float


class UpstreamsStatus(TypedDict):
    """The brokers behind a proxy."""

    away_s: float
    why: str
    each: dict[str, UpstreamStatus]


class DrainProgress(TypedDict):
    """Progress of a drain that disconnects clients one after the other."""

    clients: int
    """Number of clients at its beginning."""
    gone: int
    """Number of them that are disconnected."""
    rest_s: float
    """Time until the last one is disconnected, seconds."""


class LinksStatus(TypedDict):
    """The links to other workers, by their names."""

    waiting: dict[str, int]
    """Number of messages that are not confirmed."""
    down: dict[str, int]
    """1 if there is no link, else 0."""
    window: dict[str, int]
    """Window of a client for messages to it."""


class Status(TypedDict):
    """The part of a status that flowguard itself reads. A proxy has no store, journal,
    applications and shadow, and a broker has no upstreams."""

    version: str
    policy: str
    now_s: float
    started_s: float
    draining: bool
    drain: DrainProgress | None
    window: WindowStatus
    pressure: PressureStatus
    why: str
    decisions: list[Decision]
    clients: ClientsStatus
    unfinished: UnfinishedStatus
    gate: GateStatus
    dropped: dict[str, int]
    traffic: dict[str, int]
    journal: NotRequired[JournalStatus]
    store: NotRequired[StoreStatus]
    applications: NotRequired[ApplicationsStatus]
    links: NotRequired[LinksStatus]
    upstreams: NotRequired[UpstreamsStatus]
    memory: MemoryStatus | None
    shadow: NotRequired[dict[str, Any] | None]


def status_of(node: Node, now_s: float, memory: MemoryStatus | None = None) -> Status:
    """Return the status of a node without a recorder."""
    return status_at(CATALOGUE, Look(node, now_s, memory))


def status_at(catalogue: Sequence[Measurement[Any]], look: Look[Any]) -> Status:
    """Return the status; its cost does not depend on the number of clients."""
    status: dict[str, Any] = {}
    for each in catalogue:
        if each.path:
            *above, name = each.path.split(".")
            table = status
            for key in above:
                table = table.setdefault(key, {})
            table[name] = each.get(look)
    return cast(Status, status)
