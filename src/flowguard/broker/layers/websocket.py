"""WebSocket: an object with the methods of a socket, for MQTT in binary frames [RFC 6455].

The library `websockets` checks the opening handshake. This module parses frames, because it passes
on payload before a frame is complete. So a peer can make the broker hold only a header, or a
control frame of 125 bytes. There are no extensions, so nothing is compressed.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from socket import SHUT_WR
from struct import Struct, error
from typing import Any, Final, final
from urllib.parse import urlsplit

from mypy_extensions import mypyc_attr
from websockets.exceptions import InvalidOrigin, NegotiationError
from websockets.server import ServerProtocol
from websockets.utils import apply_mask as _apply_mask_slowly

from flowguard.broker.layers.layer import Answering, ByteStream, Layer, end_reading
from flowguard.node.connect.accept_state import LayerFault, OnFault

try:
    from websockets.speedups import apply_mask
except ImportError:
    apply_mask = _apply_mask_slowly

SUBPROTOCOL: Final = "mqtt"
REQUEST_MAX_BYTES: Final = 8 * 1024
FRAME_BYTES: Final = 16 * 1024
"""Maximum payload of a sent frame, and of framed data that wait for the socket, bytes."""
CONTROL_MAX_BYTES: Final = 125
ANY: Final = "*"

FINAL: Final = 0x80
RESERVED: Final = 0x70
MASKED: Final = 0x80
CONTROL: Final = 0x08
CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

NORMAL: Final = 1000
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED: Final = 1003
NOT_UTF_8: Final = 1007
SAYABLE: Final = frozenset((*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)))
"""Close codes that an endpoint may send. 1004 to 1006 and 1015 stand for events without a frame,
others have no meaning [RFC 6455, 7.4]; 1012 to 1014 were registered later."""
REJECTED: Final = {
    LayerFault.NOT_WEBSOCKET: "WebSocket handshake: the request is not valid",
    LayerFault.ORIGIN: "WebSocket handshake: the web page's origin is not in network.origins",
    LayerFault.SUBPROTOCOL: "WebSocket handshake: the client does not offer the subprotocol mqtt",
}
SHORT: Final = Struct("!H")
LONG: Final = Struct("!Q")

silent = logging.getLogger("flowguard.websocket")
silent.addHandler(logging.NullHandler())
silent.propagate = False


@mypyc_attr(native_class=False)
class _Broken(ConnectionResetError):
    """The peer violates WebSocket; the answer is this close code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


@final
@dataclass(frozen=True, slots=True)
class OriginRule:
    """Web pages that may connect. A client that is no web page sends no origin, and may always."""

    origins: Collection[str] = ()
    """Origins as a browser sends them, such as `https://shop.example`, or `*` for all."""

    def allows(self, origin: str | None, host: str | None) -> bool:
        """Return True if a page of `origin` may connect to the broker under the name `host`.

        A page from the broker's own IP address may. A page from a host name of the broker may only
        if that is listed, because any page can point its own name to our address (DNS rebinding).
        """
        if origin is None or ANY in self.origins or origin.lower() in self.origins:
            return True
        try:
            parts = urlsplit(origin)
            name = parts.hostname
        except ValueError:
            return False
        return name is not None and parts.netloc == host and _is_address(name)


