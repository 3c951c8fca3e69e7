"""Signals of a node and their pressure (docs/explain/overload.md, "Pressure").

A `Sample` is one tick's observation, in natural units. `Objectives` are the highest acceptable
values. The quotient of both is the node's `Pressure`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from math import inf
from typing import Final

TICK_S: Final = 0.1
"""Time from one sample to the next, seconds."""
TICK_JITTER: Final = (0.9, 1.1)
"""Factors of a tick's length, so that the nodes of a cluster do not march in step."""
PRESSURE_MAX: Final = 16.0


class Signal(StrEnum):
    """The signals.

    A new one is also reported by `observer`, has an objective in `config`, and is listed by name in
    `policies.MINDED`, `cluster`, `ops.status`, `ops.condition`, `ops/web/page.js` and
    `telemetry.schema`, with the columns that analyses read.
    """

    QUEUE = "queue"
    """Minimum sojourn: the shortest wait of a packet for its turn, seconds."""
    LOOP = "loop"
    """90th percentile of the event loop's drift over the last second, or the mean wait of
    connections with packets and window capacity for the loop, seconds; the larger of the two."""
    STORE = "store"
    """90th percentile of durable writes over the last second, seconds; and the engine's stalls.
    After a cut of the window, percentiles are of later reports only."""
    REPLICATION = "replication"
    """Age of the oldest unacknowledged replication, seconds."""
    MEMORY = "memory"
    """Used share of the memory limit, or of the budget for unfinished bytes, 0 to 1."""


class StoreState(Enum):
    """The state of the store's engine; the value is the pressure that it causes at least."""

    FLOWING = 0.0
    DELAYED = 1.5
    STOPPED = 4.0


@dataclass(frozen=True, slots=True)
class Sample:
    now_s: float
    sojourn_s: float = 0.0
    """Minimum over packets started since the last tick; head-of-line age if none was started."""
    drift_s: float = 0.0
    commit_s: float = 0.0
    store_state: StoreState = StoreState.FLOWING
    replication_age_s: float = 0.0
    memory_share: float = 0.0
    """Held memory by the memory limit, 0 to 1 and above (`Guard.observe_memory`)."""
    waiting_share: float = 0.0
    """The part of it that CONNECTs hold which wait for a slot: no window gives it back."""
    connect_room_bytes: float = inf
    """Memory that further waiting CONNECTs may hold until memory is at its objective."""
    unfinished_share: float = 0.0
    """Bytes of packets in process by their budget, 0 to 1."""
    response_s: float = 0.0
    """Mean time from admission to done of the packets finished since the last tick; 0 if none
    were."""
    completed: int = 0
    """Packets finished since the last tick."""
    in_process: int = 0
    """Packets in process now, cost units of all clients."""
    clients_active: int = 0
    """Clients that have packets in process, or waiting, now."""
    running_share: float = 1.0
    """Share of the time with work in which the loop has a processor, 0 to 1."""
    worked_s: float = 0.0
    """Time for which the loop has worked since the last tick; 0 if it is not reported."""
    connecting_s: float = 0.0
    """The part of it that serving CONNECTs took."""
    handshakes_s: float = 0.0
    """The part that handshakes before a CONNECT took, for example of TLS."""
    work: float = 0.0
    """Work for packets (`NodeWindow.work`)."""
    movable_work: float | None = None
    """The part of it that smaller windows would have put off, or None if unknown."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """The highest acceptable value of each signal; all above 0."""

    queue_s: float = 0.025
    loop_s: float = 0.050
    store_s: float = 0.075
    replication_s: float = 0.100
    memory_share: float = 0.70


@dataclass(frozen=True, slots=True)
class Pressure:
    """The worst of the normalised signals, 0 to 16, with all parts as the explanation."""

    value: float
    cause: Signal | None
    """The worst signal, or None if all of them are 0."""
    parts: Mapping[Signal, float]


CALM: Final = Pressure(0.0, None, {})
