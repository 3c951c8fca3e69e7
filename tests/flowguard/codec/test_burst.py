"""A burst is what a decoder would find, packet by packet; and what is made of it is what an encoder
would have made."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.burst import BURST_MIN, find_burst
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Puback
from flowguard.codec.publish import known_topics
from flowguard.records import QOS_1_IDS
from flowguard.types import MQTT_5, MQTT_311, NO_PROPERTIES, Publish

versions = st.sampled_from((MQTT_311, MQTT_5))


def packets(count: int, qos: int = 1, payload: bytes = b"x") -> list[Publish]:
    known_topics[b"a/b"] = "a/b"
    ids = range(1, count + 1) if qos else [0] * count
    return [Publish("a/b", payload, qos, packet_id=packet_id) for packet_id in ids]


def frames(count: int, version: int, qos: int = 1, payload: bytes = b"x") -> bytes:
    return b"".join([encode(packet, version) for packet in packets(count, qos, payload)])


def changed(data: bytes, at: int, value: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes((value,)) + data[at + 1 :]


payload_sizes = st.sampled_from((0, 1, 100, 130, 16_000))
alike = st.builds(
    lambda count, size: [("a/b", size)] * count, st.integers(BURST_MIN, 40), payload_sizes
)
of_any_kind = st.lists(
    st.tuples(st.sampled_from(("a/b", "a", "a/long/er")), payload_sizes),
    min_size=BURST_MIN,
    max_size=20,
)


@given(
    kinds=alike | of_any_kind,
    count=st.integers(1, 40),
    first_id=st.integers(1, QOS_1_IDS - 40),
    version=versions,
)
def test_its_packets_are_numbered_and_acknowledged(
    kinds: list[tuple[str, int]], count: int, first_id: int, version: int
) -> None:
    sent = [
        Publish(topic, b"p" * size, 1, packet_id=7 + at) for at, (topic, size) in enumerate(kinds)
    ]
    known_topics.update({topic.encode(): topic for topic, _ in kinds})
    data = b"".join([encode(packet, version) for packet in sent])
    burst = find_burst(data, 0, len(sent), version, len(data))
    assert burst is not None
    sent = sent[: burst.count]  # The equal packets at the beginning are a burst by themselves.
    assert len(sent) >= BURST_MIN
    if burst.topics is not None:
        assert len(sent) == len(kinds)
    burst = burst.first_of(count)
    sent = sent[:count]
    assert burst.count == len(sent)
    decoder = PacketDecoder(len(data), version)
    decoder.feed(burst.numbered(first_id) + burst.pubacks())
    found = decoder.next_batch(len(sent) + 1)
    assert found[: len(sent)] == [
        replace(packet, packet_id=first_id + at) for at, packet in enumerate(sent)
    ]
    assert found[len(sent) :] == [Puback(packet.packet_id) for packet in sent]
    in_flight = burst.in_flight(first_id)
    assert list(in_flight) == list(range(first_id, first_id + len(sent)))
    sizes = [len(packet.payload) for packet in sent]
    assert [each and len(each.message.payload) for each in in_flight.values()] == sizes
    assert (burst.payload_bytes, burst.payload_bytes_max) == (sum(sizes), max(sizes))


@given(
    data=st.binary(max_size=40)
    | st.builds(
        lambda count, version, qos, at, value: changed(frames(count, version, qos), at, value),
        st.integers(1, 5),
        versions,
        st.integers(0, 1),
        st.integers(0, 60),
        st.integers(0, 255),
    ),
    version=versions,
    room=st.integers(BURST_MIN, 5),
    size_max=st.sampled_from((8, 9, 10, 100)),
)
def test_it_is_what_the_decoder_would_find(
    data: bytes, version: int, room: int, size_max: int
) -> None:
    known_topics[b"a/b"] = "a/b"
    burst = find_burst(data, 0, room, version, size_max)
    if burst is None:
        return
    decoder = PacketDecoder(size_max, version)
    decoder.feed(data)
    found = decoder.next_batch(burst.count)
    assert BURST_MIN <= len(found) == burst.count <= room
    assert decoder.buffered_bytes == len(data) - len(burst.frames)
    for packet in found:
        assert isinstance(packet, Publish)
        assert packet.qos == burst.qos
        assert (packet.retain, packet.dup) == (False, False)
        assert packet.properties is NO_PROPERTIES
    topics = [packet.topic for packet in found if isinstance(packet, Publish)]
    assert topics == (burst.topics or [burst.topic] * burst.count)
    sizes = [len(packet.payload) for packet in found if isinstance(packet, Publish)]
    assert (burst.payload_bytes, burst.payload_bytes_max) == (sum(sizes), max(sizes))


@given(version=versions, qos=st.integers(0, 1))
def test_its_packets_are_below_16_kib(version: int, qos: int) -> None:
    for payload_bytes, is_one in ((16_000, True), (16_384, False)):
        data = frames(3, version, qos, b"p" * payload_bytes)
        assert (find_burst(data, 0, 3, version, len(data)) is not None) is is_one


@given(
    before=st.integers(0, 3),
    counts=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 1), st.sampled_from((1, 5, 200)))),
    version=versions,
    room=st.integers(BURST_MIN, 9),
)
def test_a_decoder_gives_all_packets_in_order_by_bursts_and_by_one(
    before: int, counts: list[tuple[int, int, int]], version: int, room: int
) -> None:
    sent = packets(before, payload=b"b")
    for count, qos, payload_bytes in counts:
        sent += packets(count, qos, b"p" * payload_bytes)
    decoder = PacketDecoder(1000, version)
    decoder.feed(b"".join([encode(packet, version) for packet in sent]))
    found = decoder.next_batch(before) if before else []
    while (burst := decoder.burst(room)) is not None or decoder.buffered_bytes:
        if burst is None:
            found += decoder.next_batch(1)
            continue
        one_by_one = PacketDecoder(1000, version)
        one_by_one.feed(burst.frames)
        found += one_by_one.next_batch(room)
        decoder.take(burst)
    assert found == sent
    assert decoder.is_empty
