"""Bursts: consecutive PUBLISHes of one topic, size and QoS, which are handled as one.

Devices and gateways that have gathered something send it like that. The packets differ in payload
and packet identifier only, so one header is read for all of them, and the others are compared with
it. Who gets them as they are is sent the very bytes that came, at QoS 1 with other identifiers.
A burst has no more packets than its client may send now (`session.inbound`), each below 16 KiB.

All packets have the same size: what has the same place in each of them is a slice with that step.
"""

from typing import Final, final

from flowguard.codec.publish import known_topics
from flowguard.records import NEVER_S, QOS_1_IDS, Delivery
from flowguard.types import MQTT_5, Publish

BURST_MIN: Final = 2
"""Packets; one alone is none."""
_QOS_0: Final = 0x30
_QOS_1: Final = 0x32
"""First bytes: neither RETAIN nor DUP."""
_HIGH: Final = bytes(packet_id >> 8 for packet_id in range(1, QOS_1_IDS + 1))
_LOW: Final = bytes(packet_id & 255 for packet_id in range(1, QOS_1_IDS + 1))
"""The two bytes of all identifiers that a server gives, in their order."""


@final
class Burst:
    """Packets as they came, `count` of them; immutable by house rule."""

    __slots__ = (
        "_first_id",
        "_id_at",
        "_in_flight",
        "_numbered",
        "count",
        "frame_bytes",
        "frames",
        "is_5",
        "payload_bytes",
        "qos",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        frames: bytes,
        frame_bytes: int,
        payload_bytes: int,
        id_at: int,
        *,
        qos: int,
        is_5: bool,
    ) -> None:
        """`frame_bytes` and `payload_bytes` are those of each packet; `id_at`: where its identifier
        would be; `is_5`: they are MQTT 5.0's, without properties."""
        self.topic = topic
        self.frames = frames
        self.frame_bytes = frame_bytes
        self.payload_bytes = payload_bytes
        self.qos = qos
        self.is_5 = is_5
        self.count = len(frames) // frame_bytes
        self._id_at = id_at
        self._first_id = 0
        self._numbered = b""
        self._in_flight: dict[int, Delivery | None] = {}

    @property
    def first(self) -> Publish:
        """The first packet."""
        end = self.frame_bytes
        return Publish(self.topic, self.frames[end - self.payload_bytes : end], self.qos)

    def first_of(self, count: int) -> "Burst":
        """The first `count` packets, 1 at least; itself where it has no more."""
        if count >= self.count:
            return self
        return Burst(
            self.topic,
            self.frames[: count * self.frame_bytes],
            self.frame_bytes,
            self.payload_bytes,
            self._id_at,
            qos=self.qos,
            is_5=self.is_5,
        )

    def pubacks(self) -> bytes:
        """PUBACKs with success for all of them, encoded, in their order [MQTT-4.6.0-2]."""
        answers = [0x40, 2, 0, 0] * self.count
        frames, at = self.frames, self._id_at
        for pos in range(2, len(answers), 4):
            answers[pos], answers[pos + 1] = frames[at], frames[at + 1]
            at += self.frame_bytes
        return bytes(answers)

    def numbered(self, first_id: int) -> bytes:
        """The packets with identifiers from `first_id` on, all of a server's at QoS 1.

        Remembered: who have been sent as many messages so far get the same identifiers.
        """
        if first_id != self._first_id:
            self._number(first_id)
        return self._numbered

    def in_flight(self, first_id: int) -> dict[int, Delivery | None]:
        """Deliveries by the same identifiers, not to be changed.

        The first message stands for all of them: they count the same.
        """
        if first_id != self._first_id:
            self._number(first_id)
        return self._in_flight

    def _number(self, first_id: int) -> None:
        at, step = self._id_at, self.frame_bytes
        start, end = first_id - 1, first_id - 1 + self.count
        frames = bytearray(self.frames)
        frames[at::step] = _HIGH[start:end]
        frames[at + 1 :: step] = _LOW[start:end]
        delivery = Delivery(self.first, 1, False, (), NEVER_S)
        in_flight: dict[int, Delivery | None] = {}
        for packet_id in range(first_id, first_id + self.count):
            in_flight[packet_id] = delivery
        self._first_id = first_id
        self._numbered, self._in_flight = bytes(frames), in_flight


def find_burst(data: bytes, pos: int, room: int, version: int, size_max: int) -> Burst | None:
    """The burst that begins at `pos`, of `room` packets at most; None: there is none.

    None, too, where its topic has not been checked before, or a packet is larger than `size_max`.
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
    last = min(len(data), pos + room * frame_bytes) - frame_bytes
    if last < end or size < 2 or frame_bytes > size_max:
        return None
    after_topic = start + 2 + (data[start] << 8 | data[start + 1])
    head = data[pos:after_topic]
    head_bytes = len(head)
    if data[end : end + head_bytes] != head:
        return None  # The common case where topics alternate.
    qos, is_5 = (data[pos] - _QOS_0) >> 1, version == MQTT_5
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
    return Burst(topic, data[pos:at], frame_bytes, payload_bytes, head_bytes, qos=qos, is_5=is_5)


def _is_plain(data: bytes, pos: int, qos: int, is_5: bool) -> bool:
    """Whether a PUBLISH with these bytes behind its topic has an identifier, if it is to have one
    [MQTT-2.2.1-3], and no properties."""
    if qos:
        if not (data[pos] or data[pos + 1]):
            return False
        pos += 2
    return not is_5 or not data[pos]
