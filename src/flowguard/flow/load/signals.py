"""Signals of a node and their pressure (docs/explain/overload.md, "Pressure").

A `Sample` is one tick's observation, in natural units. `Objectives` say what is still fine. Their
quotient is the node's `Pressure`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from math import inf
from typing import Final

TICK_S: Final = 0.1
"""From one sample to the next, seconds."""
TICK_JITTER: Final = (0.9, 1.1)
"""Of a tick: so that the nodes of a cluster do not march in step."""
PRESSURE_MAX: Final = 16.0


class Signal(StrEnum):
    """The signals.

    A new one is also told by `observer`, has an objective in `config`, and is known by name in
    `policies.MINDED`, `cluster`, `ops.status`, `ops.condition`, `ops/web/page.js` and
    `telemetry.schema`, with the columns that analyses read.
    """

    QUEUE = "queue"
    """Minimum sojourn: how long even the luckiest packet waited for its turn, seconds."""
    LOOP = "loop"
    """90th percentile of the event loop's drift over the last second, or how long those who have
    packets and room wait for it on the average: the larger, seconds."""
    STORE = "store"
    """90th percentile of durable writes over the last second, seconds; and the engine's stalls.
    After a cut of the window percentiles are of what was reported since."""
    REPLICATION = "replication"
    """Age of the oldest replication nobody has acknowledged, seconds."""
    MEMORY = "memory"
    """Used share of the memory limit, or of the budget for unfinished bytes, 0 to 1."""


class StoreState(Enum):
    """The state of the store's engine; the value is the least pressure it stands for."""

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
    """What is held by the memory limit, 0 to 1 and above (`Guard.observe_memory`)."""
    waiting_share: float = 0.0
    """The part of it that CONNECTs hold which wait for a place: no window gives it back."""
    connect_room_bytes: float = inf
    """Memory that CONNECTs may come to hold by waiting until it is at its objective."""
    unfinished_share: float = 0.0
    """Bytes of packets in process by their budget, 0 to 1."""
    response_s: float = 0.0
    """Mean time from admission to done of the packets finished since the last tick; 0: none."""
    completed: int = 0
    """Packets finished since the last tick."""
    in_process: int = 0
    """Packets in process now, cost units of all clients."""
    clients_active: int = 0
    """Clients that have packets in process, or waiting, now."""
    running_share: float = 1.0
    """Of the time in which the loop has work, it has a processor for so much, 0 to 1."""
    worked_s: float = 0.0
    """Time for which the loop has worked since the last tick; 0: nobody says."""
    connecting_s: float = 0.0
    """The part of it that serving CONNECTs took."""
    handshakes_s: float = 0.0
    """The part that handshakes before a CONNECT took, of TLS, say."""
    work: float = 0.0
    """Work for packets (`NodeWindow.work`)."""
    movable_work: float | None = None
    """The part of it that smaller windows would have put off, or None if unknown."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """The value of each signal that is still fine; all above 0."""

    queue_s: float = 0.025
    loop_s: float = 0.050
    store_s: float = 0.075
    replication_s: float = 0.100
    memory_share: float = 0.70


@dataclass(frozen=True, slots=True)
class Pressure:
    """The worst of the normalised signals, 0 to 16, with every part for whoever asks why."""

    value: float
    cause: Signal | None
    """The signal that is worst; None: all of them are 0."""
    parts: Mapping[Signal, float]


CALM: Final = Pressure(0.0, None, {})
