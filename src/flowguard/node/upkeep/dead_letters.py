"""Dead letters: messages that expired in a durable session, published again.

The topic is `session.dead_letter_topic`, "/" and their own topic. They are unchanged but for the
expiry interval and two user properties: the client or the filter of a shared subscription that did
not get them, and the reason. One commit settles the old message and appends the dead letter to its
queues. So the message is never lost between the two, and never delivered twice.
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
    """Settles expired messages, and publishes them again if that is configured."""

    def __init__(self, node: NodeState, router: Router, journal: Journal) -> None:
        self._counters = node.counters
        self._prefix = node.settings.session.dead_letter_topic
        self._router = router
        self._journal = journal
        self._expired: deque[Settle] = deque()
        self._is_busy = False

    def expired(self, settle: Settle, now_s: float) -> None:
        """Settle a message of a durable session that expired before it was sent.

        The dead letter may displace expired messages in a full queue. They are settled one after
        the other.
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
        """Return the dead letter of a message, or None if there is none.

        Dead letters must be configured, the message must not be one, and the topic must be valid.
        """
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
