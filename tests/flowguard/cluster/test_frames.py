"""Frames of links: what is encoded is decoded, however the bytes are cut; the rest is an error."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.cluster import NOT_OWED, LinkMessage, PressureRecord
from flowguard.cluster.frames import (
    FilterChange,
    FiltersConfirmed,
    Frame,
    FrameDecoder,
    LinkHello,
    MessageBatch,
    StreamDurable,
    StreamOpen,
    StreamRejected,
    Unnumbered,
    encode_frame,
)
from flowguard.errors import MalformedPacket
from flowguard.flow.load.signals import Signal

FRAME_BYTES_MAX = 5_000
u64 = st.integers(0, 2**64 - 1)
names = st.text(min_size=1, max_size=20)
texts = st.lists(st.text(max_size=20), max_size=4).map(tuple)
messages = st.builds(LinkMessage, st.binary(max_size=50), st.just(NOT_OWED) | st.tuples(u64, u64))
frames = st.one_of(
    st.builds(LinkHello, names, u64),
    st.builds(StreamOpen, u64),
    st.builds(MessageBatch, u64, st.lists(messages, max_size=4).map(tuple)),
    st.builds(Unnumbered, st.lists(st.binary(max_size=50), max_size=4).map(tuple)),
    st.builds(StreamDurable, u64),
    st.builds(StreamRejected, st.text(max_size=50)),
    st.builds(FilterChange, u64, texts, texts, st.booleans(), st.booleans()),
    st.builds(FiltersConfirmed, u64),
    st.builds(
        PressureRecord,
        names,
        u64,
        u64,
        st.floats(0.01, 65_535),
        st.floats(0, 16),
        st.none() | st.sampled_from(Signal),
        st.integers(0, 2**32 - 1),
        st.booleans(),
    ),
)


def decoded(data: bytes, chunk_bytes: int) -> list[Frame]:
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    chunks = [data[pos : pos + chunk_bytes] for pos in range(0, len(data), chunk_bytes)]
    return [frame for chunk in chunks for frame in decoder.feed(chunk)]


@given(st.lists(frames, max_size=4), st.integers(1, 60))
def test_frames_are_decoded_as_they_were_encoded(sent: list[Frame], chunk_bytes: int) -> None:
    assert decoded(b"".join(map(encode_frame, sent)), chunk_bytes) == sent


@given(frames, st.data())
def test_a_damaged_frame_is_another_frame_or_an_error(frame: Frame, data: st.DataObject) -> None:
    octets = bytearray(encode_frame(frame))
    for _ in range(data.draw(st.integers(1, 3))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MalformedPacket):
        for each in decoded(bytes(octets), len(octets)):
            assert encode_frame(each)


@given(st.binary(max_size=200))
def test_random_bytes_raise_no_other_error(data: bytes) -> None:
    with suppress(MalformedPacket):
        decoded(data, 200)


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (b"\0\0\0\0", "a frame of 0 bytes"),
        (b"\0\0\x20\0", "a frame of 8192 bytes; 1 to 5000 are allowed"),
        (b"\0\0\0\x01\x63", "unknown kind 99"),
        (b"\0\0\0\x05\x02\0\0\0\x01", "a frame of kind 2 is damaged"),
        (b"\0\0\0\x0a\x02" + bytes(9), "a frame of kind 2 has 1 bytes too many"),
        (b"\0\0\0\x0b\x01\x01" + bytes(9), "a node without a name"),
        (b"\0\0\0\x0c\x01\x07" + bytes(8) + b"\x01a", "version 7; this node has version 1"),
        (b"\0\0\0\x0e\x03" + bytes(8) + b"\0\0\0\x09\0", "a field is cut short"),
        (b"\0\0\0\x0e\x06" + bytes(8) + b"\0\0\0\0\x01", "a filter is missing"),
    ],
)
def test_malformed_frames_are_errors_with_a_reason(octets: bytes, reason: str) -> None:
    with pytest.raises(MalformedPacket, match=reason):
        decoded(octets, len(octets))


def test_a_decoder_keeps_no_more_than_one_frame() -> None:
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    frame = encode_frame(MessageBatch(1, (LinkMessage(bytes(4_900)),)))
    for _ in range(100):
        assert decoder.feed(frame[:-1]) == []
        assert len(decoder.feed(frame[-1:])) == 1
    assert len(decoder._buffer) == 0
