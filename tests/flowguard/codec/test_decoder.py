"""The packets that the decoder accepts, their maximum size, and several of them at once."""

import sys
import tracemalloc
from time import thread_time
from typing import Literal

import pytest

from flowguard.codec import (
    Connect,
    Packet,
    PacketDecoder,
    Pingreq,
    Pingresp,
    Puback,
    Subscribe,
    encode,
)
from flowguard.errors import MalformedPacket, PeerError, ProtocolViolation
from flowguard.types import Properties, Publish, ReasonCode, SubscriptionOptions
from tests.flowguard.codec.decoders import KIB, PUBLISH, QOS_0, all_of, decoder_of, lane_of
from tests.flowguard.codec.wire import (
    MALFORMED,
    MAX,
    VIOLATION,
    connect,
    decode,
    frame,
    props,
    text,
    u16,
)

Role = Literal["server", "client"]


# --- fixed header ---------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"\x02", b"\x02\0\1"], ids=["one byte", "header", "packet"])
@pytest.mark.parametrize(
    ("first", "version"),
    [
        pytest.param(0x41, 5, marks=pytest.mark.spec("MQTT-2.1.3-1")),
        pytest.param(0x48, 4, marks=pytest.mark.spec("v3:MQTT-2.2.2-1", "v3:MQTT-2.2.2-2")),
        pytest.param(0x58, 4, marks=pytest.mark.spec("v3:MQTT-2.2.2-1", "v3:MQTT-2.2.2-2")),
        pytest.param(0x51, 5, marks=pytest.mark.spec("MQTT-2.1.3-1")),
        pytest.param(0x60, 5, marks=pytest.mark.spec("MQTT-2.1.3-1", "MQTT-3.6.1-1")),
        pytest.param(0x63, 5, marks=pytest.mark.spec("MQTT-2.1.3-1", "MQTT-3.6.1-1")),
        pytest.param(0x6A, 5, marks=pytest.mark.spec("MQTT-2.1.3-1", "MQTT-3.6.1-1")),
        pytest.param(0x60, 4, marks=pytest.mark.spec("v3:MQTT-3.6.1-1", "v3:MQTT-2.2.2-1")),
        pytest.param(0x6A, 4, marks=pytest.mark.spec("v3:MQTT-3.6.1-1", "v3:MQTT-2.2.2-1")),
        pytest.param(0x60, 3),
        pytest.param(0x48, 3),
        pytest.param(0x72, 5, marks=pytest.mark.spec("MQTT-2.1.3-1")),
        pytest.param(0x80, 5, marks=pytest.mark.spec("MQTT-2.1.3-1", "MQTT-3.8.1-1")),
        pytest.param(0x8A, 5, marks=pytest.mark.spec("MQTT-2.1.3-1", "MQTT-3.8.1-1")),
        pytest.param(0x80, 4, marks=pytest.mark.spec("v3:MQTT-3.8.1-1", "v3:MQTT-2.2.2-1")),
        pytest.param(0xA0, 5, marks=pytest.mark.spec("MQTT-2.1.3-1", "MQTT-3.10.1-1")),
        pytest.param(0xA3, 4, marks=pytest.mark.spec("v3:MQTT-3.10.1-1", "v3:MQTT-2.2.2-1")),
        pytest.param(0xC1, 5, marks=pytest.mark.spec("MQTT-2.1.3-1")),
        pytest.param(0xC2, 4, marks=pytest.mark.spec("v3:MQTT-2.2.2-1")),
        pytest.param(0xE1, 5, marks=pytest.mark.spec("MQTT-2.1.3-1", "MQTT-3.14.1-1")),
        pytest.param(0xE8, 4, marks=pytest.mark.spec("v3:MQTT-3.14.1-1")),
        pytest.param(0xF1, 5, marks=pytest.mark.spec("MQTT-2.1.3-1", "MQTT-3.15.1-1")),
    ],
)
def test_reserved_flags_are_malformed(first: int, version: int, body: bytes) -> None:
    """Already at the first byte: the rest need not come."""
    with pytest.raises(MalformedPacket) as caught:
        decode(bytes((first,)) + body, version)
    assert caught.value.reason_code == ReasonCode.MALFORMED_PACKET


