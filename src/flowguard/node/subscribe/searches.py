"""Searches for the retained messages of new subscriptions [MQTT-3.3.1-9], slice by slice.

A durable session also continues searches that were not finished when its client disconnected.
"""

from functools import partial
from itertools import islice
from typing import Final, final

from flowguard.node.peers.peers import Peers
from flowguard.records import Delivery
from flowguard.routing import RetainedMessage, RetainedMessages
from flowguard.session.chores import FILTERS_PIECE
from flowguard.session.host import RetainedSearch
from flowguard.session.node_state import NodeState
from flowguard.session.session import Session
from flowguard.types import SubscriptionOptions

SESSIONS_PIECE: Final = 100
"""Sessions whose searches begin in one time slice: up to three milliseconds."""


@final
class Search(RetainedSearch):
    """A walk through the retained messages that a client may receive."""

    __slots__ = ("_at", "_filter", "_found", "_is_done", "_retained", "_session", "_slices")

    def __init__(
        self,
        retained: RetainedMessages,
        session: Session,
        filter: str,
        after: str | None,
        now_s: float,
    ) -> None:
        """`after` is the topic to continue after, or "" for the beginning.

        It is None if the search will never be continued.
        """
        self._retained = retained
        self._session = session
        self._filter = filter
        self._slices = retained.slices(filter, now_s, after)
        self._found: list[RetainedMessage] = []
        """Messages of the last slice."""
        self._at = 0
        self._is_done = False

    @property
    def is_done(self) -> bool:
        return self._is_done

    def peek(self) -> Delivery | None:
        while self._at < len(self._found):
            entry = self._found[self._at]
            # If it was replaced while the client was slow, the client got the new one live.
            if self._retained.holds(entry) and self._session.may_receive(entry.publish.topic):
                options = self._session.subscriptions.get(self._filter)
                if options is not None:
                    return _delivery(entry, options)
            self._at += 1
        found = next(self._slices, None)
        self._is_done = found is None
        self._found, self._at = found or [], 0
        return None

    def take(self) -> None:
        self._at += 1


def _delivery(entry: RetainedMessage, options: SubscriptionOptions) -> Delivery:
    """Return a delivery with RETAIN 1, as for every new subscription [MQTT-3.3.1-8]."""
    message = entry.publish
    identifiers = (options.identifier,) if options.identifier else ()
    qos = min(message.qos, options.qos)
    return Delivery(message, qos, True, identifiers, entry.expires_at_s)


@final
class Searches:
    """Begins searches; `Outbound` sends the messages at the pace of its client."""

    def __init__(self, node: NodeState, retained: RetainedMessages, peers: Peers) -> None:
        self._node = node
        self._retained = retained
        self._peers = peers
        self._waiting: dict[Session, dict[str, None]] = {}
        """Filters whose search waits until this node knows the retained messages of peers."""

    def resumed(self, session: Session, now_s: float) -> None:
        """Continue searches for a reconnected client, first those that had begun."""
        owed = session.subscriptions.retained_after
        if owed is not None:
            self.begin(session, sorted(owed, key=lambda filter: not owed[filter]), now_s)

    def begin(self, session: Session, filters: list[str], now_s: float) -> None:
        """Begin searches for the subscribed filters with owed messages; many filters in pieces."""
        if not self._peers.knows_retained:
            self._waiting.setdefault(session, {}).update(dict.fromkeys(filters))
        elif len(filters) > FILTERS_PIECE:
            self._node.chores.add(partial(self._begin_some, session, filters.copy()))
        else:
            self._begin_piece(session, filters, now_s)

    def tick(self) -> None:
        """Every 100 ms: begin searches that have waited, or forget some clients that have left."""
        if self._waiting and self._peers.knows_retained:
            waiting, self._waiting = self._waiting, {}
            self._node.chores.add(partial(self._begin_waiting, waiting))
        elif self._waiting:
            self._forget_some()

    def _begin_waiting(self, waiting: dict[Session, dict[str, None]], now_s: float) -> bool:
        """Begin the searches of a piece of the sessions; True if there are more."""
        for session in list(islice(waiting, SESSIONS_PIECE)):
            self.begin(session, list(waiting.pop(session)), now_s)
        return len(waiting) > 0

    def _forget_some(self) -> None:
        """Forget the sessions without a client among those that were looked at longest ago."""
        waiting = self._waiting
        for session in list(islice(waiting, SESSIONS_PIECE)):
            filters = waiting.pop(session)
            if session.outbound is not None:
                waiting[session] = filters  # Behind all others.

    def _begin_some(self, session: Session, filters: list[str], now_s: float) -> bool:
        """Remove the first of `filters`, and begin their searches; True if there are more."""
        self._begin_piece(session, filters[:FILTERS_PIECE], now_s)
        del filters[:FILTERS_PIECE]
        return session.outbound is not None and len(filters) > 0

    def _begin_piece(self, session: Session, filters: list[str], now_s: float) -> None:
        """Begin searches for a number of filters that fits into one time slice."""
        outbound = session.outbound
        if outbound is None:
            return
        found: list[tuple[str, RetainedSearch]] = []
        for filter in filters:
            if _is_wanted(session, filter) and not outbound.sends_retained(filter):
                after = (session.subscriptions.retained_after or {}).get(filter)
                found.append((filter, Search(self._retained, session, filter, after, now_s)))
        if found:
            outbound.send_retained(found)


def _is_wanted(session: Session, filter: str) -> bool:
    """Return True if retained messages have to be sent for a filter.

    False if it is not subscribed any more, or all of them have been sent.
    """
    options, owed = session.subscriptions.get(filter), session.subscriptions.retained_after
    if options is None:
        return False
    is_remembered = session.durable and options.qos > 0
    return not is_remembered or (owed is not None and filter in owed)
