"""Counters of a node's work since the run began, over all lives of its process."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(slots=True)
class MachineCounters:
    """The counters of one machine, which only grow; they are columns of table `samples`, which
    docs/reference/parquet-schema.md explains."""

    accepted_count: int = 0
    refused_count: int = 0
    discarded_count: int = 0
    """CONNECTs that were superseded, or lost their client before the answer."""
    closed_count: int = 0
    published_count: int = 0
    delivered_count: int = 0
    lost_count: int = 0
    """Lost messages, counted at the node that acknowledged them. A message that does not reach the
    node of a subscriber is not sent again, although a cluster would do so if it is stored."""
    busy_s: float = 0.0
    """Busy time of processes that have died; a living process has its own in its loop."""
    refusing_s: float = 0.0
