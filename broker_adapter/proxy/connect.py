"""The CONNECT of a client: its end, the values that the proxy needs, and its rejection."""

from typing import final

from flowguard.codec import tables
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect
from flowguard.codec.primitives import remaining_length
from flowguard.errors import MalformedPacket, PeerError
from flowguard.flow import Arrival
from flowguard.types import MQTT_5, MQTT_311, NO_PROPERTIES, Properties, ReasonCode


def connect_size_bytes(data: bytearray, size_bytes_max: int) -> int:
    """Return the size of the CONNECT at the start of a client's bytes, or 0 if it is incomplete.

    Raises `MalformedPacket` for other bytes, or for a CONNECT larger than `size_bytes_max`.
    """
    if data[0] >> 4 != tables.CONNECT:
        raise MalformedPacket("the first packet is no CONNECT")
    try:
        length, body = remaining_length(data, 0, MQTT_311)
    except IndexError:
        return 0
    size_bytes = body + length
    if size_bytes > size_bytes_max:
        raise MalformedPacket("a CONNECT that is too large")
    return size_bytes if len(data) >= size_bytes else 0


@final
class ReadConnect:
    """The values of a whole CONNECT. A malformed one is left for the upstream to reject."""

    __slots__ = ("arrival", "tenant", "version")

    def __init__(self, data: bytes, waited_s: float) -> None:
        """`waited_s`: time that the client has waited to be accepted, seconds."""
        size_bytes = len(data)
        decoder = PacketDecoder(size_bytes)
        decoder.feed(data)
        try:
            packet = decoder.next()
        except PeerError:
            self.version = decoder.version or MQTT_311
            self.tenant = ""
            self.arrival = Arrival("", size_bytes)
            return
        assert isinstance(packet, Connect)
        self.version = packet.version
        self.tenant = packet.username or ""
        self.arrival = Arrival(packet.client_id, size_bytes, waited_s)


def refusal(version: int, reason: ReasonCode, retry_after_s: float) -> bytes:
    """Return the CONNACK of a rejection, for MQTT 5 with a retry-after hint."""
    properties = NO_PROPERTIES
    after_ms = round(1_000 * retry_after_s)
    if version == MQTT_5 and after_ms:
        properties = Properties(user_properties=(("retry-after-ms", str(after_ms)),))
    return encode(Connack(False, reason, properties), version)