@pytest.mark.spec("MQTT-2.1.3-1", "v3:MQTT-2.2.2-1")
@pytest.mark.parametrize("flags", range(1, 16))
def test_reserved_flags_of_connect_are_malformed(flags: int) -> None:
    with pytest.raises(MalformedPacket):
        decode(frame(0x10 | flags, connect()[2:]), 0)


@pytest.mark.parametrize(
    ("first", "version", "role", "error", "reason"),
    [
        (0x00, 5, "server", *MALFORMED),
        (0x00, 4, "client", *MALFORMED),
        (0xF0, 4, "server", *MALFORMED),
        (0xF0, 3, "client", *MALFORMED),
        (0x20, 5, "server", *VIOLATION),
        (0x90, 4, "server", *VIOLATION),
        (0xB0, 5, "server", *VIOLATION),
        (0xD0, 4, "server", *VIOLATION),
        (0x82, 5, "client", *VIOLATION),
        (0xA2, 4, "client", *VIOLATION),
        (0xC0, 5, "client", *VIOLATION),
        (0x10, 5, "client", *VIOLATION),
    ],
)
@pytest.mark.parametrize("rest", [b"", b"\x00", b"\x04\0\1\0\0"], ids=["byte", "empty", "body"])
def test_packets_that_cannot_be(
    first: int, version: int, role: Role, error: type[PeerError], reason: ReasonCode, rest: bytes
) -> None:
    with pytest.raises(error) as caught:
        decode(bytes((first,)) + rest, version, role)
    assert type(caught.value) is error
    assert caught.value.reason_code == reason


@pytest.mark.spec("MQTT-3.3.1-4", "v3:MQTT-3.3.1-4")
def test_a_large_publish_with_qos_3_is_not_waited_for() -> None:
    with pytest.raises(MalformedPacket):
        decode(b"\x36\xff\xff\xff\x7f\0\1a", 5)


@pytest.mark.parametrize("size", [0, 124, 125, 16_379, 16_380, 16_381, 2_097_151, 2_097_152])
def test_lengths_of_one_to_four_bytes(size: int) -> None:
    message = Publish("a", bytes(size))
    data = frame(0x30, text("a"), bytes(size))
    assert decode(data, 4) == message
    assert all_of(decoder_of(data * 2)) == [message, message]


@pytest.mark.parametrize("size", [0, 127, 128, 16_384, 2_097_152])
@pytest.mark.parametrize("skipped", [0, 3])
def test_what_a_packet_declares_is_known_with_its_length(size: int, skipped: int) -> None:
    data = frame(0x30, text("a"), bytes(size))
    header_bytes = len(data) - size - 3
    decoder = decoder_of(encode(PUBLISH, 4) * skipped)
    assert len(decoder.next_batch(9)) == skipped
    for at in range(header_bytes):
        assert decoder.declared_bytes == 0
        decoder.feed(data[at : at + 1])
    assert decoder.declared_bytes == len(data)
    decoder.feed(data[header_bytes:-1])
    assert decoder.next() is None
    assert decoder.declared_bytes == len(data)


@pytest.mark.parametrize("wrong", [b"\x80\x80\x80\x80\x01", b"\x80\0"])
def test_a_length_that_cannot_be_declares_nothing(wrong: bytes) -> None:
    assert decoder_of(b"\x30" + wrong, 5).declared_bytes == 0


@pytest.mark.parametrize("version", [0, 3, 4, 5])
def test_a_length_of_five_bytes_is_malformed(version: int) -> None:
    first = b"\x10" if version == 0 else b"\x30"
    with pytest.raises(MalformedPacket) as caught:
        decode(first + b"\x80\x80\x80\x80\x01", version)
    assert caught.value.reason_code == ReasonCode.MALFORMED_PACKET
    with pytest.raises(MalformedPacket):
        decode(first + b"\xff\xff\xff\xff", version)


