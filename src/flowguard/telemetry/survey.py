"""Survey: a random sample of the connected clients, looked at one after the other.

A count per message would cost every message. A look at one connection per sample costs the same at
any load, and shows which kinds of clients there are (Vitter's algorithm R).
"""

from random import Random
from typing import Final, final

from flowguard.session.connection import ServerConnection
from flowguard.telemetry.schema import ConnectionRow

SAMPLE_MAX: Final = 1_000
"""Number of connections in the sample."""
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
        self._connected_count = 0
        self._next = 0
        self._random = Random()

    def connected(self, connection: ServerConnection) -> None:
        """Take a client that has connected into the sample, or not."""
        self._connected_count += 1
        if len(self._sample) < SAMPLE_MAX:
            self._sample.append(connection)
            return
        index = self._random.randrange(self._connected_count)
        if index < SAMPLE_MAX:
            self._sample[index] = connection

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
