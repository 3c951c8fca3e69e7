"""Holdings: the memory that a node uses, counted, and a check of it at start.

All state that a peer can cause is counted in its own module; this module adds it up. The sums do
not include memory that the allocator has not returned to the system, as the next client can use it.
"""

from dataclasses import dataclass
from typing import Final

from flowguard.bounds import CONNECTION_BYTES, PROCESS_BYTES, SESSION_BYTES
from flowguard.config import MIB
from flowguard.errors import ConfigError
from flowguard.lines import count
from flowguard.node.node import Node

RESTORED_SHARE_MAX: Final = 0.9
"""Maximum share of long-lived memory that restored state takes; the rest is for new clients."""
STORE_SHARE_MAX: Final = 0.2
"""Maximum share of long-lived memory that the store itself takes."""


def held_bytes(node: Node) -> int:
    """Return the memory of the process, of long-lived state and of work in process."""
    return _long_bytes(node) + (
        node.guard.window.in_process_bytes
        + node.journal.size_bytes
        + node.router.lane.held_bytes
        + node.guard.gate.buffered_bytes
    )


def _long_bytes(node: Node) -> int:
    return (
        PROCESS_BYTES
        + node.bounds.store_bytes
        + CONNECTION_BYTES * node.connections_count
        + node.door.handshake_bytes
        + SESSION_BYTES * node.registry.kept_count
        + node.router.retained.size_bytes
        + node.state.state_budget.used_bytes
        + node.state.queue_budget.used_bytes
        + node.state.inflight.budget.used_bytes
        + node.state.outbox_budget.used_bytes
        + node.state.input_holders.budget.used_bytes
        + node.router.plans.budget.used_bytes
        + node.router.queues.spread.budget.used_bytes
        + node.router.peers.held_bytes
    )


@dataclass(frozen=True, slots=True)
class Restored:
    """One kind of state that was restored from a store."""

    name: str
    """Description with a count, for a message."""
    key: str
    """Setting that limits it."""
    used_bytes: int
    limit_bytes: int

    @property
    def is_over(self) -> bool:
        return self.used_bytes > self.limit_bytes

    def __str__(self) -> str:
        return f"{self.name} {self.used_bytes:,} bytes ({self.key}: {self.limit_bytes:,})"


def restored(node: Node) -> list[Restored]:
    """Return all state in memory after a start and before the first client, largest first."""
    bounds, registry, retained = node.bounds, node.registry, node.router.retained
    parts = [
        Restored(
            f"{count(registry.kept_count, 'session')}",
            "node.sessions_max",
            SESSION_BYTES * registry.kept_count,
            SESSION_BYTES * bounds.sessions_max,
        ),
        Restored(
            "their subscriptions and wills",
            "node.state_bytes_max",
            node.state.state_budget.used_bytes,
            bounds.state_bytes,
        ),
        Restored(
            "their messages sent and unacknowledged",
            "node.inflight_bytes_max",
            node.state.inflight.budget.used_bytes,
            bounds.inflight_bytes,
        ),
        Restored(
            f"{count(len(retained), 'retained message')}",
            "node.retained_bytes_max",
            retained.size_bytes,
            bounds.retained_bytes,
        ),
    ]
    return sorted(parts, key=lambda part: -part.used_bytes)


def check_restored(node: Node) -> list[Restored]:
    """Return the kinds of state above their limits; they do not grow any more.

    Raises `ConfigError` if no memory is left for clients.
    """
    parts = restored(node)
    bounds = node.bounds
    restored_bytes = sum(part.used_bytes for part in parts)
    room_bytes = bounds.long_bytes - PROCESS_BYTES - bounds.store_bytes
    if restored_bytes > RESTORED_SHARE_MAX * room_bytes:
        share = node.settings.flow.memory_objective
        long_bytes = restored_bytes / RESTORED_SHARE_MAX / (1 - STORE_SHARE_MAX) + PROCESS_BYTES
        needed_bytes = max(int(long_bytes / share), bounds.memory_bytes) + MIB
        raise ConfigError(
            f"what is stored needs more memory than there is for it: {', '.join(map(str, parts))}. "
            f"Raise flow.memory_max_bytes from {bounds.memory_bytes} to {needed_bytes}, "
            "or remove some of it while the broker is stopped: flowguard store"
        )
    return [part for part in parts if part.is_over]
