"""Survey: a random sample of the connected clients, looked at one after the other.

A count per message would cost every message. A look at one connection per sample costs the same at
any load, and shows which kinds of clients there are. A client is in the sample if the number of its
id is small enough, so clients that stay are in it as often as those that come and go.
"""

from typing import Final, final

from flowguard.session.connection import ServerConnection
from flowguard.telemetry.schema import ConnectionRow

SAMPLE_MAX: Final = 1_000
"""Maximum number of connections in the sample."""
LOOKS_MAX: Final = 10
"""Number of ended connections that one look removes from the sample."""
KEEP_ALIVE_GRACE: Final = 1.5
"""[MQTT-3.1.2-22]"""


def number_of(client_id: str) -> int:
    """Return a number for a client id: the same within this process, and not reversible."""
    return hash(client_id) & 0x7FFF_FFFF_FFFF_FFFF


@final
class Survey:
    def __init__(self, node: int) -> None:
        self._node = node
        self._sample: list[ServerConnection] = []
        self._below = 1 << 63
        """Numbers of the clients in the sample are below."""
        self._next = 0

    def connected(self, connection: ServerConnection) -> None:
        """Take a client that has connected into the sample, or not."""
        if number_of(connection.client_id or "") >= self._below:
            return
        self._sample.append(connection)
        if len(self._sample) > SAMPLE_MAX:
            self._sample = [each for each in self._sample if not each.ended]
            while len(self._sample) > SAMPLE_MAX // 2:
                self._below //= 2
                self._sample = [
                    each for each in self._sample if number_of(each.client_id or "") < self._below
                ]

    def look(self, t_s: float, now_s: float) -> ConnectionRow | None:
        """Return a row of the next connected client, or None if there is none."""
        sample = self._sample
        for _ in range(LOOKS_MAX):
            if not sample:
                return None
            self._next = (self._next + 1) % len(sample)
            connection = sample[self._next]
            session, inbound = connection.session, connection.inbound
            if session is None or inbound is None or connection.ended:
                sample[self._next] = sample[-1]
                sample.pop()
                continue
            return ConnectionRow(
                client=number_of(session.client_id),
                node=self._node,
                t_s=t_s,
                age_s=max(0.0, now_s - connection.connected_s),
                keep_alive_s=connection.keep_alive_s / KEEP_ALIVE_GRACE,
                is_durable=session.durable,
                subscriptions_count=len(session.subscriptions),
                received_bytes=connection.received_bytes,
                in_process_count=inbound.window.in_process,
                is_paused=connection.waits,
            )
        return None