@pytest.mark.spec("MQTT-1.5.5-1")
@pytest.mark.parametrize("length", [b"\x82\0", b"\x82\x80\0", b"\x82\x80\x80\0"])
def test_a_length_with_a_byte_too_many(length: bytes) -> None:
    """3.1.1 does not forbid it, and some small clients reserve a fixed number of bytes."""
    with pytest.raises(MalformedPacket):
        decode(b"\x40" + length + b"\0\x01", 5)
    assert decode(b"\x40" + length + b"\0\x01", 4) == Puback(1)


# --- the first packet -----------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.0-1", "v3:MQTT-3.1.0-1")
@pytest.mark.parametrize("first", [0x20, 0x30, 0x32, 0x40, 0x62, 0x82, 0xC0, 0xE0, 0xF0])
@pytest.mark.parametrize("rest", [b"", b"\x00", b"\x02\0\1"], ids=["byte", "empty", "body"])
def test_the_first_packet_is_connect(first: int, rest: bytes) -> None:
    decoder = decoder_of(bytes((first,)) + rest, 0)
    with pytest.raises(ProtocolViolation) as caught:
        decoder.next()
    assert caught.value.reason_code == ReasonCode.PROTOCOL_ERROR
    assert decoder.version == 0


@pytest.mark.parametrize(
    "hello", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01", b"SSH-2.0-x"]
)
def test_other_protocols_are_found_out_at_once(hello: bytes) -> None:
    with pytest.raises(PeerError):
        decode(hello, 0)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_connect_decides_the_version(version: int) -> None:
    decoder = decoder_of(connect(version), 0)
    assert decoder.version == 0
    packet = decoder.next()
    assert isinstance(packet, Connect)
    assert decoder.version == packet.version == version


@pytest.mark.spec("MQTT-3.1.0-2", "v3:MQTT-3.1.0-2")
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_second_connect_is_a_violation(version: int) -> None:
    decoder = decoder_of(connect(version) * 2, 0)
    assert isinstance(decoder.next(), Connect)
    with pytest.raises(ProtocolViolation) as caught:
        decoder.next()
    assert caught.value.reason_code == ReasonCode.PROTOCOL_ERROR


def test_a_client_must_know_its_version() -> None:
    with pytest.raises(AssertionError):
        PacketDecoder(MAX, role="client")


# --- how large ------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [10, 124, 125, 1000, 20_000])
def test_the_limit_counts_the_whole_packet(payload: int) -> None:
    data = frame(0x30, text("a"), bytes(payload))
    assert isinstance(decoder_of(data, max_packet_size=len(data)).next(), Publish)
    decoder = decoder_of(data, max_packet_size=len(data) - 1)
    with pytest.raises(MalformedPacket) as caught:
        decoder.next()
    assert caught.value.reason_code == ReasonCode.PACKET_TOO_LARGE


@pytest.mark.parametrize("version", [0, 4, 5])
def test_the_limit_needs_only_the_fixed_header(version: int) -> None:
    first = b"\x10" if version == 0 else b"\x30"
    decoder = decoder_of(first + b"\xff\xff\xff", version, 1000)
    assert decoder.next() is None
    decoder.feed(b"\x7f")
    with pytest.raises(MalformedPacket) as caught:
        decoder.next()
    assert caught.value.reason_code == ReasonCode.PACKET_TOO_LARGE
    assert decoder.buffered_bytes == 5


