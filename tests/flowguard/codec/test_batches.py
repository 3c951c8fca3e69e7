"""Batches make progress on any input: windows, splits and malformed packets of any kind.

The reference decodes one packet after the other, from one chunk. Batches must give the same packets
and the same end. A batch below its limit means that no good packet is left: its caller would
otherwise wait for bytes that need not come, or ask for ever.
"""

from collections.abc import Iterator

from hypothesis import example, given
from hypothesis import strategies as st

from flowguard.codec import Packet, PacketDecoder, Puback, encode
from flowguard.codec.decoder import COUNTED
from flowguard.errors import PeerError
from flowguard.types import Publish, ReasonCode
from tests.flowguard.codec import strategies
from tests.flowguard.codec.decoders import one_by_one
from tests.flowguard.codec.wire import frame

MAX = 400
End = tuple[ReasonCode, str] | None
"""The error that ends a stream, or None if it ends in the middle of a packet, or after one."""

plain = st.sampled_from(
    (Publish("a", b"x"), Publish("a", b"y", 1, packet_id=7), Publish("a", b"", 2, packet_id=8))
)


@st.composite
def bad_packets(draw: st.DrawFn, version: int) -> bytes:
    """Bytes that are hardly ever a packet: cut short inside, with a byte changed, or any."""
    data = encode(draw(plain | strategies.packets(version)), version)
    match draw(st.sampled_from(("cut", "changed", "any"))):
        case "cut":
            body = data[2:]
            return frame(data[0], body[: draw(st.integers(0, len(body)))])
        case "changed":
            at = draw(st.integers(0, len(data) - 1))
            return data[:at] + bytes((draw(st.integers(0, 255)),)) + data[at + 1 :]
    return draw(st.binary(max_size=8))


@st.composite
def streams(draw: st.DrawFn, version: int) -> bytes:
    """Good packets, most of them plain, then mostly a bad one, then whatever follows."""
    some = plain | st.just(Puback(3)) | strategies.packets(version)
    good = [encode(packet, version) for packet in draw(st.lists(some, max_size=40))]
    return b"".join(good) + draw(st.just(b"") | bad_packets(version)) + draw(st.binary(max_size=8))


def pieces_of(stream: bytes, cuts: list[int]) -> Iterator[bytes]:
    at = sorted(cut % (len(stream) + 1) for cut in cuts)
    for a, b in zip([0, *at], [*at, len(stream)], strict=True):
        yield stream[a:b]


def in_batches(
    stream: bytes, cuts: list[int], rooms: list[int], version: int
) -> tuple[list[Packet], End]:
    """As a conversation would take them, but never slower than a packet in each step."""
    decoder = PacketDecoder(MAX, version)
    packets: list[Packet] = []
    steps = 0
    for piece in pieces_of(stream, cuts):
        decoder.feed(piece)
        left = 0
        while not left:
            room = rooms[steps % len(rooms)]
            steps += 1
            try:
                batch = decoder.next_batch(room)
            except PeerError as error:
                return packets, (error.reason_code, error.why)
            packets += batch
            left = room - sum(type(packet) in COUNTED for packet in batch)
            assert left >= 0
            assert batch or left, "no progress"
        if decoder.has_failed:
            continue
        before = decoder.buffered_bytes
        assert decoder.next() is None, "room was left, and a packet"
        assert decoder.buffered_bytes == before
    if decoder.has_failed:
        try:
            decoder.fail()
        except PeerError as error:
            return packets, (error.reason_code, error.why)
    return packets, None


@given(
    st.sampled_from((3, 4, 5)).flatmap(
        lambda version: st.tuples(st.just(version), streams(version))
    ),
    st.lists(st.integers(0, 1 << 16), max_size=8),
    st.lists(st.integers(1, 100), min_size=1, max_size=4),
)
@example((5, encode(Publish("a", b"x"), 5) * 15 + b"\x30\x01\x00"), [], [16])
@example((5, encode(Publish("a", b"x"), 5) * 14 + b"\x30\x01\x00"), [], [16, 1])
def test_any_batches_come_to_the_same_packets_and_the_same_end(
    sent: tuple[int, bytes], cuts: list[int], rooms: list[int]
) -> None:
    version, stream = sent
    packets, error = one_by_one(stream, version, MAX)
    end = None if error is None else (error.reason_code, error.why)
    assert in_batches(stream, cuts, rooms, version) == (packets, end)
