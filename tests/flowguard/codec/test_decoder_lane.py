"""Packets that overtake others by the control lane, and packets decoded at sight, without a
buffer."""

import tracemalloc
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec import (
    Auth,
    Connect,
    Packet,
    PacketDecoder,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Subscribe,
    encode,
)
from flowguard.codec.bodies import count_pubacks
from flowguard.errors import MalformedPacket, PeerError
from flowguard.types import Properties, Publish, ReasonCode, SubscriptionOptions
from tests.flowguard.codec.decoders import (
    KIB,
    PUBLISH,
    QOS_0,
    all_of,
    decoder_of,
    know,
    lane_of,
    one_by_one,
)
from tests.flowguard.codec.wire import MAX, connect, frame, props, text, u16

# --- the control lane -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4, 5])
def test_control_packets_overtake_all_others(version: int) -> None:
    waiting: list[Packet] = [
        PUBLISH,
        Subscribe(1, (("a", SubscriptionOptions()),)),
        Publish("c", bytes(200)),
    ]
    control: list[Packet] = [Pingreq(), Puback(1), Pubrec(2), Pubrel(3), Pubcomp(4)]
    decoder = lane_of([*waiting, *control, *waiting, *control], version)
    assert list(iter(decoder.next_control, None)) == control * 2
    assert all_of(decoder) == waiting * 2


def test_what_is_known_stays_out_of_the_lane() -> None:
    method = Properties(authentication_method="m")
    waiting: list[Packet] = [PUBLISH, Auth(0x18, method)]
    decoder = lane_of(waiting)
    assert decoder.next_control() is None
    assert decoder.next() == PUBLISH
    assert decoder.next_control() is None
    assert decoder.next() == waiting[1]


def test_control_packets_come_in_their_own_order_between_others() -> None:
    decoder = lane_of([Puback(1), PUBLISH, Puback(2), PUBLISH, Puback(3)])
    assert decoder.next() == Puback(1)
    assert decoder.next_control() == Puback(2)
    assert decoder.next() == PUBLISH
    assert decoder.next_control() == Puback(3)
    assert decoder.next_control() is None
    assert decoder.next() == PUBLISH
    assert decoder.next() is None


def test_a_control_packet_with_properties() -> None:
    ack = Puback(7, 0x10, Properties(user_properties=(("k", "v" * 200),)))
    decoder = lane_of([PUBLISH, ack])
    assert decoder.next_control() == ack


def test_a_control_packet_in_pieces() -> None:
    data = encode(PUBLISH, 5) + encode(Puback(7, 0x10), 5)
    decoder = PacketDecoder(MAX, 5)
    for at in range(len(data) - 1):
        decoder.feed(data[at : at + 1])
        assert decoder.next_control() is None
    decoder.feed(data[-1:])
    assert decoder.next_control() == Puback(7, 0x10)
    assert decoder.next() == PUBLISH


def test_an_incomplete_packet_stops_the_lane() -> None:
    """Bytes behind it that look like a PINGREQ are its payload."""
    decoder = decoder_of(b"\x30\x07\0\1a\xc0\0")
    assert decoder.next_control() is None
    decoder.feed(b"\xc0\0\xc0\0")
    assert decoder.next_control() == Pingreq()
    assert decoder.next() == Publish("a", b"\xc0\0\xc0\0")


def test_nothing_overtakes_connect() -> None:
    decoder = decoder_of(connect(4) + b"\xc0\0", 0)
    assert decoder.next_control() is None
    assert isinstance(decoder.next(), Connect)
    assert decoder.next_control() == Pingreq()


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"\x40\x02\0\0", ReasonCode.PROTOCOL_ERROR),
        (b"\xc0\x01\0", ReasonCode.MALFORMED_PACKET),
        (b"\x40\x03\0\x01\x55", ReasonCode.PROTOCOL_ERROR),
        (b"\x60\x02\0\x01", ReasonCode.MALFORMED_PACKET),
        (b"\x00", ReasonCode.MALFORMED_PACKET),
        (b"\x10", ReasonCode.PROTOCOL_ERROR),
        (b"\x30\x80\x80\x80\x80", ReasonCode.MALFORMED_PACKET),
        (b"\x30\xff\xff\x7f", ReasonCode.PACKET_TOO_LARGE),
    ],
)
def test_the_lane_finds_broken_frames(bad: bytes, reason: ReasonCode) -> None:
    decoder = decoder_of(encode(PUBLISH, 5) + bad, 5, 1000)
    for _ in range(2):
        with pytest.raises(PeerError) as caught:
            decoder.next_control()
        assert caught.value.reason_code == reason