def test_an_idle_decoder_holds_nothing() -> None:
    """Shared empties whatever came before: its own memory is one small object."""
    decoder = PacketDecoder(MAX, 4)
    publish = frame(0x30, text("a"), bytes(5000))
    for data in (b"", b"\xc0\0", publish * 20, publish[:-1], publish[-1:]):
        decoder.feed(data)
        all_of(decoder)
    decoder.feed(publish + b"\xc0\0" + publish[:9])
    assert decoder.next_control() == Pingreq()
    assert decoder.next_control() is None
    decoder.feed(publish[9:])
    assert len(all_of(decoder)) == 2
    assert decoder.buffered_bytes == 0
    assert not hasattr(decoder, "__dict__")
    assert sys.getsizeof(decoder) <= 120
    assert decoder._data is b""  # noqa: F632 -- the very object
    assert decoder._tail is decoder._deferred is None


def test_the_rest_of_a_chunk_does_not_hold_the_chunk() -> None:
    decoder = PacketDecoder(MAX, 4)
    tracemalloc.start()
    try:
        decoder.feed(frame(0x30, text("a"), bytes(1000)) * 60 + b"\x30\x7f")
        all_of(decoder)
        assert decoder.buffered_bytes == 2
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 7, 4 * KIB, 64 * KIB])
def test_memory_follows_what_came_and_not_what_is_announced(step: int) -> None:
    """A packet collects with an eighth to spare; to join and to cut it takes it twice."""
    size = 50_000 if step < KIB else 3_000_000
    data = frame(0x30, text("a"), bytes(size))
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    decoder = PacketDecoder(MAX, 4)
    tracemalloc.start()
    try:
        for count, piece in enumerate(pieces, start=1):
            decoder.feed(piece)
            assert decoder.buffered_bytes == min(count * step, len(data))
            if count < len(pieces):
                assert decoder.next() is None
                if count % (len(pieces) // 4) == 0:
                    held, peak = tracemalloc.get_traced_memory()
                    assert held < count * step * 1.3 + 20_000
                    assert peak < count * step * 2.6 + 20_000
        packet = decoder.next()
        assert isinstance(packet, Publish)
        assert tracemalloc.get_traced_memory()[1] < size * 3.3 + 100_000
    finally:
        tracemalloc.stop()
    assert len(packet.payload) == size


def seconds_for(size: int, step: int, *, lane: bool) -> float:
    """Processor time to take one packet of this size in pieces, asking for packets after each."""
    data = frame(0x30, text("a"), bytes(size))
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    decoder = PacketDecoder(MAX, 4)
    start = thread_time()
    for piece in pieces:
        decoder.feed(piece)
        packet = decoder.next()
        if lane and packet is None:
            decoder.next_control()
    assert isinstance(packet, Publish)
    return thread_time() - start


@pytest.mark.slow
@pytest.mark.parametrize("lane", [False, True])
def test_a_packet_of_128_mib_in_chunks(lane: bool) -> None:
    """Copied again at each chunk it would take minutes."""
    assert seconds_for(128 * KIB * KIB, 32 * KIB, lane=lane) < 20


@pytest.mark.parametrize("lane", [False, True])
def test_a_packet_byte_by_byte(lane: bool) -> None:
    """Collected bytes are not copied: the same objects hold them all the time."""
    data = frame(0x30, text("a"), bytes(50_000))
    decoder = PacketDecoder(MAX, 4)
    held: set[tuple[int, int, int]] = set()
    for at in range(len(data) - 1):
        decoder.feed(data[at : at + 1])
        assert decoder.next() is None
        if lane:
            assert decoder.next_control() is None
        if at > 10:
            held.add((id(decoder._data), id(decoder._tail), id(decoder._deferred)))
    assert len(held) == 1
    decoder.feed(data[-1:])
    assert decoder.next() == Publish("a", bytes(50_000))


def test_small_pieces_behind_a_large_backlog_are_not_copied_with_it() -> None:
    """A waiting client's backlog is not moved while its pings trickle in."""
    decoder = decoder_of(frame(0x30, text("a"), bytes(8_000_000)))
    start = thread_time()
    for _ in range(3000):
        decoder.feed(b"\xc0\0")
        assert decoder.next_control() == Pingreq()
        assert decoder.next_control() is None
    assert thread_time() - start < 5  # copied each time: 8 MB x 3,000
    assert len(all_of(decoder)) == 1


# --- batches --------------------------------------------------------------------------------------


def test_a_batch_ends_when_its_room_is_filled() -> None:
    subscribe = Subscribe(1, (("a", SubscriptionOptions()),))
    packets: list[Packet] = [PUBLISH, Puback(1), subscribe, Pingreq(), QOS_0, Puback(2), PUBLISH]
    decoder = lane_of(packets)
    assert decoder.next_batch(0) == []
    assert decoder.next_batch(1) == packets[:1]
    assert decoder.next_batch(2) == packets[1:5]
    assert decoder.next_batch(9) == packets[5:]
    assert decoder.next_batch(9) == []


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"\x36\x05\0\1a\0\1", ReasonCode.MALFORMED_PACKET),
        (frame(0x32, text("a/b"), u16(0), props()), ReasonCode.PROTOCOL_ERROR),
        (frame(0x30, text("a/b"), b"\x05\x01"), ReasonCode.MALFORMED_PACKET),
        (frame(0x30, text("#"), props()), ReasonCode.MALFORMED_PACKET),
        (b"\x40\x02\0\0", ReasonCode.PROTOCOL_ERROR),
        (b"\x00", ReasonCode.MALFORMED_PACKET),
        (b"\x30\xff\xff\x7f", ReasonCode.PACKET_TOO_LARGE),
    ],
)
def test_good_packets_come_before_the_bad_one(bad: bytes, reason: ReasonCode) -> None:
    """The bad one stays, and each further call raises the same error."""
    data = encode(PUBLISH, 5) + encode(Puback(1), 5)
    decoder = decoder_of(data + bad + data, 5, 1000)
    assert not decoder.has_failed
    assert decoder.next_batch(9) == [PUBLISH, Puback(1)]
    assert decoder.has_failed
    for take in (lambda: decoder.next_batch(9), decoder.next, lambda: decoder.next_batch(9)):
        with pytest.raises(PeerError) as caught:
            take()
        assert caught.value.reason_code == reason


