"""Output of the encoder is input of the decoder, whole, in pieces, or broken."""

from itertools import accumulate
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec import (
    Packet,
    PacketDecoder,
    Pingreq,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
    encode,
)
from flowguard.errors import MalformedPacket, PeerError, ProtocolViolation
from flowguard.types import Publish
from tests.flowguard.codec import strategies
from tests.flowguard.codec.wire import MAX, decode, decode_connect

Role = Literal["server", "client"]
ROLES: tuple[Role, ...] = ("server", "client")
CONTROL = (Pingreq, Puback, Pubrec, Pubrel, Pubcomp)
COUNTED = (Publish, Subscribe, Unsubscribe)
MAX_SMALL = 400

roles = st.sampled_from(ROLES)


def sender_of(role: Role) -> Literal["client", "server"]:
    return "client" if role == "server" else "server"


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("version", [3, 4, 5])
@given(data=st.data())
def test_every_packet_comes_back(version: int, role: Role, data: st.DataObject) -> None:
    packet = data.draw(strategies.packets(version, sender_of(role)))
    back = decode(encode(packet, version), version, role)
    assert back == packet
    assert type(back) is type(packet)


@pytest.mark.parametrize("version", [3, 4, 5])
@given(data=st.data())
def test_every_connect_comes_back(version: int, data: st.DataObject) -> None:
    packet = data.draw(strategies.connects(version))
    assert decode_connect(encode(packet, version)) == packet


def cuts_of(data: st.DataObject, stream: bytes) -> list[bytes]:
    """The stream in pieces, empty ones among them."""
    at = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[a:b] for a, b in zip([0, *at], [*at, len(stream)], strict=True)]


@given(st.data(), strategies.versions, roles)
def test_any_split(data: st.DataObject, version: int, role: Role) -> None:
    packets = data.draw(st.lists(strategies.packets(version, sender_of(role)), max_size=8))
    pieces = cuts_of(data, b"".join(encode(packet, version) for packet in packets))
    decoder = PacketDecoder(MAX, version, role)
    back = []
    for piece in pieces:
        decoder.feed(piece)
        if data.draw(st.booleans()):
            while (packet := decoder.next()) is not None:
                back.append(packet)
    while (packet := decoder.next()) is not None:
        back.append(packet)
    assert back == packets
    assert decoder.buffered_bytes == 0


@given(st.data(), strategies.versions)
def test_byte_by_byte_from_connect_on(data: st.DataObject, version: int) -> None:
    packets: list[Packet] = [data.draw(strategies.connects(version))]
    packets += data.draw(st.lists(strategies.packets(version), max_size=3))
    ends = list(accumulate(len(encode(packet, version)) for packet in packets))
    stream = b"".join(encode(packet, version) for packet in packets)
    decoder = PacketDecoder(MAX)
    done = 0
    for count in range(1, len(stream) + 1):
        decoder.feed(stream[count - 1 : count])
        packet = decoder.next()
        if count == ends[done]:
            assert packet == packets[done]
            done += 1
        else:
            assert packet is None
            assert decoder.buffered_bytes == count - (ends[done - 1] if done else 0)


@given(st.data(), strategies.versions)
def test_the_control_lane_against_a_list(data: st.DataObject, version: int) -> None:
    """Any order of feed, next and next_control does what a plain list of packets would."""
    packets = data.draw(st.lists(strategies.packets(version), min_size=1, max_size=12))
    pieces = cuts_of(data, b"".join(encode(packet, version) for packet in packets))
    ends = list(accumulate(len(encode(packet, version)) for packet in packets))
    waiting = list(zip(packets, ends, strict=True))
    decoder = PacketDecoder(MAX, version)
    fed = taken = 0
    for piece in [*pieces, b"", b""]:
        decoder.feed(piece)
        fed += len(piece)
        for step in data.draw(st.lists(st.sampled_from("nnc"), max_size=6)):
            complete = [entry for entry in waiting if entry[1] <= fed]
            if step == "c":
                complete = [entry for entry in complete if isinstance(entry[0], CONTROL)]
                packet = decoder.next_control()
            else:
                packet = decoder.next()
            if complete:
                assert packet == complete[0][0]
                waiting.remove(complete[0])
                taken += len(encode(complete[0][0], version))
            else:
                assert packet is None
            assert decoder.buffered_bytes == fed - taken
    while waiting:
        assert decoder.next() == waiting.pop(0)[0]
    assert decoder.next() is None
    assert decoder.buffered_bytes == 0


