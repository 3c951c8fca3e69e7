"""CommitPlan: a batch on its way to Kafka and to the other store."""

from dataclasses import dataclass, field

from flowguard.records import Append, Release, Sent, Settle, StoreOp
from flowguard.stores.kafka.queue import ApplicationQueue


@dataclass(slots=True)
class CommitPlan:
    """A batch on its way: what is still to be done for it, step by step."""

    created: dict[str, ApplicationQueue] = field(default_factory=dict)
    """New queues by client id."""
    dropped: list[str] = field(default_factory=list)
    """Topics."""
    appends: dict[str, list[Append]] = field(default_factory=dict)
    """By client id, those whose positions are new."""
    changes: list[Sent | Release | Settle] = field(default_factory=list)
    rest: list[StoreOp] = field(default_factory=list)
    """What the other store is told."""
    due: set[str] = field(default_factory=set)
    """Client ids of queues whose windows are to be committed before the batch is done."""
    offsets: dict[str, list[int]] | None = None
    """Where the appends are, by client id; None: they are not written."""
