"""Retaining: retained messages of a node change here, in memory and in the store."""

from typing import final

from flowguard.flow import Reason
from flowguard.node.journal import Journal
from flowguard.node.peers.peers import Peers
from flowguard.records import DropRetained, PutRetained
from flowguard.routing import RetainedMessages, RetainOutcome
from flowguard.session.node_state import NodeState
from flowguard.types import Publish


@final
class Retaining:
    """One per node."""

    def __init__(
        self, node: NodeState, journal: Journal, messages: RetainedMessages, peers: Peers
    ) -> None:
        self._node = node
        self._journal = journal
        self._messages = messages
        self._peers = peers

    def keep(self, message: Publish, expires_at_s: float) -> bool:
        """As `apply`, and notify the peers."""
        is_kept = self.apply(message, expires_at_s)
        if not message.topic.startswith("$SYS/"):
            self._peers.retained_changed(message, expires_at_s, is_kept=is_kept)
        return is_kept

    def apply(self, message: Publish, expires_at_s: float) -> bool:
        """Keep, replace or remove the retained message [MQTT-3.3.1-5] [MQTT-3.3.1-6].

        Return False if there is no capacity for it. The message that it was to replace is removed
        all the same, as it is no longer the last one.
        """
        outcome = self._messages.put(message, expires_at_s)
        if outcome.is_refusal:
            self._node.counters.drop(Reason.RETAINED_FULL)
            self._messages.discard(message.topic)
        if not message.topic.startswith("$SYS/"):
            kept = outcome is RetainOutcome.KEPT
            put = PutRetained(message, expires_at_s)
            self._journal.note(put if kept else DropRetained(message.topic))
        return not outcome.is_refusal
