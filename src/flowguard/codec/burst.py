"""Bursts: consecutive PUBLISHes of one QoS, which are handled as one.

Devices and gateways that have gathered messages send such bursts. A receiver of the whole burst
gets the same bytes, at QoS 1 with other identifiers.

Packets of one topic and size differ only in payload and packet identifier. So one header is read,
and the others are compared with it. In other bursts each header is read, and the router decides how
many packets go the same way (`Burst.first_of`). A burst has no more packets than its client may
send now (`session.inbound`), each below 16 KiB.
"""

from typing import Final, final

from flowguard.codec.publish import known_topics
from flowguard.records import NEVER_S, QOS_1_IDS, Delivery
from flowguard.types import MQTT_5, Publish

BURST_MIN: Final = 2
"""Minimum number of packets of a burst."""
_QOS_0: Final = 0x30
_QOS_1: Final = 0x32
"""First bytes of packets without RETAIN and DUP."""
_PUBACK: Final = b"\x40\x02"
"""The bytes before the identifier in a PUBACK with success."""
_HIGH: Final = bytes(packet_id >> 8 for packet_id in range(1, QOS_1_IDS + 1))
_LOW: Final = bytes(packet_id & 255 for packet_id in range(1, QOS_1_IDS + 1))
"""The high and low bytes of all identifiers that a server assigns, in order."""
_NONE: Final[list[int]] = []
"""A shared list that is never changed."""


@final
class Burst:
    """`count` packets as they came; immutable by convention."""

    __slots__ = (
        "_first_place",
        "_in_flight",
        "_in_flight_id",
        "_numbered",
        "_numbered_id",
        "_payloads",
        "_places",
        "count",
        "frame_bytes_max",
        "frames",
        "head_bytes_max",
        "is_5",
        "payload_bytes",
        "payload_bytes_max",
        "qos",
        "topic",
        "topics",
    )

    def __init__(
        self,
        topic: str,
        frames: bytes,
        count: int,
        frame_bytes_max: int,
        payload_bytes_max: int,
        *,
        qos: int,
        is_5: bool,
    ) -> None:
        """The packets have one topic and size, until `tell_apart` changes this. `is_5`: they are of
        MQTT 5.0, without properties."""
        self.topic = topic
        """Topic of the first packet."""
        self.topics: list[str] | None = None
        """Topic of each packet, or None if all have the same."""
        self.frames = frames
        self.count = count
        self.frame_bytes_max = frame_bytes_max
        self.head_bytes_max = frame_bytes_max - payload_bytes_max
        """Maximum size of a packet without its payload, bytes."""
        self.payload_bytes_max = payload_bytes_max
        self.payload_bytes = payload_bytes_max * count
        """Size of all payloads, bytes."""
        self.qos = qos
        self.is_5 = is_5
        self._first_place = self.head_bytes_max - 2 - is_5
        """Position of the first packet's identifier."""
        self._places = _NONE
        """Positions of the identifiers; empty if they are `frame_bytes_max` apart."""
        self._payloads = _NONE
        """Sizes of the payloads, bytes; empty if all are equal."""
        self._numbered_id = 0
        self._numbered = b""
        self._in_flight_id = 0
        self._in_flight: dict[int, Delivery | None] = {}

    def tell_apart(self, topics: list[str], payload_bytes: int, head_bytes_max: int) -> None:
        """Set a topic for each packet; their sizes may differ."""
        self.topics = topics
        alike = self.payload_bytes == payload_bytes
        self.payload_bytes = payload_bytes
        self.head_bytes_max = head_bytes_max
        if alike and len(self.frames) == self.count * self.frame_bytes_max:
            return
        frames, places, payloads = self.frames, list[int](), list[int]()
        at = 0
        while self.qos and at < len(frames):
            size, start = frames[at + 1], at + 2
            if size >= 0x80:
                size += (frames[start] << 7) - 0x80
                start += 1
            place = start + 2 + (frames[start] << 8 | frames[start + 1])
            at = start + size
            places.append(place)
            payloads.append(at - place - 2 - self.is_5)
        self._places, self._payloads = places, payloads

    def first_of(self, count: int) -> "Burst":
        """Return the first `count` packets, at least 1; the burst itself if it has no more."""
        if count >= self.count:
            return self
        if self.topics is not None:
            return _read(self.frames, 0, count, self.is_5, len(self.frames))
        return Burst(
            self.topic,
            self.frames[: count * self.frame_bytes_max],
            count,
            self.frame_bytes_max,
            self.payload_bytes_max,
            qos=self.qos,
            is_5=self.is_5,
        )

    def pubacks(self) -> bytes:
        """Return encoded PUBACKs with success for all packets, in order [MQTT-4.6.0-2]."""
        frames, places, at = self.frames, self._places, self._first_place
        packet_ids = [b""]
        for index in range(self.count):
            if places:
                at = places[index]
            packet_ids.append(frames[at : at + 2])
            at += self.frame_bytes_max
        return _PUBACK.join(packet_ids)

    def numbered(self, first_id: int) -> bytes:
        """Return the packets at QoS 1, with a server's identifiers from `first_id` on.

        The result is cached, because clients that have received the same number of messages get the
        same identifiers.
        """
        if first_id != self._numbered_id:
            self._number(first_id)
        return self._numbered

    def in_flight(self, first_id: int) -> dict[int, Delivery | None]:
        """Return deliveries by these identifiers; the dict must not be changed.

        A message also stands for the following ones of the same size, because they count the same.
        """
        if first_id != self._in_flight_id:
            self._share(first_id)
        return self._in_flight

    def _number(self, first_id: int) -> None:
        # Compiled, a bytearray of a slice costs little. An assignment would convert other bytes.
        frames = bytearray(self.frames[:])
        if self._places:
            for index, at in enumerate(self._places, first_id - 1):
                frames[at], frames[at + 1] = _HIGH[index], _LOW[index]
        else:
            start, end = first_id - 1, first_id - 1 + self.count
            at, step = self._first_place, self.frame_bytes_max
            frames[at::step] = bytearray(_HIGH[start:end])
            frames[at + 1 :: step] = bytearray(_LOW[start:end])
        self._numbered_id, self._numbered = first_id, bytes(frames)

    def _share(self, first_id: int) -> None:
        in_flight: dict[int, Delivery | None] = {}
        delivery, payloads = self._delivery(0), self._payloads
        if not payloads:
            for packet_id in range(first_id, first_id + self.count):
                in_flight[packet_id] = delivery
        for index, payload_bytes in enumerate(payloads):
            if payload_bytes != payloads[index - 1]:
                delivery = self._delivery(index)
            in_flight[first_id + index] = delivery
        self._in_flight_id, self._in_flight = first_id, in_flight

    def deliveries(self) -> list[Delivery]:
        """Return a delivery of each packet at QoS 1, with the unchanged message."""
        return [self._delivery(index) for index in range(self.count)]

    def _delivery(self, index: int) -> Delivery:
        topic = self.topic if self.topics is None else self.topics[index]
        if self._places:
            at, size = self._places[index], self._payloads[index]
        else:
            at, size = self._first_place + index * self.frame_bytes_max, self.payload_bytes_max
        frames, start = self.frames, at + 2 + self.is_5
        packet_id = frames[at] << 8 | frames[at + 1]
        message = Publish(topic, frames[start : start + size], 1, packet_id=packet_id)
        return Delivery(message, 1, False, (), NEVER_S)


