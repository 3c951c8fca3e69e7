"""Decoders that hold some bytes, or packets, for the tests of decoding."""

from flowguard.codec import Packet, PacketDecoder, encode
from flowguard.errors import PeerError
from flowguard.types import Publish
from tests.flowguard.codec.wire import MAX

KIB = 1024


def decoder_of(data: bytes, version: int = 4, max_packet_size: int = MAX) -> PacketDecoder:
    decoder = PacketDecoder(max_packet_size, version)
    decoder.feed(data)
    return decoder


def all_of(decoder: PacketDecoder) -> list[Packet]:
    return list(iter(decoder.next, None))


def one_by_one(
    stream: bytes, version: int, max_packet_size: int = MAX
) -> tuple[list[Packet], PeerError | None]:
    """Return the packets of a stream, decoded one by one from one chunk, and the error that ends
    it."""
    decoder = decoder_of(stream, version, max_packet_size)
    packets: list[Packet] = []
    try:
        while (packet := decoder.next()) is not None:
            packets.append(packet)
    except PeerError as error:
        return packets, error
    return packets, None


def know(message: Publish) -> None:
    """Have its topic met: of others nothing is taken at sight."""
    decoder_of(encode(message, 5), 5).next()


PUBLISH = Publish("a/b", b"x", 1, packet_id=5)
QOS_0 = Publish("a/b", b"y")


def lane_of(packets: list[Packet], version: int = 5) -> PacketDecoder:
    return decoder_of(b"".join(encode(packet, version) for packet in packets), version)
