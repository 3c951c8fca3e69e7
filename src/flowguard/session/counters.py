"""Counts of one node since its start: the source of `$SYS` and of every later metric."""

from typing import final

from flowguard.flow import Reason
from flowguard.session.lives import Lives


@final
class Counters:
    """Plain numbers, written by the core and read by metrics and `$SYS`."""

    def __init__(self) -> None:
        self.bytes_received = 0
        self.bytes_sent = 0
        self.clients_connected = 0
        """Number of clients that are connected now."""
        self.clients_expired = 0
        self.clients_maximum = 0
        self.connections_accepted = 0
        self.connections_closed = 0
        """Sockets closed at once, because the load was too high even to reject them."""
        self.connects_accepted = 0
        self.connects_refused = 0
        self.dead_letters = 0
        """Messages that expired in a session and were published again as dead letters."""
        self.connects_without_place: dict[Reason, int] = {}
        """CONNECTs for which the gate had capacity, or was not asked, but the node has none."""
        self.dropped: dict[Reason, int] = {}
        """Messages not delivered to a subscriber, by reason."""
        self.errors = 0
        """Errors of flowguard or of a hook, each of which is in the log."""
        self.lives = Lives()
        """Begin and end of clients' connections."""
        self.malformed = 0
        self.messages_received = 0
        """Control packets, as in Mosquitto's `$SYS/broker/messages/received`."""
        self.messages_sent = 0
        self.pages_unreadable = 0
        """Pages of queues that the store could not read; their clients were disconnected."""
        self.publish_bytes_received = 0
        self.publish_bytes_sent = 0
        self.publish_received = 0
        self.publish_sent = 0
        self.takeovers = 0
        self.unknown_acknowledgements = 0
        self.wills_published = 0

    def client_connected(self) -> None:
        """Count a CONNECT that is about to be accepted."""
        self.connects_accepted += 1
        self.clients_connected += 1
        self.clients_maximum = max(self.clients_maximum, self.clients_connected)

    def drop(self, reason: Reason, count: int = 1) -> None:
        """Count messages that a subscriber did not get."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def turn_away(self, reason: Reason) -> None:
        """Count a CONNECT for which the node has no capacity."""
        counts = self.connects_without_place
        counts[reason] = counts.get(reason, 0) + 1

    @property
    def publish_dropped(self) -> int:
        return sum(self.dropped.values())
