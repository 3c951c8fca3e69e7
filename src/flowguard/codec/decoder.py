"""Bytes to packets, however the bytes are split.

Theory of operation. Unread bytes are in up to three places, in this order:

    _data[_pos:]    the bytes that `next()` reads: one chunk as it came from the socket, not copied
    _deferred       complete packets that the control lane has skipped
    _tail           bytes that were fed later and not parsed

Usually only `_data` has bytes. A packet too large for its chunk collects in `_tail` and is joined
once, when it is complete, so feeding costs O(n) however the bytes are split. `_deferred` is None
until `next_control()` has looked ahead. From then on `_data` also contains skipped packets only, so
the look-ahead continues at the start of `_tail`. If all three are empty, nothing is buffered.

An invalid packet stays in place: every further call raises again.
"""

from typing import Final, Literal, NoReturn, final

from mypy_extensions import mypyc_attr

from flowguard.codec import tables as t
from flowguard.codec.burst import Burst, find_burst
from flowguard.codec.connect import decode_connect, decode_protocol
from flowguard.codec.packets import Packet, Puback, Subscribe, Unsubscribe
from flowguard.codec.primitives import remaining_length
from flowguard.codec.publish import (
    check_publish_flags,
    decode_carefully,
    decode_publish,
    known_topics,
    publish_at_sight,
)
from flowguard.codec.sides import FROM_CLIENT, FROM_SERVER, Body
from flowguard.codec.strict import check_strings
from flowguard.errors import MalformedPacket, PeerError, ProtocolViolation
from flowguard.types import MQTT_5, MQTT_31, NO_PROPERTIES, Publish, ReasonCode

_CONTROL: Final = frozenset((t.PINGREQ, t.PUBACK, t.PUBREC, t.PUBREL, t.PUBCOMP))
COUNTED: Final = frozenset((Publish, Subscribe, Unsubscribe))
"""The packets of a client that count against its admission window."""
BATCH_MAX: Final = 1_000
"""Maximum number of packets of a batch in which none counts: 64 KiB may be 32,768 PINGREQs, fifty
milliseconds of work. A sequence of PUBACKs takes a tenth of that work, and may be longer."""
_NOTHING: Final = b""
_PLAIN: Final = frozenset(bytes((first,)) for first in range(0x30, 0x41))
_SUCCESS: Final = ReasonCode.SUCCESS


