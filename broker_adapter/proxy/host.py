"""PairHost: what the pairs of a proxy share, and what each asks of the others."""

from typing import Generic, TypeVar

from flowguard.flow import Arrival, NodeWindow

P = TypeVar("P")


class PairHost(Generic[P]):
    """The proxy, as far as a pair `P` needs it."""

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
        """The packets that all pairs together have in process."""
        self.cost_bytes = cost_bytes
        """A packet weighs one unit more for each so many bytes."""
        self.connect_bytes_max = connect_bytes_max
        """The largest CONNECT."""
        self.lookahead_bytes = lookahead_bytes
        """The bytes of a client without room that may be held."""
        self.held_bytes = 0
        """All that pairs hold; each tells its part."""
        self.held_bytes_max = held_bytes_max
        self.dirty: list[P] = []
        """Pairs with something to send, or to close; none is there twice."""
        self.runnable: list[P] = []
        """Pairs to be run in the next turn; none is there twice."""
        self.finished = 0
        """Packets that are done since the last tick."""
        self.response_sum_s = 0.0
        """How long they were in process, together."""

    @property
    def is_tight(self) -> bool:
        """Whether all pairs hold so much that only who holds nothing is read."""
        return self.held_bytes >= self.held_bytes_max

    def offer(self, pair: P, arrival: Arrival, now_s: float) -> None:
        """A CONNECT has come; `decided` follows."""
        raise NotImplementedError

    def dial(self, pair: P, now_s: float) -> None:
        """It has a place: its connection to an upstream is to be opened."""
        raise NotImplementedError

    def answered(self, pair: P, now_s: float, *, is_busy: bool) -> None:
        """The upstream's CONNACK has come."""
        raise NotImplementedError

    def paused(self, pair: P, now_s: float) -> None:
        """It has packets and no room."""
        raise NotImplementedError

    def leaving(self, pair: P, now_s: float) -> None:
        """Its client sends or hears no more, and something of it has just moved."""
        raise NotImplementedError

    def gone(self, pair: P, now_s: float) -> None:
        """It has ended: nothing is remembered of it."""
        raise NotImplementedError
