"""Search: the retained messages for one subscription [MQTT-3.3.1-9], found a slice at a time."""

from typing import final

from flowguard.records import Delivery
from flowguard.routing import RetainedMessage, RetainedMessages
from flowguard.session.host import RetainedSearch
from flowguard.session.session import Session
from flowguard.types import SubscriptionOptions


@final
class Search(RetainedSearch):
    """A walk through the retained messages, for a client that may receive what it finds."""

    __slots__ = ("_at", "_found", "_is_done", "_options", "_retained", "_session", "_slices")

    def __init__(
        self,
        retained: RetainedMessages,
        session: Session,
        filter: str,
        options: SubscriptionOptions,
        now_s: float,
    ) -> None:
        self._retained = retained
        self._session = session
        self._options = options
        self._slices = retained.slices(filter, now_s)
        self._found: list[RetainedMessage] = []
        """Of the last slice."""
        self._at = 0
        self._is_done = False

    @property
    def is_done(self) -> bool:
        return self._is_done

    def peek(self) -> Delivery | None:
        while self._at < len(self._found):
            entry = self._found[self._at]
            # Replaced while the client was slow: it has got the new one as a live message.
            if self._retained.holds(entry) and self._session.may_receive(entry.publish.topic):
                return self._delivery(entry)
            self._at += 1
        found = next(self._slices, None)
        self._is_done = found is None
        self._found, self._at = found or [], 0
        return None

    def take(self) -> None:
        self._at += 1

    def _delivery(self, entry: RetainedMessage) -> Delivery:
        """With RETAIN 1, as for every new subscription [MQTT-3.3.1-8]."""
        message, options = entry.publish, self._options
        identifiers = (options.identifier,) if options.identifier else ()
        qos = min(message.qos, options.qos)
        return Delivery(message, qos, True, identifiers, entry.expires_at_s)
