"""Counters of a node's work since the run began, over all lives of its process."""

from typing import final


@final
class MachineCounters:
    """The counters of one machine; they only grow; docs/parquet-schema.md explains them, table
    `samples`."""

    __slots__ = (
        "accepted_count",
        "busy_s",
        "closed_count",
        "delivered_count",
        "discarded_count",
        "lost_count",
        "published_count",
        "refused_count",
        "refusing_s",
    )

    def __init__(self) -> None:
        self.accepted_count = 0
        self.refused_count = 0
        self.discarded_count = 0
        """CONNECTs superseded, or gone before they had an answer."""
        self.closed_count = 0
        self.published_count = 0
        self.delivered_count = 0
        self.lost_count = 0
        """Lost messages, counted at the node that acknowledged them. A message that does not reach
        the node of a subscriber is not sent again here, although a cluster would do so where it is
        stored."""
        self.busy_s = 0.0
        """Busy time of processes that are dead; that of the living is in its loop."""
        self.refusing_s = 0.0
