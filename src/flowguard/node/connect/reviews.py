"""Reviews: new rights of a session, and the subscriptions that it had before them.

A client may reconnect as another user, or the rules may change. Then subscriptions that it may not
have any more are removed, and the plans of the others are rebuilt. The rights to queued messages
are checked when these are sent (`Outbound`).
"""

from typing import Final, final

from flowguard.access.rights import Rights
from flowguard.access.rules import Rules
from flowguard.node.connect.registry import Registry
from flowguard.node.subscribe.subscribing import Subscriptions
from flowguard.session.chores import FILTERS_PIECE
from flowguard.session.node_state import NodeState
from flowguard.session.owner import is_unbounded, own_queue
from flowguard.session.session import Session, queue_messages_max
from flowguard.types import ReasonCode

SESSION_FILTERS: Final = 4
"""Work to review a session itself, in subscriptions."""


@final
class Reviewing:
    """Reviews the many subscriptions of a session, piece by piece."""

    __slots__ = ("_filters", "_is_first", "_rights", "_session", "_subscriptions")

    def __init__(
        self, session: Session, rights: Rights, subscriptions: Subscriptions, *, is_first: bool
    ) -> None:
        self._session = session
        self._rights = rights
        self._subscriptions = subscriptions
        self._is_first = is_first
        self._filters = list(session.subscriptions)

    def step(self, now_s: float) -> bool:
        session, filters = self._session, self._filters
        if session.rights is not self._rights:
            return False  # The rights changed again, and another review has begun.
        for _ in range(min(FILTERS_PIECE, len(filters))):
            self._subscriptions.review(
                session, self._rights, filters.pop(), is_first=self._is_first
            )
        return bool(filters)


@final
class ReviewingAll:
    """Reviews the rights of all sessions under new rules."""

    __slots__ = ("_reviews", "_rules", "_sessions")

    def __init__(self, reviews: "Reviews", rules: Rules, sessions: list[Session]) -> None:
        self._reviews = reviews
        self._rules = rules
        self._sessions = sessions

    def step(self, now_s: float) -> bool:
        sessions = self._sessions
        room = FILTERS_PIECE
        while sessions and room > 0:
            session = sessions.pop()
            room -= SESSION_FILTERS + len(session.subscriptions)
            self._reviews.anew(session, self._rules, now_s)
        return bool(sessions)


@final
class Reviews:
    __slots__ = ("_node", "_registry", "_subscriptions")

    def __init__(self, node: NodeState, registry: Registry, subscriptions: Subscriptions) -> None:
        self._node = node
        self._registry = registry
        self._subscriptions = subscriptions

    def claimed(self, session: Session, rights: Rights, now_s: float) -> bool:
        """Set the rights of a client that has claimed its session; False if memory lacks."""
        before = session.rights
        if before is not None and rights.is_like(before):
            before.enter()
            return True
        if not self._fit(rights, session):
            return False
        rights.enter()
        self._review(session, rights, is_first=before is None)
        return True

    def all_anew(self, rules: Rules, now_s: float) -> None:
        """Review all sessions under new rules, one after the other."""
        sessions = list(self._registry.sessions.values())
        self._node.chores.add(ReviewingAll(self, rules, sessions).step)

    def anew(self, session: Session, rules: Rules, now_s: float) -> None:
        """Review one session.

        A session that was not claimed since the start is reviewed when its client connects.
        """
        before = session.rights
        if before is None or session.ended or before.version >= rules.version:
            return
        rights = rules.rights(before.principal, session.client_id)
        if before.leave():
            rights.enter()
        if session.will is not None and not rights.may_leave(session.will.message):
            self._registry.retract_will(session)  # First, as an end of the connection publishes it.
        if not self._fit(rights, session):
            rights.leave()
            if session.outbound is not None:
                session.outbound.connection.end(ReasonCode.QUOTA_EXCEEDED, now_s)
            return
        if session.outbound is not None:
            session.outbound.connection.limit_window(session.window_max)
        self._review(session, rights, is_first=False)

    def _fit(self, rights: Rights, session: Session) -> bool:
        """Return True if the new rights of a session fit into its limits, else count the drop."""
        node, account, before = self._node, session.account, session.rights
        if before is not None:
            account.charge(-before.size_bytes - before.forget(), node)
        reason = account.charge(rights.size_bytes, node)
        session.rights = rights if reason is None else None
        session.rights_pos = session.next_pos
        if not is_unbounded(session):
            most = queue_messages_max(session, node)
            if most != session.queue.messages_max:
                own_queue(session, node).messages_max = most
        if reason is not None:
            node.counters.drop(reason)
        return reason is None

    def _review(self, session: Session, rights: Rights, *, is_first: bool) -> None:
        filters = session.subscriptions
        if not filters:
            return
        review = Reviewing(session, rights, self._subscriptions, is_first=is_first)
        if len(filters) > FILTERS_PIECE:
            self._node.chores.add(review.step)
        else:
            review.step(0.0)
