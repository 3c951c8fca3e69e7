"""The demo's broker: real, with deliberately small limits and a deliberately slow store."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from flowguard.broker.server import Running
from flowguard.config import FlowSettings, NodeSettings, Settings
from flowguard.flow import Signal
from flowguard.records import Append, PutSession, StoreOp
from flowguard.stores import Fenced, MemoryStore

CONNECTS_IN_PROCESS = 10
CONNECT_BUFFER = 200

COMMIT_S = 0.004
SESSION_S = 0.002
"""Ten CONNECTs make a commit of 24 ms, so about 400 clients per second connect."""
MESSAGE_S = 0.0002
STORE_OBJECTIVE_S = 0.015
"""An objective between a calm commit and one full of CONNECTs: the crowd causes pressure, its end
relief."""

CLIENT_TIMEOUT_S = 30
"""Connect timeout of the crowd. It is long because the clients share this machine with the
broker."""
PROBES = 100
LATE = 3
"""An objective allows for this multiple of the lateness of this machine."""


def lateness_s() -> float:
    """Return how late this machine wakes a task that sleeps as long as a calm commit, 90th
    percentile."""
    late_s = []
    for _ in range(PROBES):
        began_s = time.perf_counter()
        time.sleep(COMMIT_S)
        late_s.append(time.perf_counter() - began_s - COMMIT_S)
    return sorted(late_s)[PROBES * 9 // 10]


def demo_settings(late_s: float) -> Settings:
    """Return small limits, with objectives that allow for other work on this machine."""
    forgiven_s = LATE * late_s
    default = FlowSettings()
    return Settings(
        flow=FlowSettings(
            connects_in_process_max=CONNECTS_IN_PROCESS,
            connect_buffer_max=CONNECT_BUFFER,
            connect_timeout_s=CLIENT_TIMEOUT_S,
            store_objective_s=STORE_OBJECTIVE_S + forgiven_s,
            queue_objective_s=default.queue_objective_s + forgiven_s,
            loop_objective_s=default.loop_objective_s + forgiven_s,
        ),
        node=NodeSettings(drain_s=1.0),
    )


@final
class DemoStore(MemoryStore):
    """The store in memory, as slow as a busy disk: the load is real, only its cause is
    artificial."""

    immediate = False

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        fenced = super().commit(ops)
        sessions = sum(op.__class__ is PutSession for op in ops)
        messages = sum(op.__class__ is Append for op in ops)
        if sessions or messages:
            time.sleep(COMMIT_S + SESSION_S * sessions + MESSAGE_S * messages)
        return fenced


@dataclass(frozen=True, slots=True)
class DemoSample:
    """The state of the broker at one instant; counts are since its start."""

    at_s: float
    """Time since the demo began."""
    window: int
    pressure: float
    cause: Signal | None
    in_process: int
    buffered: int
    refused: int
    arrived: int
    """CONNECTs that clients sent, repeated ones included."""
    connected: int
    published: int
    paused: int
    """Clients with packets that wait for their window."""


def sample(broker: Running, at_s: float) -> DemoSample:
    """Read the broker's state without changing it."""
    node = broker.node
    refused = sum(node.guard.gate.refused.values())
    waiting = node.guard.gate.in_process + node.guard.gate.buffered
    return DemoSample(
        at_s,
        node.guard.window.limit,
        node.guard.grant.pressure.value,
        node.guard.grant.pressure.cause,
        node.guard.gate.in_process,
        node.guard.gate.buffered,
        refused,
        node.counters.connects_accepted + refused + waiting,
        node.counters.clients_connected,
        node.counters.publish_received,
        node.state.paused_count,
    )