def test_a_broken_body_waits_for_its_turn() -> None:
    decoder = decoder_of(frame(0x30, text("#"), props()) + b"\xc0\0", 5)
    assert decoder.next_control() == Pingreq()
    with pytest.raises(MalformedPacket):
        decoder.next()


def test_the_lane_of_a_client() -> None:
    decoder = PacketDecoder(MAX, 5, "client")
    decoder.feed(encode(PUBLISH, 5) + encode(Pingresp(), 5) + encode(Puback(3), 5))
    assert decoder.next_control() == Puback(3)
    assert all_of(decoder) == [PUBLISH, Pingresp()]


@pytest.mark.parametrize("window", [0, 1], ids=["closed", "one at a time"])
def test_the_lane_is_not_quadratic(window: int) -> None:
    """100,000 packets, turn about; looked through again each time it would take an hour."""
    count = 50_000
    data = (encode(PUBLISH, 5) + b"\xc0\0") * count
    decoder = PacketDecoder(MAX, 5)
    pings = publishes = 0
    start = thread_time()
    for at in range(0, len(data), 64 * KIB):
        decoder.feed(data[at : at + 64 * KIB])
        while decoder.next_control() is not None:
            pings += 1
            if window and isinstance(decoder.next(), Publish):
                publishes += 1
    publishes += len(all_of(decoder))
    assert thread_time() - start < 10
    assert (pings, publishes) == (count, count)


def test_the_lane_takes_little_memory() -> None:
    data = b"\x30\x03\0\1a\xc0\0" * 20_000
    decoder = decoder_of(data)
    tracemalloc.start()
    try:
        while decoder.next_control() is not None:
            pass
        assert tracemalloc.get_traced_memory()[1] < len(data) * 2.5
    finally:
        tracemalloc.stop()
    assert decoder.buffered_bytes == 100_000


def test_acknowledgements_of_a_publisher_in_window_one_are_in_order() -> None:
    first, second = Publish("a", b"", 1, packet_id=1), Publish("a", b"", 1, packet_id=2)
    data = frame(0x32, text("a"), u16(1)) + frame(0x32, text("a"), u16(2))
    decoder = decoder_of(data)
    assert decoder.next() == first
    assert decoder.next_control() is None
    assert decoder.next() == second


# --- at sight -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
def test_a_chunk_that_is_one_packet_is_taken_without_a_buffer(version: int) -> None:
    decoder = PacketDecoder(MAX, version)
    know(PUBLISH)
    for message in (PUBLISH, QOS_0, Publish("a/b", b"x" * 110, 1, packet_id=7)):
        assert decoder.at_sight(encode(message, version)) == message
    assert decoder.buffered_bytes == 0


def test_nothing_is_taken_at_sight_before_what_is_buffered() -> None:
    data = encode(PUBLISH, 5)
    know(PUBLISH)
    decoder = decoder_of(data[:3], 5)
    assert decoder.at_sight(data[3:]) is None
    assert decoder.at_sight(data) is None
    decoder.feed(data[3:])
    assert decoder.next_batch(9) == [PUBLISH]
    assert decoder.at_sight(data) == PUBLISH
    decoder.feed(encode(Subscribe(1, (("a", SubscriptionOptions()),)), 5))
    assert decoder.next_control() is None
    assert decoder.at_sight(data) is None


@given(
    packets=st.lists(st.sampled_from([Puback(1), Puback(258), Puback(1, 0x10), QOS_0])),
    damage=st.none() | st.tuples(st.integers(0, 12), st.integers(0, 255)),
)
def test_pubacks_are_counted_where_decoding_finds_nothing_else(
    packets: list[Packet], damage: tuple[int, int] | None
) -> None:
    data = bytearray(b"".join(encode(packet, 5) for packet in packets))
    if damage is not None and damage[0] < len(data):
        data[damage[0]] = damage[1]
    found, error = one_by_one(bytes(data), 5)
    is_plain = all(isinstance(packet, Puback) for packet in found) and 4 * len(found) == len(data)
    assert count_pubacks(bytes(data)) == (len(found) if is_plain and not error else 0)


def test_at_sight_is_no_way_around_the_maximum_packet_size() -> None:
    data = encode(PUBLISH, 5)
    know(PUBLISH)
    assert PacketDecoder(len(data), 5).at_sight(data) == PUBLISH
    assert PacketDecoder(len(data) - 1, 5).at_sight(data) is None


@pytest.mark.spec("MQTT-3.1.0-1", "v3:MQTT-3.1.0-1")
def test_nothing_is_taken_at_sight_before_connect() -> None:
    know(PUBLISH)
    decoder = PacketDecoder(MAX)
    assert decoder.at_sight(encode(PUBLISH, 4)) is None