@mypyc_attr(acyclic=True)
@final
class PacketDecoder:
    """Feed bytes, take packets. An idle decoder holds two numbers and shared empties, no buffer.

    `version` is 0 at first: only CONNECT is valid, and sets it to 3, 4 or 5. If that CONNECT
    raises, the answer is in `version`; if that is still 0, the connection is closed without an
    answer.
    """

    __slots__ = (
        "version",
        "packet_size_max",
        "_from_client",
        "_strict",
        "has_failed",
        "_data",
        "_pos",
        "_deferred",
        "_tail",
    )

    def __init__(
        self,
        packet_size_max: int,
        version: int = 0,
        role: Literal["server", "client"] = "server",
        *,
        strict: bool = False,
    ) -> None:
        """`packet_size_max`: maximum size of a whole packet with its fixed header, bytes; `role`:
        our side; `strict`: reject control characters in strings, which rules out the fast paths."""
        assert version or role == "server", "a client knows which version it speaks"
        self.version = version
        self.packet_size_max = packet_size_max
        self._from_client = role == "server"
        self._strict = strict
        self.has_failed = False  # Compiled, it lies beside the other flags.
        """True if the next packet is invalid, and the next call will raise."""
        self._data = _NOTHING
        self._pos = 0
        self._deferred: bytearray | None = None
        self._tail: bytearray | None = None

    def clear(self) -> None:
        """Drop all buffered bytes; nothing more is decoded."""
        self._data = _NOTHING
        self._pos = 0
        self._deferred = self._tail = None
        self.has_failed = False

    def rest(self) -> bytes:
        """Return the buffered bytes; if the control lane has looked ahead, without its packets."""
        return self._data[self._pos :] + (self._deferred or b"") + (self._tail or b"")

    @property
    def has_deferred(self) -> bool:
        """True if complete packets follow the end that `next_control` found."""
        return bool(self._deferred) or self._pos < len(self._data)

    @property
    def buffered_bytes(self) -> int:
        """Bytes received and not yet decoded."""
        size = len(self._data) - self._pos
        if self._deferred is not None:
            size += len(self._deferred)
        if self._tail is not None:
            size += len(self._tail)
        return size

    @property
    def is_empty(self) -> bool:
        return not self._data and self._tail is None

    def compact(self) -> int:
        """Release the bytes that were read; return the number that stay. Amortised O(bytes
        received)."""
        pos = self._pos
        if pos and 2 * pos >= len(self._data):
            self._data = self._data[pos:]
            self._pos = 0
        return self.buffered_bytes + self._pos

    @property
    def declared_bytes(self) -> int:
        """Declared size of the next packet, bytes, or 0 if no packet can be seen yet."""
        head = self._data[self._pos : self._pos + 5] + (self._tail or _NOTHING)[:5]
        try:
            size_bytes, start = remaining_length(head, 0, self.version)
        except (IndexError, MalformedPacket):
            return 0
        return start + size_bytes

    def feed(self, data: bytes) -> None:
        """Add received bytes. Amortised O(len(data)), without a copy if all before was read."""
        if self._tail is not None:
            self._tail += data
            return
        unread = len(self._data) - self._pos
        if unread == 0:
            self._data = data
            self._pos = 0
        elif unread <= len(data):  # Otherwise many small chunks would copy a large rest each time.
            self._data = self._data[self._pos :] + data
            self._pos = 0
        else:
            self._tail = bytearray(data)

    def at_sight(self, data: bytes) -> Publish | None:
        """Return the PUBLISH in a chunk that is one small plain PUBLISH, without buffering.

        Clients that wait for each answer send such chunks. Plain means QoS 0 or 1, no flags, no
        properties, and a known topic. For anything else, or if bytes are buffered, it returns None
        and the caller must `feed` the chunk.
        """
        if self._data or self._tail is not None or self._strict or not self.version:
            return None
        return publish_at_sight(data, self.version, self.packet_size_max)

    def burst(self, room: int) -> Burst | None:
        """Return the next burst, up to the given number of packets, or None; consume nothing."""
        if self._strict or not self.version:
            return None
        return find_burst(self._data, self._pos, room, self.version, self.packet_size_max)

    def take(self, burst: Burst) -> None:
        """Consume a burst that `burst` has returned."""
        self._pos += len(burst.frames)
        if self._pos == len(self._data):
            self._data = _NOTHING
            self._pos = 0

    def next(self) -> Packet | None:
        """Return the next complete packet in order, or None if more bytes are needed.

        Raises only MalformedPacket and ProtocolViolation.
        """
        data = self._data
        pos = self._pos
        if pos == len(data) and self._tail is None:
            self._data = _NOTHING
            self._pos = 0
            return None
        try:
            first = data[pos]
            size = data[pos + 1]
            start = pos + 2
            if size >= 0x80:
                high = data[start]
                if 0 < high < 0x80:
                    size += (high << 7) - 0x80
                    start += 1
                else:
                    self._check_first_byte(first)
                    size, start = remaining_length(data, pos, self.version)
        except IndexError:
            return self._next_of_more()
        end = start + size
        if end - pos > self.packet_size_max:
            self._check_first_byte(first)  # The result must not depend on how bytes are split.
            raise _too_large()
        if end > len(data):
            return self._next_of_more()
        packet: Packet
        version = self.version
        if version and 0x30 <= first < 0x40:
            packet = decode_publish(data, start, end, first & 15, version, self._from_client)
        else:
            packet = self._decode(data, pos, start, end)
        if self._strict:
            check_strings(packet)
        self._pos = end
        return packet

    def next_batch(self, room: int) -> list[Packet]:
        """Return complete packets in order, until the given number of them count; [] at the end.

        PUBLISH, SUBSCRIBE and UNSUBSCRIBE count against a window. If fewer have counted, no
        complete packet is left, unless the next one is invalid (`has_failed`), or there are
        `BATCH_MAX` before it. Raises like `next()`, but only if no valid packet comes before the
        invalid one.
        """
        packets: list[Packet] = []
        try:
            while room > 0 and len(packets) < BATCH_MAX:
                if not self._strict and self._data[self._pos : self._pos + 1] in _PLAIN:
                    room = self._take_plain(packets, room)
                    if not room or (self._pos == len(self._data) and self._tail is None):
                        break
                packet = self.next()
                if packet is None:
                    break
                packets.append(packet)
                if packet.__class__ in COUNTED:
                    room -= 1
        except PeerError:
            if not packets:
                raise
            self.has_failed = True
        if self._pos == len(self._data):
            self._data = _NOTHING
            self._pos = 0
        return packets

    def fail(self) -> NoReturn:
        """Raise the error that `has_failed` announces, after all valid packets before it."""
        assert self.has_failed
        self.next()
        raise AssertionError("a bad packet has become a good one")

    def _take_plain(self, packets: list[Packet], room: int) -> int:  # noqa: C901, PLR0915
        """Append the packets that `next()` would return while they are PUBLISH or PUBACK.

        Return how many packets may still count. As the hottest loop, it parses the plain forms
        of both itself, with local names only. A packet counts once it is known to be complete.
        """
        version = self.version
        if version == 0:
            return room
        is_5 = version == MQTT_5
        data = self._data
        pos = self._pos
        unread = len(data)
        size_max = self.packet_size_max
        flags = t.PUBLISH_FLAGS
        topics = known_topics
        append = packets.append
        try:
            while room and pos < unread:
                first = data[pos]
                size = data[pos + 1]
                start = pos + 2
                if size >= 0x80:
                    high = data[start]
                    if not 0 < high < 0x80:
                        break
                    size += (high << 7) - 0x80
                    start += 1
                end = start + size
                if end > unread or end - pos > size_max:
                    break
                if 0x30 <= first < 0x40:
                    after = start + 2 + (data[start] << 8 | data[start + 1])
                    topic = topics.get(data[start + 2 : after])
                    marks = flags[first - 0x30]
                    if topic is not None and marks is not None:
                        qos, retain, dup = marks
                        if qos:
                            packet_id = data[after] << 8 | data[after + 1]
                            after += 2
                        else:
                            packet_id = 0
                        if is_5:
                            properties_length = data[after]
                            after += 1
                        else:
                            properties_length = 0
                        if after <= end and not properties_length and (packet_id or not qos):
                            body = data[after:end]
                            append(Publish(topic, body, qos, retain, dup, packet_id, NO_PROPERTIES))
                            room -= 1
                            pos = end
                            continue
                    self._pos = pos
                    append(
                        decode_carefully(data, start, end, first & 15, version, self._from_client)
                    )
                    room -= 1
                elif first == 0x40 and size == 2:
                    packet_id = data[start] << 8 | data[start + 1]
                    if packet_id == 0:
                        break
                    append(Puback(packet_id, _SUCCESS, NO_PROPERTIES))
                else:
                    break
                pos = end
        except IndexError:
            pass  # A header or a field is incomplete; `next()` finds out which.
        self._pos = pos
        return room

    def take_pubacks(self) -> list[int]:
        """Return the identifiers of the next PUBACKs without a reason code, or [].

        `next_control` would return them one by one. This is for clients that only receive.
        """
        found: list[int] = []
        data = self._data
        pos = self._pos
        end = len(data) - 3 if self.version else 0
        while pos < end and data[pos] == 0x40 and data[pos + 1] == 2:
            packet_id = data[pos + 2] << 8 | data[pos + 3]
            if packet_id == 0:
                break
            found.append(packet_id)
            pos += 4
        self._pos = pos
        return found

    def next_control(self) -> Packet | None:
        """The control lane: return the next PINGREQ, PUBACK, PUBREC, PUBREL or PUBCOMP out of
        order.

        It is for a paused client. All other packets stay, in order and undecoded, for `next()`.
        Returns None if no further such packet is complete. Framing errors anywhere in the received
        bytes are raised at once. The cost is amortised O(bytes), as each packet is skipped once.
        """
        if self.version == 0:
            return None  # Nothing may come before CONNECT, so nothing may overtake it.
        if self._deferred is None:
            unread = bytearray(self._data[self._pos :])
            if self._tail is not None:
                unread += self._tail
            self._data = _NOTHING
            self._pos = 0
            self._tail = None
            if not unread:
                return None
            self._deferred = bytearray()
            self._tail = unread
        assert self._tail is not None
        tail = self._tail
        pos = 0
        while True:
            start, end = self._frame(tail, pos)
            complete = 0 < end <= len(tail)
            if not complete or tail[pos] >> 4 in _CONTROL:
                break
            pos = end
        packet: Packet | None = None
        passed = pos
        if complete:
            first = tail[pos]
            body = bytes(tail[start:end])
            packet = self._bodies()[first >> 4](body, 0, len(body), first & 15, self.version)
            passed = end
            if self._strict:
                check_strings(packet)
        self._deferred += tail[:pos]
        del tail[:passed]  # Moves the start of a bytearray: O(1) except for occasional halving.
        return packet

    def _next_of_more(self) -> Packet | None:
        """Return the packet that `next()` returns if it does not end in `_data`."""
        if self._pos:
            self._data = self._data[self._pos :]  # The start of one packet; this frees the chunk.
            self._pos = 0
        rest = self._data
        tail = self._tail
        if self._deferred is not None:
            assert not rest
            assert tail is not None
            if self._deferred:
                self._data = bytes(self._deferred)
                self._deferred = bytearray()
                return self.next()
            end = self._frame(tail, 0)[1]
            if tail and not 0 < end <= len(tail):
                return None  # A large packet continues to collect in place.
            self._deferred = None
        else:
            end = self._frame(rest, 0)[1]
            if tail is None or end > len(rest) + len(tail):
                return None
        self._data = rest + tail
        self._tail = None
        return self.next() if self._data else None

    def _frame(self, buffer: bytes | bytearray, pos: int) -> tuple[int, int]:
        """Return (start of the body, end) of the packet at `pos`; the end may be beyond the buffer.

        Returns (0, 0) if the fixed header is incomplete. Checks everything in the fixed header.
        """
        if pos >= len(buffer):
            return 0, 0
        self._check_first_byte(buffer[pos])
        try:
            size, start = remaining_length(buffer, pos, self.version)
        except IndexError:
            return 0, 0
        if start + size - pos > self.packet_size_max:
            raise _too_large()
        return start, start + size

    def _check_first_byte(self, first: int) -> None:
        packet_type = first >> 4
        flags = first & 15
        version = self.version
        if version == 0 and packet_type != t.CONNECT:
            # [MQTT-3.1.0-1] [v3 MQTT-3.1.0-1]
            raise ProtocolViolation("the first packet is not a CONNECT")
        if packet_type == t.PUBLISH:
            check_publish_flags(flags)
            return
        if packet_type == 0 or (packet_type == t.AUTH and version != MQTT_5):
            raise MalformedPacket("a reserved packet type")
        fixed = t.FIXED_FLAGS[packet_type]
        if packet_type == t.CONNECT and version == 0:
            return  # `_open` checks the flags, when it knows the version.
        if flags != fixed and not (version == MQTT_31 and fixed and flags == fixed | 8):
            # MQTT 3.1 marked repeated PUBREL, SUBSCRIBE and UNSUBSCRIBE with DUP.
            # [MQTT-2.1.3-1, MQTT-3.6.1-1, MQTT-3.8.1-1, MQTT-3.10.1-1, MQTT-3.14.1-1]
            # [MQTT-3.15.1-1] [v3 MQTT-2.2.2-1, v3 MQTT-2.2.2-2, v3 MQTT-3.6.1-1]
            # [v3 MQTT-3.8.1-1, v3 MQTT-3.10.1-1, v3 MQTT-3.14.1-1]
            raise _reserved_flags()
        if packet_type == t.CONNECT:
            # [MQTT-3.1.0-2] [v3 MQTT-3.1.0-2]
            raise ProtocolViolation("a second CONNECT, or one from a server")
        if packet_type not in self._bodies():
            raise ProtocolViolation("a packet that this side never sends")

    def _decode(self, data: bytes, pos: int, start: int, end: int) -> Packet:
        """Return the packet at `pos`, of any type, with its body from `start` to `end`."""
        first = data[pos]
        self._check_first_byte(first)
        if first >> 4 == t.CONNECT:
            return self._open(data, pos, start, end)
        return self._bodies()[first >> 4](data, start, end, first & 15, self.version)

    def _open(self, data: bytes, pos: int, start: int, end: int) -> Packet:
        """Return the CONNECT that opens the connection and determines its version."""
        version, supported, at = decode_protocol(data, start, end)
        self.version = version
        if not supported:
            # [MQTT-3.1.2-2] [v3 MQTT-3.1.2-2]
            raise ProtocolViolation(
                "a protocol level that is not served", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
            )
        remaining_length(data, pos, version)  # The version determines the strictness.
        if data[pos] != 0x10 and version != MQTT_31:
            raise _reserved_flags()
        return decode_connect(data, at, end, version)

    def _bodies(self) -> dict[int, Body]:
        return FROM_CLIENT if self._from_client else FROM_SERVER


def _reserved_flags() -> MalformedPacket:
    return MalformedPacket("reserved flags of the fixed header")


def _too_large() -> MalformedPacket:
    return MalformedPacket("larger than the maximum packet size", ReasonCode.PACKET_TOO_LARGE)