@given(st.data(), strategies.versions, roles)
def test_batches_against_a_list(data: st.DataObject, version: int, role: Role) -> None:
    """Each batch goes on until PUBLISH, SUBSCRIBE and UNSUBSCRIBE reach its limit."""
    packets = data.draw(st.lists(strategies.packets(version, sender_of(role)), max_size=12))
    pieces = cuts_of(data, b"".join(encode(packet, version) for packet in packets))
    ends = list(accumulate(len(encode(packet, version)) for packet in packets))
    waiting = list(zip(packets, ends, strict=True))
    decoder = PacketDecoder(MAX, version, role)
    fed = taken = 0
    for piece in pieces:
        decoder.feed(piece)
        fed += len(piece)
        for room in data.draw(st.lists(st.integers(0, 4), max_size=3)):
            expected = []
            left = room
            while left and waiting and waiting[0][1] <= fed:
                packet, taken = waiting.pop(0)
                expected.append(packet)
                left -= isinstance(packet, COUNTED)
            assert decoder.next_batch(room) == expected
            assert decoder.buffered_bytes == fed - taken
    rest = decoder.next_batch(100)
    assert rest == [packet for packet, _ in waiting]
    assert decoder.next_batch(100) == []


def outcome(
    stream: bytes, version: int, role: Role, *, room: int
) -> tuple[list[Packet], str | None]:
    """Return all packets before the error, and the error; a limit of 0 uses `next()`."""
    decoder = PacketDecoder(MAX_SMALL, version, role)
    decoder.feed(stream)
    packets: list[Packet] = []
    try:
        while True:
            more = decoder.next_batch(room) if room else [decoder.next()]
            if not more or more[0] is None:
                return packets, None
            packets += [packet for packet in more if packet is not None]
    except PeerError as error:
        why = f"{error.reason_code} {error.why}"
        with pytest.raises(PeerError):  # the packet stays
            decoder.next()
        return packets, why


@given(st.data(), strategies.versions, roles, st.integers(1, 5))
def test_batches_end_where_next_does(
    data: st.DataObject, version: int, role: Role, room: int
) -> None:
    packets = data.draw(
        st.lists(strategies.packets(version, sender_of(role)), min_size=1, max_size=4)
    )
    stream = mutate(data, b"".join(encode(packet, version) for packet in packets))
    assert outcome(stream, version, role, room=room) == outcome(stream, version, role, room=0)


def drain(decoder: PacketDecoder, *, control: bool) -> None:
    while (decoder.next_control() if control else decoder.next()) is not None:
        pass


def mutate(data: st.DataObject, stream: bytes) -> bytes:
    out = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(out)))
        kind = data.draw(st.sampled_from(("change", "insert", "remove", "cut")))
        if kind == "insert":
            out[at:at] = data.draw(st.binary(min_size=1, max_size=3))
        elif kind == "remove":
            del out[at : at + data.draw(st.integers(1, 3))]
        elif kind == "cut":
            del out[at:]
        elif at < len(out):
            out[at] = data.draw(st.integers(0, 255))
    return bytes(out)


def assert_only_peer_errors(data: st.DataObject, stream: bytes, version: int, role: Role) -> None:
    """Feed it in pieces; what is held stays within the packet limit and a piece."""
    decoder = PacketDecoder(MAX_SMALL, version, role)
    broken: PeerError | None = None
    for piece in cuts_of(data, stream):
        decoder.feed(piece)
        try:
            drain(decoder, control=version != 0 and data.draw(st.booleans()))
            drain(decoder, control=False)
        except PeerError as error:
            broken = error
            break
        assert decoder.buffered_bytes <= MAX_SMALL
    if broken is not None:
        assert isinstance(broken, MalformedPacket | ProtocolViolation)
        assert broken.reason_code >= 0x80
        assert broken.why


@given(st.data(), strategies.versions, roles)
def test_any_mutation_of_a_stream(data: st.DataObject, version: int, role: Role) -> None:
    packets = data.draw(
        st.lists(strategies.packets(version, sender_of(role)), min_size=1, max_size=4)
    )
    stream = b"".join(encode(packet, version) for packet in packets)
    assert_only_peer_errors(data, mutate(data, stream), version, role)


@given(st.data(), strategies.versions)
def test_any_mutation_of_a_connect(data: st.DataObject, version: int) -> None:
    stream = encode(data.draw(strategies.connects(version)), version)
    assert_only_peer_errors(data, mutate(data, stream), 0, "server")


@given(st.data(), st.sampled_from((0, 3, 4, 5)), st.binary(max_size=200))
def test_any_bytes_at_all(data: st.DataObject, version: int, stream: bytes) -> None:
    assert_only_peer_errors(data, stream, version, "server")


@given(st.data(), strategies.versions, roles, st.integers(1, 15), st.binary(max_size=60))
def test_any_body_in_a_good_frame(
    data: st.DataObject, version: int, role: Role, packet_type: int, body: bytes
) -> None:
    flags = 2 if packet_type in (6, 8, 10) else 0
    if packet_type == 3:
        flags = data.draw(st.sampled_from((0, 2, 4)))
    stream = bytes((packet_type << 4 | flags, len(body))) + body
    if packet_type == 1:
        version, role = 0, "server"
    assert_only_peer_errors(data, stream, version, role)
