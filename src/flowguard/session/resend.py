"""Messages sent on a former connection and not acknowledged, again on this one [MQTT-4.4.0-1]."""

from collections import deque
from typing import TYPE_CHECKING, Final, final

from flowguard.flow import Reason
from flowguard.records import Delivery
from flowguard.session.acknowledging import settle

if TYPE_CHECKING:
    from flowguard.session.host import Host
    from flowguard.session.outbound import Outbound
    from flowguard.session.session import Session

DUP: Final = 0x08


@final
class Resend:
    """Packet identifiers, in the order in which they were first sent."""

    __slots__ = ("_packet_ids",)

    def __init__(self, session: "Session") -> None:
        inflight = session.inflight
        self._packet_ids = deque(
            each for each, delivery in inflight.items() if delivery is not None
        )

    @property
    def is_done(self) -> bool:
        return not self._packet_ids

    def pump(self, session: "Session", outbound: "Outbound", host: "Host", now_s: float) -> None:
        """Send what may be sent."""
        packet_ids = self._packet_ids
        while packet_ids and outbound.takes_more:
            if len(session.inflight) - len(packet_ids) >= outbound.inflight_max:
                return
            packet_id = packet_ids.popleft()
            delivery = session.inflight.get(packet_id)
            if delivery is not None:
                _send_again(session, outbound, host, packet_id, delivery, now_s)


def _send_again(
    session: "Session",
    outbound: "Outbound",
    host: "Host",
    packet_id: int,
    delivery: Delivery,
    now_s: float,
) -> None:
    frame = outbound.encode(delivery, now_s)
    if frame is None:
        settle(outbound, session, packet_id, delivery)
        host.counters.drop(Reason.PACKET_TOO_LARGE)
        return
    head, tail = frame
    # [MQTT-3.3.1-1] DUP is set when a PUBLISH is sent again.
    first = bytes((head[0] | DUP,))
    outbound.write_publish(packet_id, (first + head[1:], tail), delivery)
