"""Exchanges of a client's QoS 1 and 2 PUBLISH: identifiers and answers.

A QoS 1 exchange ends with PUBACK. A QoS 2 identifier is known from its PUBLISH until PUBREL. The
store knows it as long, if the session is durable.
"""

from flowguard.codec.burst import Burst
from flowguard.codec.encoder import puback_frame, pubcomp_frame, pubrec_frame
from flowguard.codec.packets import Puback, Pubcomp, Pubrec
from flowguard.errors import ProtocolViolation
from flowguard.records import DropInbound, StoreOp
from flowguard.session.outbound.messages import Outbound
from flowguard.session.session import Session
from flowguard.session.state_bytes import INBOUND_ID_BYTES
from flowguard.types import MQTT_5, Publish, ReasonCode


class InboundExchanges:
    """The exchanges of one connection; `Inbound` adds the packets and their window."""

    __slots__ = ("_outbound", "session", "unacknowledged")

    def __init__(self, outbound: Outbound, session: Session) -> None:
        self._outbound = outbound
        self.session = session
        self.unacknowledged = 0
        """QoS 1 PUBLISH without PUBACK and QoS 2 PUBLISH without PUBCOMP on this connection."""

    def _count(self, packet: Publish) -> None:
        """Count a PUBLISH that is acknowledged later."""
        self.unacknowledged += 1
        if packet.qos == 2:
            self._remember(packet.packet_id, durable=False)

    def _is_repeated(self, packet_id: int) -> bool:
        """Acknowledge a known QoS 2 identifier again [MQTT-4.3.3-10]; True if it is known."""
        ids = self.session.inbound_ids
        durable = ids.get(packet_id) if ids else None
        if durable:
            self._outbound.outbox.write(pubrec_frame(packet_id))
        return durable is not None

    def _remember(self, packet_id: int, *, durable: bool) -> None:
        """Note a QoS 2 identifier, which is in use from its PUBLISH to PUBREL."""
        ids = self.session.inbound_ids
        if ids is None:
            ids = self.session.inbound_ids = {}
        ids[packet_id] = durable

    def _forget(self, ids: dict[int, bool], packet_id: int) -> None:
        del ids[packet_id]
        self.session.account.charge(-INBOUND_ID_BYTES, self._outbound.node)

    def published(self, packet: Publish, reason_code: int) -> None:
        """Acknowledge a QoS 1 or 2 PUBLISH whose work is done [MQTT-4.3.2-4]."""
        self.unacknowledged -= 1
        self._acknowledge(packet, reason_code)

    def acknowledge_all(self, burst: Burst) -> None:
        """Acknowledge a burst of QoS 1 [MQTT-4.3.2-4] in its order [MQTT-4.6.0-2]."""
        if not self._outbound.ended:
            self._outbound.outbox.write_answers(burst.pubacks(), burst.count)

    def _acknowledge(self, packet: Publish, reason_code: int) -> None:
        """Send PUBACK or PUBREC; from PUBREC on, a QoS 2 identifier is known to be durable."""
        packet_id = packet.packet_id
        outbound: Outbound | None = self._outbound
        if packet.qos == 2:
            if reason_code < ReasonCode.UNSPECIFIED_ERROR:
                self._remember(packet_id, durable=True)
                self.unacknowledged += 1
            elif self.session.inbound_ids and packet_id in self.session.inbound_ids:
                self._forget(self.session.inbound_ids, packet_id)
            # A client that reconnected meanwhile waits for this PUBREC on its new connection.
            outbound = self.session.outbound
        if outbound is None or outbound.ended:
            return
        if outbound.version != MQTT_5 or reason_code == ReasonCode.SUCCESS:
            # [v3 MQTT-3.3.5-2] 3.1.1 has a positive acknowledgement or none.
            outbound.outbox.write(
                puback_frame(packet_id) if packet.qos == 1 else pubrec_frame(packet_id)
            )
        elif packet.qos == 1:
            outbound.write_packet(Puback(packet_id, reason_code))
        else:
            outbound.write_packet(Pubrec(packet_id, reason_code))

    def _pubrel(self, packet_id: int, now_s: float) -> None:
        ids = self.session.inbound_ids
        durable = ids.get(packet_id) if ids else None
        if durable is False:
            raise ProtocolViolation("PUBREL before PUBREC")
        known = durable is not None
        if ids is not None and known:
            self._forget(ids, packet_id)
            if self.unacknowledged:
                self.unacknowledged -= 1
        if self.session.durable and (known or not self._outbound.node.journal.is_idle):
            self._release_durably(packet_id, now_s, known=known)
        else:
            self.released(packet_id, known=known)

    def _release_durably(self, packet_id: int, now_s: float, *, known: bool) -> None:
        """Answer PUBREL after a commit; a repeated one waits for that of the first one."""
        ops: list[StoreOp] = [DropInbound(self.session.client_id, packet_id)] if known else []

        def done(_: float) -> None:
            self.released(packet_id, known=known)

        self._outbound.node.journal.append(ops, done, now_s)

    def released(self, packet_id: int, *, known: bool) -> None:
        """Send PUBCOMP, as the end of an inbound QoS 2 identifier is durable [MQTT-4.3.3-11]."""
        if self._outbound.ended:
            return
        if known or self._outbound.version != MQTT_5:
            self._outbound.outbox.write(pubcomp_frame(packet_id))  # [v3 MQTT-4.3.3-2]
        else:
            code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            self._outbound.write_packet(Pubcomp(packet_id, code))
