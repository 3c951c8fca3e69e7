"""The demo's broker: real, with deliberately small limits and a deliberately slow store."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from flowguard.broker.server import Running
from flowguard.config import FlowSettings, NodeSettings, Settings
from flowguard.flow import Signal
from flowguard.records import Append, PutSession, StoreOp
from flowguard.stores import MemoryStore

CONNECTS_IN_PROCESS = 10
CONNECT_BUFFER = 200

COMMIT_S = 0.004
SESSION_S = 0.002
"""Ten CONNECTs make a commit of 24 ms: about 400 clients per second get in."""
MESSAGE_S = 0.0002
STORE_OBJECTIVE_S = 0.015
"""Between a calm commit and one full of CONNECTs: the crowd is pressure, its end is relief."""

DEMO_SETTINGS = Settings(
    flow=FlowSettings(
        connects_in_process_max=CONNECTS_IN_PROCESS,
        connect_buffer_max=CONNECT_BUFFER,
        store_objective_s=STORE_OBJECTIVE_S,
    ),
    node=NodeSettings(drain_s=1.0),
)


@final
class SlowStore(MemoryStore):
    """The store in memory, as slow as a busy disk: the load is real, only its reason is made."""

    immediate = False

    def commit(self, ops: Sequence[StoreOp]) -> None:
        super().commit(ops)
        sessions = sum(op.__class__ is PutSession for op in ops)
        messages = sum(op.__class__ is Append for op in ops)
        if sessions or messages:
            time.sleep(COMMIT_S + SESSION_S * sessions + MESSAGE_S * messages)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the broker says of itself at one instant; counts since its start."""

    at_s: float
    """Since the demo began."""
    window: int
    pressure: float
    cause: Signal | None
    in_process: int
    buffered: int
    refused: int
    connected: int
    published: int
    paused: int
    """Clients of which packets wait for room."""


def sample(broker: Running, at_s: float) -> Sample:
    """Look, change nothing."""
    node = broker.node
    return Sample(
        at_s,
        node.window.limit,
        node.protection.grant.pressure.value,
        node.protection.grant.pressure.cause,
        node.gate.in_process,
        node.gate.buffered,
        sum(node.gate.refused.values()),
        node.connected_count,
        node.counters.publish_received,
        node.paused_count,
    )
