"""Packets of a trace, however their bytes are split and whatever they contain."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from flowguard.errors import PeerError
from flowguard.ops.trace.heads import HEAD_MAX, PacketHeads
from flowguard.ops.trace.words import fields_of, name_of, packet_of
from flowguard.types import MQTT_5, MQTT_311, Properties, Publish, SubscriptionOptions

SECRET = b"s3cret"
FROM_CLIENT: list[Packet] = [
    Pingreq(),
    Puback(3),
    Publish("t/1", b"x", 1, packet_id=9),
    Publish("t/2", b"\xe2\x82\xac" * HEAD_MAX, properties=Properties(payload_format_indicator=1)),
    Subscribe(1, (("a/#", SubscriptionOptions(1)),)),
    Unsubscribe(2, ("a/#",)),
    Subscribe(3, tuple((f"{'f' * 200}/{n}", SubscriptionOptions()) for n in range(100))),
    Disconnect(),
]
FROM_SERVER: list[Packet] = [
    Connack(properties=Properties(authentication_data=SECRET, server_keep_alive=9)),
    Suback(1, (0, 0x87)),
    Unsuback(2, (0,)),
    Auth(0x18, Properties(authentication_method="m", authentication_data=SECRET)),
]


@given(st.lists(st.sampled_from(FROM_CLIENT), max_size=8), st.data())
def test_heads_do_not_depend_on_how_bytes_are_split(
    packets: list[Packet], data: st.DataObject
) -> None:
    frames = [encode(packet, MQTT_5) for packet in packets]
    rest, heads, found = b"".join(frames), PacketHeads(MQTT_5), []
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        found += heads.feed(rest[:size])
        rest = rest[size:]
    assert [(head.data, head.size_bytes) for head in found] == [
        (frame[:HEAD_MAX], len(frame)) for frame in frames
    ]
    for head, packet in zip(found, packets, strict=True):
        decoded = packet_of(head, MQTT_5, from_client=True)
        if head.size_bytes <= HEAD_MAX:
            assert decoded == packet
        else:
            assert decoded is None or isinstance(decoded, Publish)
            assert name_of(head.data[0]) == type(packet).__name__.upper()


@given(st.binary(max_size=64), st.booleans(), st.sampled_from([MQTT_311, MQTT_5]))
def test_any_bytes_are_described_or_an_error_of_the_peer(
    data: bytes, from_client: bool, version: int
) -> None:
    with suppress(PeerError):  # Any other error would end the trace.
        for head in PacketHeads(version).feed(data):
            packet = packet_of(head, version, from_client=from_client)
            if packet is not None:
                json.dumps(fields_of(packet, 10))


@pytest.mark.parametrize("packet", [*FROM_SERVER, Connect(password=SECRET, username="ann")])
def test_no_password_is_described(packet: Packet) -> None:
    if isinstance(packet, Connect):
        packet.will = Will("w", SECRET)
    shown = str(fields_of(packet, 0))
    assert SECRET.decode() not in shown
    assert "password" not in shown


def test_values_of_user_properties_are_shown_only_with_payloads() -> None:
    packet = Publish("t", SECRET, properties=Properties(user_properties=(("key", "s3cret"),)))
    assert fields_of(packet, 0)["user_properties"] == ["key"]
    assert "s3cret" not in str(fields_of(packet, 0))
    assert fields_of(packet, 6)["payload"] == "s3cret"
    assert fields_of(packet, 6)["user_properties"] == ["key=s3cret"]
