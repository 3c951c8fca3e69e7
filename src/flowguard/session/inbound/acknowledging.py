"""Acknowledgements of the client for messages of QoS 1 and 2.

Each ends or advances one exchange [MQTT-4.3.2-3] [MQTT-4.3.3-4], and frees a slot for the next
message. A QoS 2 exchange has its delivery until PUBREC, and None from then until PUBCOMP. An answer
that does not fit the exchange is a protocol error [MQTT-4.13.1-1] [v3 MQTT-4.8.0-1]. An answer to
an unused identifier is only counted, as its session may have ended meanwhile.
"""

from collections.abc import Callable
from typing import Final

from flowguard.codec.bodies import PUBACK_BYTES
from flowguard.codec.encoder import pubrel_frame
from flowguard.codec.packets import Pubrel
from flowguard.errors import ProtocolViolation
from flowguard.records import Delivery, Release, StoreOp
from flowguard.session.outbound.messages import Outbound
from flowguard.session.outbound.receiver import end_exchange
from flowguard.session.session import Session
from flowguard.types import ReasonCode

_ABSENT: Final = object()


def on_puback(outbound: Outbound, packet_id: int, now_s: float) -> None:
    """End the exchange of a QoS 1 message [MQTT-4.3.2-3]."""
    session = outbound.session
    assert session is not None
    delivery = session.inflight.messages.get(packet_id)
    if delivery is None and packet_id not in session.inflight.messages:
        outbound.node.counters.unknown_acknowledgements += 1
        return
    if delivery is None or delivery.qos != 1:
        raise ProtocolViolation("PUBACK for a QoS 2 message")
    end_exchange(session, packet_id, delivery, outbound.node)
    if outbound.has_more:
        outbound.send_waiting(now_s)


def on_pubacks(outbound: Outbound, pubacks: bytes, now_s: float) -> None:
    """`on_puback` for many PUBACKs with success, of PUBACK_BYTES each."""
    session = outbound.session
    assert session is not None
    node, done_bytes = outbound.node, 0
    if not outbound.has_more and session.membership is None:
        settled: list[StoreOp] = []
        inflight, client_id = session.inflight, session.client_id
        done_bytes = inflight.end_plain(pubacks, node.inflight, client_id, settled)
        if settled:
            node.journal.note_all(settled)
    for end in range(done_bytes + PUBACK_BYTES, len(pubacks) + 1, PUBACK_BYTES):
        on_puback(outbound, pubacks[end - 2] << 8 | pubacks[end - 1], now_s)


def on_pubrec(outbound: Outbound, packet_id: int, reason_code: int, now_s: float) -> None:
    """Send PUBREL after a PUBREC below 0x80, once that is durable [MQTT-4.3.3-4]."""
    session = outbound.session
    assert session is not None
    delivery = session.inflight.messages.get(packet_id, _ABSENT)
    if delivery is _ABSENT:
        outbound.node.counters.unknown_acknowledgements += 1
        if reason_code < ReasonCode.UNSPECIFIED_ERROR:
            code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            outbound.write_packet(Pubrel(packet_id, code))
        return
    if delivery is not None:
        assert isinstance(delivery, Delivery)
        if delivery.qos != 2:
            raise ProtocolViolation("PUBREC for a QoS 1 message")
        if reason_code >= ReasonCode.UNSPECIFIED_ERROR:
            end_exchange(session, packet_id, delivery, outbound.node)
            outbound.send_waiting(now_s)
            return
        # PUBRELs are repeated in the order of the PUBRECs [v3 MQTT-4.6.0-4].
        del session.inflight.messages[packet_id]
        session.inflight.messages[packet_id] = None
        session.inflight.free_content(packet_id, delivery, outbound.node.inflight)
    # A repeated PUBREC also waits for the commit of the first one.
    positions = session.inflight.positions
    if positions is not None:
        assert delivery is None or isinstance(delivery, Delivery)
        assert isinstance(session, Session)
        pos = positions[packet_id]
        release = Release(session.client_id, pos, packet_id, delivery)
        outbound.node.journal.append_for_reader([release], _released(session, packet_id), now_s)
    else:
        outbound.outbox.write(pubrel_frame(packet_id))


def on_pubcomp(outbound: Outbound, packet_id: int, now_s: float) -> None:
    """End the exchange of a QoS 2 message [MQTT-4.3.3-7]."""
    session = outbound.session
    assert session is not None
    delivery = session.inflight.messages.get(packet_id, _ABSENT)
    if delivery is _ABSENT:
        outbound.node.counters.unknown_acknowledgements += 1
        return
    if delivery is not None:
        assert isinstance(delivery, Delivery)
        wrong = "for a QoS 1 message" if delivery.qos == 1 else "before PUBREC"
        raise ProtocolViolation(f"PUBCOMP {wrong}")
    end_exchange(session, packet_id, None, outbound.node)
    outbound.send_waiting(now_s)


def _released(session: Session, packet_id: int) -> Callable[[float], None]:
    """Return the continuation of a durable PUBREC: the present connection, if any, sends PUBREL."""

    def done(_: float) -> None:
        if session.outbound is not None:
            session.outbound.outbox.write(pubrel_frame(packet_id))

    return done
