"""FrameSplitter: finds the packets in a byte stream, and the little that admission needs.

It reads a packet's first byte, its size, and its packet identifier if it has one. All bytes pass
unchanged, and a packet need not be complete. Only an incomplete head is kept back: the fixed
header, and the topic of a PUBLISH of QoS 1 and 2.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from flowguard.codec.tables import (
    CONNACK,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)
from flowguard.errors import MalformedPacket

LENGTH_BYTES_MAX: Final = 4


def is_counted(kind: int) -> bool:
    """True if a client's packet of this kind is work for the upstream."""
    return kind in (PUBLISH, SUBSCRIBE, UNSUBSCRIBE)


def is_control(kind: int) -> bool:
    """True if it may overtake held packets: the control lane."""
    return kind in (PUBACK, PUBREC, PUBREL, PUBCOMP, PINGREQ)


@final
@mypyc_attr(acyclic=True)
class FrameHead:
    """The head of a packet."""

    __slots__ = ("first", "packet_id", "reason", "size_bytes", "start")

    def __init__(self, first: int, size_bytes: int, start: int) -> None:
        self.first = first
        """First byte: kind and flags."""
        self.size_bytes = size_bytes
        """Size of the whole packet, bytes."""
        self.start = start
        """Offset of the packet in the bytes that `scan` returned."""
        self.packet_id = 0
        """Packet identifier, or 0 if it has none or none is needed."""
        self.reason = 0
        """Reason code of a CONNACK or DISCONNECT."""

    @property
    def kind(self) -> int:
        return self.first >> 4


@final
class FrameSplitter:
    """Splits one direction of one connection."""

    __slots__ = ("kept", "rest_bytes")

    def __init__(self) -> None:
        self.kept = b""
        """Start of a packet with an incomplete head."""
        self.rest_bytes = 0
        """Bytes of the current packet that have not come yet."""

    @property
    def is_within(self) -> bool:
        """True if a packet is incomplete."""
        return self.rest_bytes > 0 or len(self.kept) > 0

    def scan(self, data: bytes) -> tuple[bytes, list[FrameHead]]:
        """Return the bytes that may pass now, and the heads of the packets that begin in them.

        Raises `MalformedPacket` if the boundaries of packets are lost.
        """
        heads: list[FrameHead] = []
        if self.rest_bytes >= len(data) and self.rest_bytes:
            self.rest_bytes -= len(data)
            return data, heads
        if self.kept:
            data = self.kept + data
            self.kept = b""
        pos, end = self.rest_bytes, len(data)
        self.rest_bytes = 0
        while pos < end:
            head = _head(data, pos, end)
            if head is None:
                self.kept = data[pos:]
                return data[:pos], heads
            heads.append(head)
            pos += head.size_bytes
        self.rest_bytes = pos - end
        return data, heads


def _head(data: bytes, pos: int, end: int) -> FrameHead | None:
    """Return the head of the packet at `pos`, or None if it is incomplete."""
    length = shift = 0
    at = pos + 1
    while True:
        if at >= end:
            return None
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift == 7 * LENGTH_BYTES_MAX:
            raise MalformedPacket("a remaining length of more than four bytes")
    head = FrameHead(data[pos], at - pos + length, pos)
    if length < 2 or not _is_looked_into(head.first):
        if length and head.kind == DISCONNECT:
            if at >= end:
                return None
            head.reason = data[at]
        return head
    return _look_into(head, data, at, end)


def _is_looked_into(first: int) -> bool:
    kind = first >> 4
    if kind == PUBLISH:
        return first & 0x06 != 0
    return kind in (PUBACK, PUBREC, CONNACK, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK)


def _look_into(head: FrameHead, data: bytes, at: int, end: int) -> FrameHead | None:
    """Complete the head from the body at `at`."""
    if at + 2 > end:
        return None
    if head.kind == CONNACK:
        head.reason = data[at + 1]
        return head
    if head.kind == PUBLISH:
        at += 2 + (data[at] << 8 | data[at + 1])
        if at + 2 > head.start + head.size_bytes:
            return head  # The packet is malformed; the upstream will reject it.
        if at + 2 > end:
            return None
    head.packet_id = data[at] << 8 | data[at + 1]
    return head
