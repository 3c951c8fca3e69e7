"""Host: the interfaces through which a process uses its machine and the world around it."""

from collections.abc import Callable
from typing import Protocol

from flowguard.cluster import PressureRecord
from flowguard.config import FlowSettings
from flowguard.flow import Cost
from flowguard.node.journal import Batch
from simulations.crowd.connection import Connection
from simulations.crowd.topics import Message
from simulations.engine import Engine
from simulations.process.counters import MachineCounters
from simulations.process.disk import Disk
from simulations.scenario import Scenario


class Checks(Protocol):
    """Called at the instants at which invariants are checked."""

    def after_step(self, node: int) -> None:
        """Check after a turn, or after the tasks between two turns."""

    def may_decide(self, connection: Connection) -> bool:
        """Check that a CONNECT may have its outcome now."""

    def on_refusal(self, connection: Connection) -> None:
        """Check a rejection."""

    def on_rest(self, node: int) -> None:
        """Check that sockets are left to the next tick."""

    def on_keep_alive(self, connection: Connection) -> None:
        """Check a disconnection by keep-alive."""


class ProcessWorld(Protocol):
    scenario: Scenario
    settings: FlowSettings
    engine: Engine

    @property
    def invariants(self) -> Checks | None: ...

    def path_of(self, index: int) -> frozenset[str]:
        """Return the nodes that a message published on this node touches."""

    def gossip(self, origin: int, record: PressureRecord, sent_s: float) -> None:
        """Send a node's record to all others."""

    def forward(
        self, origin: int, node: int, message: Message, deliveries: int, sent_s: float
    ) -> None:
        """Send a message to the subscribers of another node."""

    def lose(self, message: Message, deliveries: int) -> None:
        """Count an acknowledged message as lost for `deliveries` subscribers."""


class ProcessHost(Protocol):
    index: int
    name: str
    disk: Disk
    cost: Cost
    counters: MachineCounters
    slowness: float
    """The factor by which the loop's work takes longer than planned."""

    @property
    def world(self) -> ProcessWorld: ...

    def commit(self, batch: Batch, now_s: float, done: Callable[[Batch], None]) -> None:
        """Store a batch on this disk and on its replicas, then call `done`."""

    def replication_age_s(self, now_s: float) -> float:
        """Time that a commit has waited for a replica that does not answer."""

    def run_out_of_memory(self) -> None:
        """Kill the process for want of memory."""