def find_burst(data: bytes, pos: int, room: int, version: int, size_max: int) -> Burst | None:
    """Return the burst that begins at `pos`, up to the given number of packets, or None.

    Also returns None for a topic that was not checked before, or a packet larger than `size_max`.
    """
    if len(data) - pos < 2 * BURST_MIN or (data[pos] != _QOS_0 and data[pos] != _QOS_1):
        return None
    size = data[pos + 1]
    start = pos + 2
    if size >= 0x80:
        high = data[start]
        if not 0 < high < 0x80:
            return None
        size += (high << 7) - 0x80
        start += 1
    end = start + size
    frame_bytes = end - pos
    if len(data) - end < 2 or data[end] != data[pos] or size < 2 or frame_bytes > size_max:
        return None
    is_5 = version == MQTT_5
    after_topic = start + 2 + (data[start] << 8 | data[start + 1])
    head = data[pos:after_topic]
    head_bytes = len(head)
    last = min(len(data), pos + room * frame_bytes) - frame_bytes
    if last < end or data[end : end + head_bytes] != head:
        found = _read(data, pos, room, is_5, size_max)
        return found if found.count >= BURST_MIN else None
    qos = (data[pos] - _QOS_0) >> 1
    topic = known_topics.get(data[start + 2 : after_topic])
    payload_bytes = end - (after_topic + 2 * qos + is_5)
    if topic is None or payload_bytes < 0:
        return None
    at = pos
    while at <= last and data[at : at + head_bytes] == head:
        if not _is_plain(data, at + head_bytes, qos, is_5):
            break
        at += frame_bytes
    if at <= end:
        return None
    count = (at - pos) // frame_bytes
    return Burst(topic, data[pos:at], count, frame_bytes, payload_bytes, qos=qos, is_5=is_5)


def _read(data: bytes, pos: int, room: int, is_5: bool, size_max: int) -> Burst:
    """Return the packets from `pos` on, of any topic and size; may be too few for a burst."""
    first, unread = data[pos], len(data)
    qos = (first - _QOS_0) >> 1
    behind_topic = 2 * qos + is_5
    topics: list[str] = []
    frame_bytes_max = head_bytes_max = payload_bytes = payload_bytes_max = 0
    at = pos
    while len(topics) < room and at + 4 <= unread and data[at] == first:
        size = data[at + 1]
        start = at + 2
        if size >= 0x80:
            high = data[start]
            if not 0 < high < 0x80:
                break
            size += (high << 7) - 0x80
            start += 1
        end = start + size
        if size < 2 or end > unread or end - at > size_max:
            break
        after_topic = start + 2 + (data[start] << 8 | data[start + 1])
        body = after_topic + behind_topic
        topic = known_topics.get(data[start + 2 : after_topic])
        if topic is None or body > end or not _is_plain(data, after_topic, qos, is_5):
            break
        topics.append(topic)
        payload_bytes += end - body
        if end - at > frame_bytes_max:
            frame_bytes_max = end - at
        if body - at > head_bytes_max:
            head_bytes_max = body - at
        if end - body > payload_bytes_max:
            payload_bytes_max = end - body
        at = end
    count = len(topics)
    topic = topics[0] if topics else ""
    frames = data[pos:at]
    burst = Burst(topic, frames, count, frame_bytes_max, payload_bytes_max, qos=qos, is_5=is_5)
    burst.tell_apart(topics, payload_bytes, head_bytes_max)
    return burst


def _is_plain(data: bytes, pos: int, qos: int, is_5: bool) -> bool:
    """True if the PUBLISH has no properties, and an identifier if it needs one [MQTT-2.2.1-3]."""
    if qos:
        if not (data[pos] or data[pos + 1]):
            return False
        pos += 2
    return not is_5 or not data[pos]
