"""A decoder under any bytes: all its ways to read a stream are held against each other.

Bytes in; an AssertionError, or an exception that is not the codec's own, where something is wrong.
No time is measured: what would hang is caught by counting packets, of which each takes two bytes.
"""

from typing import Final, Literal

from flowguard.codec.bodies import PUBACK_BYTES, count_pubacks
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.packets import Packet, Puback
from flowguard.errors import PeerError
from tests.fuzz.streams import HEAD_BYTES, VERSIONS, pieces

SIZES_MAX: Final = (64, 1024, 1024 * 1024)
PACKET_BYTES_MIN: Final = 2
Outcome = tuple[list[Packet], PeerError | None]


def once(data: bytes) -> None:
    """All ways to read a stream agree on its packets, and on what is wrong with it."""
    if len(data) <= HEAD_BYTES:
        return
    options, seed, stream = data[0], data[1], data[HEAD_BYTES:]
    plain = one_by_one(decoder(options), stream)
    assert_same(plain, in_batches(decoder(options), stream, seed), "batches")
    if role(options) == "server":
        at_sight(decoder(options), stream, plain)
        control_first(decoder(options), stream, plain)


def decoder(options: int) -> PacketDecoder:
    """A new one; which is up to `options`, 0 to 255."""
    size_max = SIZES_MAX[(options >> 2) % 3]
    version = VERSIONS[options & 3]
    return PacketDecoder(size_max, version, role(options), strict=options & 32 != 0)


def role(options: int) -> Literal["server", "client"]:
    return "client" if options & 3 and options & 16 else "server"


def one_by_one(decoder: PacketDecoder, stream: bytes) -> Outcome:
    """The plain way, which the others are compared with."""
    packets: list[Packet] = []
    decoder.feed(stream)
    try:
        while True:
            before = decoder.buffered_bytes
            packet = decoder.next()
            if packet is None:
                return packets, None
            assert decoder.buffered_bytes < before, "a packet that took no bytes"
            packets.append(packet)
    except PeerError as error:
        return packets, error


def in_batches(decoder: PacketDecoder, stream: bytes, seed: int) -> Outcome:
    """As they come from a socket, for windows of 1 to 16 packets."""
    packets: list[Packet] = []
    room = 1 + (seed & 15)
    fed = 0
    try:
        for piece in pieces(stream, seed):
            decoder.feed(piece)
            fed += len(piece)
            while batch := decoder.next_batch(room):
                packets += batch
                assert PACKET_BYTES_MIN * len(packets) <= fed, "packets that took no bytes"
            assert decoder.buffered_bytes <= fed - PACKET_BYTES_MIN * len(packets)
    except PeerError as error:
        return packets, error
    return packets, None


def at_sight(decoder: PacketDecoder, stream: bytes, plain: Outcome) -> None:
    """A chunk that is one small PUBLISH, or PUBACKs, without buffering it."""
    packet = decoder.at_sight(stream)
    assert decoder.is_empty
    if packet is not None:
        assert_same(plain, ([packet], None), "at sight")
    if decoder.version and count_pubacks(stream):
        starts = range(0, len(stream), PUBACK_BYTES)
        pubacks: list[Packet] = [Puback(stream[at + 2] << 8 | stream[at + 3]) for at in starts]
        assert_same(plain, (pubacks, None), "at sight")


def control_first(decoder: PacketDecoder, stream: bytes, plain: Outcome) -> None:
    """Acknowledgements and PINGREQ are taken ahead, the rest follows, each in its order."""
    taken: list[Packet] = []
    packets_max = len(stream) // PACKET_BYTES_MIN
    decoder.feed(stream)
    try:
        taken += [Puback(packet_id) for packet_id in decoder.take_pubacks()]
        while (packet := decoder.next_control()) is not None:
            taken.append(packet)
            assert len(taken) <= packets_max, "packets that took no bytes"
        ahead = len(taken)
        while (packet := decoder.next()) is not None:
            taken.append(packet)
            assert len(taken) <= packets_max, "packets that took no bytes"
    except PeerError:
        return
    packets, error = plain
    assert error is None
    assert len(taken) == len(packets)
    kinds = {packet.__class__ for packet in taken[:ahead]}
    for kind in kinds:
        ours = [packet for packet in taken if packet.__class__ is kind]
        assert ours == [packet for packet in packets if packet.__class__ is kind]


def assert_same(expected: Outcome, found: Outcome, how: str) -> None:
    assert found[0] == expected[0], f"{how}: other packets"
    codes = [error and (type(error), error.reason_code) for _, error in (expected, found)]
    assert codes[0] == codes[1], f"{how}: {codes[1]} instead of {codes[0]}"
