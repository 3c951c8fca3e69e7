"""One MQTT 5 client on a blocking socket, for commands that send or show a few messages."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from socket import create_connection
from typing import Final, Self, TypeVar, final

from flowguard.address import Address
from flowguard.codec import PINGREQ_FRAME, PacketDecoder, encode
from flowguard.codec.packets import Connack, Connect, Disconnect, Packet, Pingresp
from flowguard.errors import PeerError
from flowguard.types import MQTT_5, Publish, ReasonCode
from loadgen.storm.access import ClientAccess
from loadgen.storm.layers import LayerError, Stack, make_stack

ANSWER_S: Final = 10.0
"""Maximum wait for an answer of the broker, seconds."""
KEEP_ALIVE_S: Final = 60
PACKET_BYTES_MAX: Final = 256 * 1024 * 1024
READ_BYTES: Final = 64 * 1024
P = TypeVar("P")


class ClientError(Exception):
    """The broker is not there, rejects something, or does not answer. The text has the reason."""


@final
class OneClient:
    def __init__(self, address: Address, access: ClientAccess) -> None:
        """Connect to the broker's port, and do the handshakes of TLS and WebSocket.

        Raises ClientError, and ConfigError for certificates.
        """
        assert address.port is not None
        context = access.context()
        self._decoder = PacketDecoder(PACKET_BYTES_MAX, MQTT_5, "client")
        self._stack: Stack | None = None
        self._ping_s: float | None = None
        """Time without a packet after which it sends PINGREQ, or None before CONNACK."""
        self._sent_s = 0.0
        self._early: deque[Packet] = deque()
        """Messages that came before an answer."""
        with _explained(address):
            self._sock = create_connection((address.host, address.port), ANSWER_S)
            self._sock.settimeout(ANSWER_S)
            if address.scheme.has_tls or address.scheme.has_websocket:
                self._stack = make_stack(access, context, address.host, address.place)
                self._stack.begin()
                while not self._stack.is_open:
                    self._send_bytes(b"")
                    self._receive()
        self._address = address
        self._access = access

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def connect(self, client_id: str) -> None:
        """Become a client with a clean session. Raises ClientError."""
        user = self._access.user(0)
        password = None if user.password is None else user.password.encode()
        self.send(
            Connect(client_id, keep_alive_s=KEEP_ALIVE_S, username=user.name, password=password)
        )
        connack = self.answer(Connack)
        if connack.reason_code:
            raise ClientError(f"the broker rejects the client: {code_text(connack.reason_code)}")
        self._ping_s = (connack.properties.server_keep_alive or KEEP_ALIVE_S) / 2

    def send(self, packet: Packet) -> None:
        with _explained(self._address):
            self._send_bytes(encode(packet, MQTT_5))

    def answer(self, kind: type[P]) -> P:
        """Return the next packet but messages, which must be of that kind. Raises ClientError."""
        until_s, early = time.monotonic() + ANSWER_S, deque[Packet]()
        while isinstance(packet := self.next(until_s), Publish):
            early.append(packet)
        self._early = early
        if isinstance(packet, kind):
            return packet
        got = "nothing" if packet is None else type(packet).__name__.upper()
        raise ClientError(f"expected {kind.__name__.upper()} from the broker, but got {got}")

    def next(self, until_s: float | None) -> Packet | None:
        """Return the next packet, or None if none comes until then (`time.monotonic`).

        While it waits, it keeps the connection alive. Raises ClientError.
        """
        if self._early:
            return self._early.popleft()
        while True:
            with _explained(self._address):
                packet = self._decoder.next()
                if packet is None:
                    if not self._wait(until_s):
                        return None
                    self._receive()
            if isinstance(packet, Disconnect):
                raise ClientError(f"the broker disconnects: {code_text(packet.reason_code)}")
            if packet is not None and not isinstance(packet, Pingresp):
                return packet

    def leave(self) -> None:
        """Disconnect, and wait until the broker has read everything."""
        self.send(Disconnect())
        self._sock.settimeout(ANSWER_S)
        with _explained(self._address):
            while self._sock.recv(READ_BYTES):
                pass

    def _wait(self, until_s: float | None) -> bool:
        """Limit the next read to the time left or the next PINGREQ; False if no time is left."""
        now_s = time.monotonic()
        if until_s is not None and now_s >= until_s:
            return False
        ends = [] if until_s is None else [until_s]
        if self._ping_s is not None:
            if now_s >= self._sent_s + self._ping_s:
                self._send_bytes(PINGREQ_FRAME)
            ends.append(self._sent_s + self._ping_s)
        self._sock.settimeout(max(0.001, min(ends) - now_s))
        return True

    def _receive(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except TimeoutError:
            if self._ping_s is None:
                raise
            return
        if not data:
            raise ClientError("the broker has closed the connection")
        if self._stack is not None:
            data = self._stack.feed(data)
            self._send_bytes(b"")  # A layer may have to answer.
        if data:
            self._decoder.feed(data)

    def _send_bytes(self, data: bytes | bytearray) -> None:
        out = bytes(data) if self._stack is None else self._stack.seal(bytes(data))
        if out:
            self._sock.settimeout(ANSWER_S)
            self._sock.sendall(out)
            self._sent_s = time.monotonic()


def code_text(code: int) -> str:
    """Return a reason code with its name: `0x87 (not authorized)`."""
    known = code in set(ReasonCode)
    name = f" ({ReasonCode(code).name.lower().replace('_', ' ')})" if known else ""
    return f"0x{code:02X}{name}"


@contextmanager
def _explained(address: Address) -> Iterator[None]:
    """Turn errors of the socket, its layers and packets into ClientError."""
    try:
        yield
    except ConnectionRefusedError as error:
        raise ClientError(f"no broker listens on {address}") from error
    except TimeoutError as error:
        raise ClientError(f"{address} does not answer within {ANSWER_S:g} s") from error
    except LayerError as error:
        raise ClientError(f"{address}: {error}") from error
    except PeerError as error:
        raise ClientError(f"{address} does not speak MQTT 5: {error}") from error
    except OSError as error:
        raise ClientError(f"{address}: {error.strerror or error}") from error
