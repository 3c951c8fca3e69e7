"""Ends: a store learns later that a connection was lost, as most clients come back soon.

The end of a connection changes one thing in the store: when the session expires. A crowd that has
lost its connections comes back, so none of its ends has to be stored, and the store has all its
time for the CONNECTs. If the broker dies before an end is stored, the session expires later,
because its connection counts as ended by the next start.
"""

from collections import OrderedDict
from typing import Final, final

from flowguard.node.journal import Journal
from flowguard.records import PutSession
from flowguard.session.session import Session

ENDS_AFTER_S: Final = 60.0
"""Time from the end of a connection until it is stored."""
ENDS_PER_TICK: Final = 10
"""A crowd that does not come back takes little of the store's time."""


@final
class Ends:
    """One per node, for at most as many sessions as it keeps; only `store_all` is not O(1)."""

    __slots__ = ("_journal", "_since_s")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._since_s: OrderedDict[Session, float] = OrderedDict()
        """When each connection ended, in this order. The first of a dict is found in O(removed)."""

    def __len__(self) -> int:
        return len(self._since_s)

    def add(self, session: Session, now_s: float) -> None:
        """Store later when `session` expires; its connection ended at `now_s`."""
        self._since_s[session] = now_s

    def drop(self, session: Session) -> None:
        """Store no end: the client is back, or the session has ended."""
        self._since_s.pop(session, None)

    def tick(self, now_s: float, waiting_count: int) -> None:
        """Note the oldest ends that are due, but none while CONNECTs wait."""
        if waiting_count:
            return
        for _ in range(min(ENDS_PER_TICK, len(self._since_s))):
            session = next(iter(self._since_s))
            if self._since_s[session] + ENDS_AFTER_S > now_s:
                return
            self._store(session)

    def store_all(self) -> None:
        """Note all ends, before the broker closes its store."""
        while self._since_s:
            self._store(next(iter(self._since_s)))

    def _store(self, session: Session) -> None:
        del self._since_s[session]
        self._journal.note(put_of(session, session.ends_at_s))


def put_of(session: Session, ends_at_s: float | None) -> PutSession:
    return PutSession(
        session.client_id,
        session.expiry_interval_s,
        ends_at_s,
        session.is_application,
        session.user,
    )