def _is_address(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


@final
class FrameReader:
    """Splits the byte stream of a client into frames."""

    __slots__ = ("_is_open", "_left_bytes", "_mask", "_rest", "broken", "controls")

    def __init__(self) -> None:
        self._rest = b""
        """Incomplete header or control frame."""
        self._left_bytes = 0
        """Bytes of the current data frame's payload that have not come."""
        self._mask = b"\0\0\0\0"
        """Mask, rotated so that it begins with the byte for the next one of the payload."""
        self._is_open = False
        """True if the current message continues in another frame."""
        self.controls: list[tuple[int, bytes]] = []
        """Control frames that have come: opcode and payload."""
        self.broken: _Broken | None = None
        """Why a frame after the last payload breaks WebSocket, or None if none does."""

    @property
    def held_bytes(self) -> int:
        """Bytes kept until more comes."""
        return len(self._rest)

    def feed(self, data: bytes) -> bytes:
        """Return the payload in `data`; add control frames to `controls`, with CLOSE as the last.

        Raises `ConnectionResetError` if it breaks WebSocket, or is text [MQTT-6.0.0-1]. If payload
        came before that, it is returned, and `broken` is set.
        """
        if self._rest:
            data = self._rest + data
            self._rest = b""
        payload: list[bytes] = []
        place = 0
        while place < len(data):
            if self._left_bytes:
                piece = data[place : place + self._left_bytes]
                payload.append(apply_mask(piece, self._mask))
                place += len(piece)
                self._left_bytes -= len(piece)
                turn = len(piece) % 4
                self._mask = self._mask[turn:] + self._mask[:turn]
                continue
            try:
                header_bytes = self._header(data, place)
            except _Broken as broken:
                if not payload:
                    raise
                self.broken = broken.with_traceback(None)  # It would keep its frames in memory.
                break
            if not header_bytes:
                self._rest = data[place:]
                break
            place += header_bytes
            if self.controls and self.controls[-1][0] == CLOSE:
                break  # Data after a close frame are ignored.
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _header(self, data: bytes, place: int) -> int:
        """Read a header, and a control frame to its end; return its size, or 0 if incomplete."""
        if len(data) - place < 2:
            return 0
        first, second = data[place], data[place + 1]
        opcode, size_bytes = first & 0x0F, second & 0x7F
        if first & RESERVED:
            raise _Broken(PROTOCOL_ERROR, "a reserved bit is set, and no extension is in use")
        if not second & MASKED:
            raise _Broken(PROTOCOL_ERROR, "a client must mask its frames")
        if opcode & CONTROL:
            return self._control(data, place, opcode, size_bytes, is_final=bool(first & FINAL))
        self._check_data(opcode)
        mask_at = place + 2
        try:
            if size_bytes == 126:
                (size_bytes,) = SHORT.unpack_from(data, mask_at)
                mask_at += SHORT.size
            elif size_bytes == 127:
                (size_bytes,) = LONG.unpack_from(data, mask_at)
                mask_at += LONG.size
        except error:
            return 0
        if len(data) < mask_at + 4:
            return 0
        if size_bytes >> 63:
            raise _Broken(PROTOCOL_ERROR, "a frame of more than 2**63 bytes")
        self._mask = data[mask_at : mask_at + 4]
        self._left_bytes = size_bytes
        self._is_open = not first & FINAL
        return mask_at + 4 - place

    def _check_data(self, opcode: int) -> None:
        if opcode == TEXT:
            raise _Broken(UNSUPPORTED, "MQTT is spoken in binary frames")
        if opcode not in (BINARY, CONTINUATION):
            raise _Broken(PROTOCOL_ERROR, "an unknown kind of frame")
        if self._is_open != (opcode == CONTINUATION):
            raise _Broken(PROTOCOL_ERROR, "a message begins within another, or goes on without one")

    def _control(
        self, data: bytes, place: int, opcode: int, size_bytes: int, *, is_final: bool
    ) -> int:
        if not is_final or size_bytes > CONTROL_MAX_BYTES or opcode not in (CLOSE, PING, PONG):
            raise _Broken(PROTOCOL_ERROR, "a control frame that is cut, too large or unknown")
        end = place + 6 + size_bytes
        if len(data) < end:
            return 0
        payload = apply_mask(data[place + 6 : end], data[place + 2 : place + 6])
        self.controls.append((opcode, payload))
        return end - place


def broken_close(payload: bytes) -> int:
    """Return the close code that answers an invalid close frame, or 0 if the frame is valid.

    A valid payload is empty, or a code and optionally a reason in UTF-8 [RFC 6455, 5.5.1].
    """
    if not payload:
        return 0
    if len(payload) < SHORT.size or SHORT.unpack_from(payload)[0] not in SAYABLE:
        return PROTOCOL_ERROR
    try:
        payload[SHORT.size :].decode()
    except UnicodeDecodeError:
        return NOT_UTF_8
    return 0


@final
class WebSocketStream(Answering):
    """WebSocket on a stream (`broker.layers.layer`), which may be TLS."""

    __slots__ = (
        "_lower",
        "_origins",
        "_reader",
        "_request",
        "established",
    )

    def __init__(
        self,
        sock: ByteStream,
        lower: Layer | None,
        origins: OriginRule,
        on_fault: OnFault,
    ) -> None:
        """`lower`: the layer that `sock` is, or None if it is a socket."""
        super().__init__(sock, on_fault)
        self._lower = lower
        self._origins = origins
        self._request = b""
        self._reader = FrameReader()
        self.established = False

    @property
    def begun(self) -> bool:
        """True if the costly part of the handshake is done, in the layer below or in this one."""
        return self.established if self._lower is None else self._lower.begun

    @property
    def identity(self) -> str | None:
        """The name that the peer has proved in the layer below."""
        return None if self._lower is None else self._lower.identity

    def recv(self, size_bytes: int, flags: int = 0) -> bytes:
        """Return payload of the frames that came."""
        data = self._sock.recv(size_bytes, flags)
        if not data:
            if not (self.established or self._said_last):
                why = "WebSocket handshake: the client closed" if self._request else ""
                self._fail(LayerFault.LEFT, why)
            return b""
        if self._said_last:
            raise BlockingIOError  # Data after our close are ignored.
        try:
            if not self.established:
                data = self._open(data)
            payload = self._reader.feed(data)
            if self._reader.controls:
                self._answer()
        except _Broken as broken:
            self._break(broken)
            raise
        if self._reader.broken is not None:
            self._break(self._reader.broken)
            end_reading(self._sock)
        if not payload and not self._said_last:
            raise BlockingIOError
        return payload

    def _break(self, broken: _Broken) -> None:
        """Send the peer a close frame for its violation."""
        self._fail(LayerFault.FRAME, f"WebSocket: {broken}")
        self._pending += _frame(CLOSE, SHORT.pack(broken.code))
        self._leave()

    def _open(self, data: bytes) -> bytes:
        """Do the opening handshake; return the data after it."""
        self._request += data
        head, end, rest = self._request.partition(b"\r\n\r\n")
        if len(head) > REQUEST_MAX_BYTES or (not end and not b"GET ".startswith(head[:4])):
            why = "WebSocket handshake: the first bytes are no request for one"
            self._fail(LayerFault.NOT_WEBSOCKET, why)
            raise ConnectionResetError(why)
        if not end:
            raise BlockingIOError
        self._request = b""
        protocol = ServerProtocol(subprotocols=[SUBPROTOCOL], logger=silent)  # type: ignore[list-item,unused-ignore]
        protocol.receive_data(head + end)
        fault = self._judge(protocol)
        self._pending += b"".join(protocol.data_to_send())
        if fault is not None:
            why = REJECTED[fault]
            self._fail(fault, why)
            self.flush()
            raise ConnectionResetError(why)
        self.established = True
        self._leave()
        return rest

    def _judge(self, protocol: ServerProtocol) -> LayerFault | None:
        """Answer the request; return why it is rejected, or None if it is accepted."""
        events = protocol.events_received()
        if not events:
            return LayerFault.NOT_WEBSOCKET
        request: Any = events[0]
        try:
            origin, host = request.headers.get("Origin"), request.headers.get("Host")
        except LookupError:  # The header occurs several times.
            origin, host = "", None
        if not self._origins.allows(origin, host):
            protocol.send_response(protocol.reject(403, "This origin may not connect.\n"))
            return LayerFault.ORIGIN
        protocol.send_response(protocol.accept(request))
        refusal = protocol.handshake_exc
        if refusal is None:
            return None
        if isinstance(refusal, InvalidOrigin):
            return LayerFault.ORIGIN
        is_other = isinstance(refusal, NegotiationError)
        return LayerFault.SUBPROTOCOL if is_other else LayerFault.NOT_WEBSOCKET

    def _answer(self) -> None:
        """Answer pings; answer a close frame and end the stream."""
        controls, self._reader.controls = self._reader.controls, []
        for opcode, payload in controls:
            if opcode == PING:
                self._pending += _frame(PONG, payload)
            elif opcode == CLOSE:
                code = broken_close(payload)
                if code:
                    self._fail(LayerFault.FRAME, "WebSocket: a close frame with a wrong content")
                self._pending += _frame(CLOSE, SHORT.pack(code) if code else payload[:2])
                self._said_last = True
        self._leave()
        if self._said_last:
            end_reading(self._sock)

    def send(self, data: bytes, flags: int = 0) -> int:
        """Send as much as the stream below takes, in frames. Framed data count as sent, and so do
        data after a close frame, which must not be sent any more."""
        if self._said_last:
            return len(data)
        if not self.established or not self.flush():
            raise BlockingIOError
        sent_bytes = 0
        while sent_bytes < len(data):
            piece = data[sent_bytes : sent_bytes + FRAME_BYTES]
            self._pending = _frame(BINARY, piece)
            sent_bytes += len(piece)
            if not self.flush():
                break
        return sent_bytes

    def flush(self) -> bool:
        """Send framed data; return False if some are left, in this layer or below."""
        return super().flush() and (self._lower is None or self._lower.flush())

    def shutdown(self, how: int) -> None:
        """Send a close frame, and end the stream below."""
        if how == SHUT_WR and not self._said_last:
            self._said_last = True
            if self.established:
                self._pending += _frame(CLOSE, SHORT.pack(NORMAL))
                self.flush()
            elif self._lower is None or self._lower.established:
                self._on_fault(LayerFault.LATE, self, "WebSocket handshake: it did not end in time")
        self._sock.shutdown(how)

    def _fail(self, fault: LayerFault, why: str) -> None:
        self._said_last = True
        if self._lower is None or self._lower.established:
            self._on_fault(fault, self, why)  # Otherwise the layer below has counted it.


def _frame(opcode: int, payload: bytes) -> bytes:
    """Return a whole frame of a server, which uses no mask."""
    size_bytes = len(payload)
    if size_bytes < 126:
        return bytes((FINAL | opcode, size_bytes)) + payload
    if size_bytes < 65_536:
        return bytes((FINAL | opcode, 126)) + SHORT.pack(size_bytes) + payload
    return bytes((FINAL | opcode, 127)) + LONG.pack(size_bytes) + payload
