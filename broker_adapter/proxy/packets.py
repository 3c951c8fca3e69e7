"""Packets of a client in the proxy: held ones, and those in process."""

from typing import Final, final

from mypy_extensions import mypyc_attr

from broker_adapter.proxy.frames import FrameHead
from flowguard.codec.tables import (
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

ASKS: Final = frozenset((PUBREL, SUBSCRIBE, UNSUBSCRIBE))
"""Kinds of packets that are always answered."""
ANSWERS: Final = frozenset((PUBACK, PUBREC, PUBCOMP, SUBACK, UNSUBACK))


@final
class HeldPacket:
    """A held packet, as far as it was received."""

    __slots__ = ("data", "head")

    def __init__(self, head: FrameHead) -> None:
        self.head = head
        self.data = bytearray()

    @property
    def is_whole(self) -> bool:
        """True if all of it was received."""
        return len(self.data) == self.head.size_bytes


@final
@mypyc_attr(acyclic=True)
class Outstanding:
    """A packet in process: not acknowledged, or for QoS 0 not taken by the upstream's socket."""

    __slots__ = ("cost", "since_s", "size_bytes")

    def __init__(self, cost: int, size_bytes: int, since_s: float) -> None:
        self.cost = cost
        self.size_bytes = size_bytes
        self.since_s = since_s


@final
class Awaiting:
    """Packets that the upstream has not answered, by the kind and packet identifier of the answer.

    A client may use an identifier again before the answer, for a retransmission or by mistake.
    Every packet counts, and an answer is for the oldest packet that it fits.
    """

    __slots__ = ("_packets",)

    def __init__(self) -> None:
        self._packets: dict[int, list[Outstanding]] = {}
        """The oldest packet first; no list is empty."""

    def add(self, head: FrameHead, packet: Outstanding) -> None:
        """Note that a packet with an identifier is forwarded."""
        # PUBREC for QoS 2; otherwise the answer's kind is the next number.
        answer = head.kind + (2 if head.first & 0x04 and head.kind == PUBLISH else 1)
        self._packets.setdefault(answer << 16 | head.packet_id, []).append(packet)

    def answered(self, head: FrameHead) -> Outstanding | None:
        """Remove the packet that this answer of the upstream is for, or return None."""
        key = head.kind << 16 | head.packet_id
        packets = self._packets.get(key)
        if packets is None:
            return None
        packet = packets.pop(0)
        if not packets:
            del self._packets[key]
        return packet

    def take_all(self) -> list[Outstanding]:
        """Remove all packets."""
        packets = [packet for each in self._packets.values() for packet in each]
        self._packets.clear()
        return packets


@final
class Unanswered:
    """The answers that the upstream owes to a client, also several for one packet identifier."""

    __slots__ = ("_last", "count")

    def __init__(self) -> None:
        self.count = 0
        self._last = 0

    def asked(self, head: FrameHead) -> None:
        """Note that a packet of the client begins."""
        kind = head.kind
        self._last = int(head.packet_id > 0 if kind == PUBLISH else kind in ASKS)
        self.count += self._last

    def cut(self) -> None:
        """The last packet stays incomplete, so the upstream does not answer it."""
        self.count -= self._last

    def answered(self, kind: int) -> bool:
        """Return True if a packet of the upstream is an answer."""
        if kind not in ANSWERS:
            return False
        self.count = max(0, self.count - 1)
        return True
