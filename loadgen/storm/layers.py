"""Layers between a client's socket and MQTT, TLS and WebSocket: bytes in, bytes out, no socket."""

import ssl
from typing import Final, Protocol, final

from loadgen.storm.access import ClientAccess

READ_BYTES: Final = 64 * 1024


class LayerError(Exception):
    """The broker does not speak the layer, or rejects the client. The text has the reason."""

    def __init__(self, why: str, *, is_tls: bool) -> None:
        super().__init__(why)
        self.is_tls = is_tls
        """True for TLS, False for WebSocket."""


class ClientLayer(Protocol):
    is_open: bool
    """True if the handshake is done."""

    def begin(self) -> None:
        """Start the handshake."""

    def feed(self, data: bytes) -> bytes:
        """Take bytes from below, and return those for above. Raises LayerError."""

    def seal(self, data: bytes) -> bytes:
        """Return the bytes for below: those of the layer itself, and `data` in its form."""


@final
class TlsLayer:
    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)
        self.is_open = False

    def begin(self) -> None:
        self._shake()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
            self.is_open = True
        except ssl.SSLWantReadError:
            pass

    def feed(self, data: bytes) -> bytes:
        self._in.write(data)
        plain = bytearray()
        try:
            if not self.is_open:
                self._shake()
            while self.is_open and (chunk := self._tls.read(READ_BYTES)):
                plain += chunk
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        except ssl.SSLCertVerificationError as error:
            why = f"its certificate is not trusted: {error.verify_message}"
            raise LayerError(why, is_tls=True) from error
        except ssl.SSLError as error:
            why = (error.reason or str(error)).lower().replace("_", " ")
            raise LayerError(why, is_tls=True) from error
        return bytes(plain)

    def seal(self, data: bytes) -> bytes:
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._out.read()


@final
class WebSocketLayer:
    """The library `websockets`, an extra, does the protocol."""

    def __init__(self, uri: str) -> None:
        from websockets.client import ClientProtocol
        from websockets.frames import DATA_OPCODES, Frame
        from websockets.typing import Subprotocol
        from websockets.uri import parse_uri

        self._protocol = ClientProtocol(parse_uri(uri), subprotocols=[Subprotocol("mqtt")])
        self._frame, self._payload = Frame, DATA_OPCODES
        self.is_open = False

    def begin(self) -> None:
        self._protocol.send_request(self._protocol.connect())

    def feed(self, data: bytes) -> bytes:
        protocol = self._protocol
        protocol.receive_data(data)
        events = protocol.events_received()
        if (error := protocol.handshake_exc or protocol.parser_exc) is not None:
            raise LayerError(str(error), is_tls=False)
        self.is_open = self.is_open or bool(events)
        frames = [event for event in events if isinstance(event, self._frame)]
        return b"".join(frame.data for frame in frames if frame.opcode in self._payload)

    def seal(self, data: bytes) -> bytes:
        if data:
            self._protocol.send_binary(data)
        return b"".join(self._protocol.data_to_send())


@final
class Stack:
    """The layers of one connection, from the socket upwards."""

    def __init__(self, layers: list[ClientLayer]) -> None:
        self._layers = layers

    @property
    def is_open(self) -> bool:
        return self._layers[-1].is_open

    def begin(self) -> None:
        self._layers[0].begin()

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the socket, and return those of MQTT. Raises LayerError."""
        for number, layer in enumerate(self._layers, 1):
            was_open = layer.is_open
            data = layer.feed(data) if data else b""
            if layer.is_open and not was_open and number < len(self._layers):
                self._layers[number].begin()
        return data

    def seal(self, data: bytes) -> bytes:
        """Return what the socket has to send for these bytes of MQTT, and for the layers."""
        for layer in reversed(self._layers):
            data = layer.seal(data)
        return data


def make_stack(
    access: ClientAccess, context: ssl.SSLContext | None, host: str, place: str
) -> Stack:
    """Return the layers of a connection to a host, which requests name as `place`."""
    layers: list[ClientLayer] = []
    if context is not None:
        layers.append(TlsLayer(context, host))
    if access.scheme.has_websocket:
        layers.append(WebSocketLayer(f"{access.scheme}://{place}{access.path}"))
    return Stack(layers)
