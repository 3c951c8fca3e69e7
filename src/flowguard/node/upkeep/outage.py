"""Outage of the store: since when it accepts no writes, and why."""

from typing import Final, final

from flowguard.flow.load.signals import StoreState
from flowguard.node.connect.connecting import Handshakes
from flowguard.node.journal import Journal
from flowguard.session.node_state import NodeState
from flowguard.stores import StoreLoad

STALLED_S: Final = 1.0
"""Time after which a CONNECT that needs no commit does not wait for the commit under way."""
FAILED_S: Final = 1.0
"""Time for which a store must reject writes to count as unavailable, seconds."""
LATE_S: Final = 3.0
"""Duration of a commit without an error after which it counts as unavailable, seconds."""


@final
class StoreOutage:
    """Judges the store at every tick. A full disk is no outage."""

    def __init__(self, state: NodeState, journal: Journal, handshakes: Handshakes) -> None:
        self._state = state
        self._journal = journal
        self._handshakes = handshakes
        self._since_s: float | None = None
        self.why = ""
        """The error of the last commit, or "" if none has failed."""

    def tick(self, load: StoreLoad, now_s: float) -> None:
        # A commit cannot begin while the store waits for something else.
        committing_s, waiting_s = self._journal.committing_s(now_s), self._journal.waiting_s(now_s)
        if max(committing_s, waiting_s) > STALLED_S:
            self._handshakes.store_away(now_s, max(committing_s, waiting_s))
        late_s = committing_s if self._journal.is_committing else waiting_s
        has_failed = self._state.is_store_away or load.state is StoreState.STOPPED
        if not has_failed and late_s <= LATE_S:
            self._since_s, self.why = None, ""
            return
        self._handshakes.free_abandoned(now_s)
        if self._since_s is None:
            self._since_s = now_s - late_s

    def lasted_s(self, now_s: float) -> float:
        """Return how long the store has accepted no writes, or 0.0 if it accepts them."""
        lasted_s = 0.0 if self._since_s is None else now_s - self._since_s
        return lasted_s if lasted_s > FAILED_S else 0.0
