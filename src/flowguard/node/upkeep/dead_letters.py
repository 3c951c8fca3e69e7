"""Dead letters: messages that expired in a durable session, published again.

Under `session.dead_letter_topic`, "/" and their own topic, as they came but for the expiry, with
user properties that say who did not get them (a client, or the filter of a shared subscription) and
why. The old message is settled in the commit that appends the dead letter to its queues: it is
never lost between the two, nor there twice.
"""

from collections import deque
from dataclasses import replace
from typing import Final, final

from flowguard.flow import Reason
from flowguard.node.journal import Journal
from flowguard.node.publish.publishing import Router
from flowguard.records import Settle, sink_of
from flowguard.session.node_state import NodeState
from flowguard.types import Publish

TOPIC_BYTES_MAX: Final = 65_535


@final
class DeadLetters:
    """Settles what has expired, and publishes it again where that is asked for."""

    def __init__(self, node: NodeState, router: Router, journal: Journal) -> None:
        self._counters = node.counters
        self._prefix = node.settings.session.dead_letter_topic
        self._router = router
        self._journal = journal
        self._expired: deque[Settle] = deque()
        self._is_busy = False

    def expired(self, settle: Settle, now_s: float) -> None:
        """A message of a durable session expired before it was sent.

        Its dead letter may make others expire, where room is made for it: one after the other.
        """
        self._expired.append(settle)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._expired:
                self._settle(self._expired.popleft(), now_s)
        finally:
            self._is_busy = False

    def _settle(self, settle: Settle, now_s: float) -> None:
        letter = self._letter(settle)
        if letter is None:
            self._journal.note(settle)
        else:
            self._counters.dead_letters += 1
            self._router.publish_own(letter, now_s, settle)

    def _letter(self, settle: Settle) -> Publish | None:
        """None: there is none, for dead letters neither, and where its topic would be too long."""
        assert settle.delivery is not None
        message = settle.delivery.message
        prefix = self._prefix
        if prefix is None or message.topic.startswith(prefix + "/"):
            return None
        topic = f"{prefix}/{message.topic}"
        if len(topic.encode()) > TOPIC_BYTES_MAX or self._router.plans.refusal(topic):
            return None
        received = message.properties
        properties = replace(
            received,
            message_expiry_interval=None,
            topic_alias=None,
            user_properties=(
                *received.user_properties,
                ("dead-letter-client", sink_of(settle.client_id)[1]),
                ("dead-letter-reason", str(Reason.MESSAGE_EXPIRED)),
            ),
        )
        return Publish(topic, message.payload, message.qos, properties=properties)