@pytest.mark.spec("MQTT-3.1.0-1", "v3:MQTT-3.1.0-1")
@pytest.mark.parametrize("packet", [PUBLISH, QOS_0, Puback(1)], ids=["QoS 1", "QoS 0", "PUBACK"])
def test_no_batch_begins_before_connect(packet: Packet) -> None:
    decoder = decoder_of(encode(packet, 4), 0)
    with pytest.raises(ProtocolViolation):
        decoder.next_batch(9)


def test_a_batch_may_begin_with_connect() -> None:
    decoder = decoder_of(connect(4) + encode(QOS_0, 4), 0)
    assert decoder.next_batch(9) == [Connect("c", 4, True, 60), QOS_0]


def test_a_batch_of_a_client_has_what_servers_send() -> None:
    message = Publish("a", b"x", properties=Properties(subscription_identifiers=(3, 4)))
    decoder = PacketDecoder(MAX, 5, "client")
    decoder.feed(encode(message, 5) + encode(Pingresp(), 5))
    assert decoder.next_batch(9) == [message, Pingresp()]


def test_a_batch_that_breaks_between_two_reads() -> None:
    data = encode(QOS_0, 5)
    decoder = decoder_of(data + data[:3], 5)
    assert decoder.next_batch(9) == [QOS_0]
    assert decoder.next_batch(9) == []
    assert not decoder.has_failed
    decoder.feed(data[3:] + data)
    assert decoder.next_batch(9) == [QOS_0, QOS_0]


@pytest.mark.parametrize("room", [1, 2, 100])
def test_after_a_batch_the_chunk_is_let_go(room: int) -> None:
    for last in (QOS_0, PUBLISH, Subscribe(1, (("a", SubscriptionOptions()),))):
        decoder = lane_of([QOS_0] * (room - 1) + [last])
        assert len(decoder.next_batch(room)) == room
        assert decoder._data is b""  # noqa: F632 -- the very object
