"""PairHost: the state that the pairs of a proxy share, and the interface of its core."""

from typing import Generic, TypeVar

from flowguard.flow import Arrival, NodeWindow, Reason
from flowguard.flow.load.histogram import Histogram
from flowguard.flow.load.observer import BOUNDS_S
from flowguard.session.counters import Counters
from flowguard.types import ReasonCode

P = TypeVar("P")


class PairHost(Generic[P]):
    """The proxy, as a pair `P` uses it."""

    def __init__(
        self,
        node_window: NodeWindow,
        *,
        cost_bytes: int,
        connect_bytes_max: int,
        lookahead_bytes: int,
        held_bytes_max: int,
    ) -> None:
        self.node_window = node_window
        """Packets that all pairs have in process."""
        self.cost_bytes = cost_bytes
        """Bytes of a packet that add one cost unit to it."""
        self.connect_bytes_max = connect_bytes_max
        """Maximum size of a CONNECT, bytes."""
        self.lookahead_bytes = lookahead_bytes
        """Maximum number of bytes held for a client without capacity."""
        self.held_bytes = 0
        """Bytes held by all pairs; each pair adds its share."""
        self.held_bytes_max = held_bytes_max
        self.dirty: list[P] = []
        """Pairs with something to send or to close, each once."""
        self.runnable: list[P] = []
        """Pairs to run in the next turn, each once."""
        self.counters = Counters()
        self.paused_count = 0
        """Number of clients with held packets."""
        self.acknowledged = Histogram(BOUNDS_S)
        """Times from a PUBLISH of QoS 1 or 2 to its PUBACK or PUBREC, seconds."""
        self.finished = 0
        """Number of packets done since the last tick."""
        self.response_sum_s = 0.0
        """Total time that they were in process, seconds."""

    @property
    def is_tight(self) -> bool:
        """True if pairs hold too much memory; then only pairs that hold nothing are read."""
        return self.held_bytes >= self.held_bytes_max

    def offer(self, pair: P, arrival: Arrival, now_s: float) -> None:
        """Offer the CONNECT of a pair; `decided` follows."""
        raise NotImplementedError

    def dial(self, pair: P, now_s: float) -> None:
        """Open the connection of an admitted pair to an upstream."""
        raise NotImplementedError

    def answered(self, pair: P, reason: int, now_s: float) -> None:
        """Note the upstream's CONNACK."""
        raise NotImplementedError

    def refused(self, pair: P, reason: ReasonCode, why: Reason | None) -> None:
        """Note a CONNACK of the proxy; `why`: the reason of the gate, or None."""
        raise NotImplementedError

    def paused(self, pair: P, now_s: float) -> None:
        """Note that a pair has packets but no capacity."""
        raise NotImplementedError

    def leaving(self, pair: P, now_s: float) -> None:
        """Note progress of a pair whose client has stopped sending or receiving."""
        raise NotImplementedError

    def gone(self, pair: P, now_s: float) -> None:
        """Forget a pair that has ended."""
        raise NotImplementedError
