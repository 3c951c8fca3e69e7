"""Resends of unacknowledged messages of a former connection [MQTT-4.4.0-1]."""

from collections import deque
from typing import Final, final

from flowguard.records import Delivery
from flowguard.session.outbound.frames import Frame

DUP: Final = 0x08


@final
class Resend:
    """Packet identifiers, in the order in which they were first sent."""

    __slots__ = ("_packet_ids",)

    def __init__(self, inflight: dict[int, Delivery | None]) -> None:
        self._packet_ids = deque(
            each for each, delivery in inflight.items() if delivery is not None
        )

    def __len__(self) -> int:
        """Return the number of messages that remain to be sent."""
        return len(self._packet_ids)

    @property
    def is_done(self) -> bool:
        return not self._packet_ids

    def next(self) -> int | None:
        """Return the next identifier, still in flight or not, or None after the last one."""
        return self._packet_ids.popleft() if self._packet_ids else None


def with_dup(frame: Frame) -> Frame:
    """Return a frame with DUP set, as it is sent again [MQTT-3.3.1-1]."""
    head, tail = frame
    return bytes((head[0] | DUP,)) + head[1:], tail
