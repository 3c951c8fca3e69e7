"""Acknowledgements of the client for what was sent to it at QoS 1 and 2: each ends or advances one
exchange [MQTT-4.3.2-3] [MQTT-4.3.3-4], and makes room for the next message.

A QoS 2 exchange holds its delivery until PUBREC, and None from then until PUBCOMP. An answer that
does not fit the exchange is a protocol error [MQTT-4.13.1-1] [v3 MQTT-4.8.0-1]. One to an
identifier that is not in use is counted and no more: its session may have ended meanwhile.
"""

from typing import TYPE_CHECKING, Final

from flowguard.codec.packets import Pubrel
from flowguard.errors import ProtocolViolation
from flowguard.records import Delivery, Release, Settle
from flowguard.session.inflight import INFLIGHT_BYTES
from flowguard.types import ReasonCode

if TYPE_CHECKING:
    from flowguard.session.outbound import Outbound
    from flowguard.session.session import Session

_ABSENT: Final = object()


def on_puback(outbound: "Outbound", packet_id: int, now_s: float) -> None:
    """[MQTT-4.3.2-3] the message is the client's."""
    session = outbound.session
    assert session is not None
    delivery = session.inflight.get(packet_id)
    if delivery is None and packet_id not in session.inflight:
        outbound.host.counters.unknown_acknowledgements += 1
        return
    if delivery is None or delivery.qos != 1:
        raise ProtocolViolation("PUBACK for a QoS 2 message")
    settle(outbound, session, packet_id, delivery)
    if outbound.has_more:
        outbound.send_waiting(now_s)


def on_pubrec(outbound: "Outbound", packet_id: int, reason_code: int, now_s: float) -> None:
    """[MQTT-4.3.3-4] PUBREL follows a PUBREC below 0x80, once the store knows it."""
    session = outbound.session
    assert session is not None
    delivery = session.inflight.get(packet_id, _ABSENT)
    if delivery is _ABSENT:
        outbound.host.counters.unknown_acknowledgements += 1
        if reason_code < ReasonCode.UNSPECIFIED_ERROR:
            code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            outbound.write_packet(Pubrel(packet_id, code))
        return
    if delivery is not None:
        assert isinstance(delivery, Delivery)
        if delivery.qos != 2:
            raise ProtocolViolation("PUBREC for a QoS 1 message")
        if reason_code >= ReasonCode.UNSPECIFIED_ERROR:
            settle(outbound, session, packet_id, delivery)
            outbound.send_waiting(now_s)
            return
        # PUBRELs are repeated in the order of the PUBRECs [v3 MQTT-4.6.0-4].
        del session.inflight[packet_id]
        session.inflight[packet_id] = None
        outbound.host.inflight.release(session, packet_id, delivery)
    # A repeated PUBREC, too, waits for what the first one has changed.
    if session.durable:
        assert delivery is None or isinstance(delivery, Delivery)
        pos = session.positions[packet_id]
        release = Release(session.client_id, pos, packet_id, delivery)
        outbound.host.received(session, release, now_s)
    else:
        outbound.release(packet_id)


def on_pubcomp(outbound: "Outbound", packet_id: int, now_s: float) -> None:
    """[MQTT-4.3.3-7] the exchange of a QoS 2 message is over."""
    session = outbound.session
    assert session is not None
    delivery = session.inflight.get(packet_id, _ABSENT)
    if delivery is _ABSENT:
        outbound.host.counters.unknown_acknowledgements += 1
        return
    if delivery is not None:
        assert isinstance(delivery, Delivery)
        wrong = "for a QoS 1 message" if delivery.qos == 1 else "before PUBREC"
        raise ProtocolViolation(f"PUBCOMP {wrong}")
    settle(outbound, session, packet_id, None)
    outbound.send_waiting(now_s)


def settle(
    outbound: "Outbound", session: "Session", packet_id: int, delivery: Delivery | None
) -> None:
    """The exchange is over."""
    del session.inflight[packet_id]
    if delivery is None or session.charges:
        outbound.host.inflight.settle(session, packet_id, delivery)
    else:
        payload_bytes = len(delivery.message.payload)
        budget = outbound.host.inflight.budget
        budget.used_bytes -= INFLIGHT_BYTES + payload_bytes + payload_bytes
        if not session.inflight:
            budget.holders_count -= 1
    membership = session.membership
    loan = membership.loans.pop(packet_id, None) if membership is not None else None
    if loan is not None:
        loan.lender.settle(loan.pos, loan.delivery, outbound.host)
    elif session.durable:
        pos = session.positions.pop(packet_id)
        outbound.host.note(Settle(session.client_id, pos, delivery))
