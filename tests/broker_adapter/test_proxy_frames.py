"""Packets are separated for any split of the bytes, and no byte is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.proxy.frames import FrameHead, FrameSplitter
from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Connack,
    Packet,
    Pingreq,
    Puback,
    Pubrel,
    Suback,
    Subscribe,
    Unsubscribe,
)
from flowguard.errors import MalformedPacket
from flowguard.types import MQTT_5, MQTT_311, Publish, SubscriptionOptions

IDS = st.integers(1, 65_535)
PACKETS = st.one_of(
    st.builds(
        lambda topic, size, qos, id: Publish(topic, b"p" * size, qos, packet_id=id if qos else 0),
        st.text("ab/", min_size=1, max_size=200),
        st.sampled_from([0, 1, 100, 5_000]),
        st.integers(0, 2),
        IDS,
    ),
    st.builds(lambda id: Puback(id), IDS),
    st.builds(lambda id: Pubrel(id), IDS),
    st.builds(lambda id: Subscribe(id, (("a", SubscriptionOptions(1)),)), IDS),
    st.builds(lambda id: Unsubscribe(id, ("a", "b")), IDS),
    st.builds(lambda id: Suback(id, (0, 1)), IDS),
    st.just(Pingreq()),
    st.sampled_from([Connack(False, 0), Connack(False, 0x89)]),
)


def numbers(packet: Packet, data: bytes) -> tuple[int, int, int, int]:
    packet_id = 0 if isinstance(packet, Pubrel) else getattr(packet, "packet_id", 0)
    reason = packet.reason_code if isinstance(packet, Connack) else 0
    return data[0], len(data), packet_id, reason


@given(
    packets=st.lists(PACKETS, max_size=12),
    version=st.sampled_from([MQTT_311, MQTT_5]),
    cuts=st.lists(st.integers(0, 3_000), max_size=40),
)
def test_any_split(packets: list[Packet], version: int, cuts: list[int]) -> None:
    encoded = [encode(packet, version) for packet in packets]
    stream = b"".join(encoded)
    splitter, passed, seen = FrameSplitter(), bytearray(), list[tuple[int, FrameHead]]()
    at = 0
    for cut in [*cuts, len(stream)]:
        data, heads = splitter.scan(stream[at : at + cut])
        at += cut
        seen += [(len(passed) + head.start, head) for head in heads]
        passed += data
        assert len(passed) + len(splitter.kept) == min(at, len(stream))
        assert len(splitter.kept) < 5 + 2 + 200 + 2
    assert passed == stream
    starts = [sum(map(len, encoded[:number])) for number in range(len(encoded))]
    assert [start for start, _ in seen] == starts
    assert [(head.first, head.size_bytes, head.packet_id, head.reason) for _, head in seen] == [
        (*numbers(packet, data)[:3], data[3] if isinstance(packet, Connack) else 0)
        for packet, data in zip(packets, encoded, strict=True)
    ]


def test_a_length_of_five_bytes_is_no_packet() -> None:
    with pytest.raises(MalformedPacket):
        FrameSplitter().scan(b"\x30\xff\xff\xff\xff\x01")
