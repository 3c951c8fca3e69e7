"""Holdings: what a node holds of its memory, counted, and what it holds too much of at start.

Everything that a peer can make a node keep is counted where it is kept; here are the sums. What the
allocator has not given back to the system is not among them: it is free for the next client.
"""

from dataclasses import dataclass
from typing import Final

from flowguard.bounds import CONNECTION_BYTES, PROCESS_BYTES, SESSION_BYTES
from flowguard.config import MIB
from flowguard.errors import ConfigError
from flowguard.lines import count
from flowguard.node.node import Node

RESTORED_SHARE_MAX: Final = 0.9
"""Of what may be held for long: the rest is for those who come."""
STORE_SHARE_MAX: Final = 0.2
"""Of the same, which the store's own memory takes at most."""


def held_bytes(node: Node) -> int:
    """The process, what is held for long, and work in process."""
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
    """One kind of what a store has brought back."""

    name: str
    """With its number, for people."""
    key: str
    """The setting that bounds it."""
    used_bytes: int
    limit_bytes: int

    @property
    def is_over(self) -> bool:
        return self.used_bytes > self.limit_bytes

    def __str__(self) -> str:
        return f"{self.name} {self.used_bytes:,} bytes ({self.key}: {self.limit_bytes:,})"


def restored(node: Node) -> list[Restored]:
    """Everything held after a start and before the first client, the largest first."""
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
    """Warn of what is kept above its bound; none of it grows any more.

    Raises ConfigError where nobody could get in beside it: it says what there is, and what to do.
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
