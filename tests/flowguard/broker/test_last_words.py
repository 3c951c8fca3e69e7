"""Last words: what a client sends together with the end of its layers is worked off."""

import socket
import ssl
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from websockets.frames import Frame, Opcode

from flowguard.broker.layers.layer import ByteStream
from flowguard.broker.layers.tls import TlsFiles, TlsKeeper, TlsStream
from flowguard.broker.layers.websocket import OriginRule, WebSocketStream
from flowguard.broker.sockets.listening import open_doorways
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Disconnect, Packet, Will
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.accept_state import LayerFault
from flowguard.types import MQTT_5, Publish
from tests.support.authority import Authority, Pair
from tests.support.real import TEST_S, Wire, broker, connect, connect_packet, until

HOST = "127.0.0.1"
SCHEMES = ("mqtt", "ws", "mqtts", "wss")
REQUEST = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
CLOSE = struct.pack("!H", 1000)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue(HOST)


def framed(data: bytes, opcode: Opcode = Opcode.BINARY) -> bytes:
    return Frame(opcode, data).serialize(mask=True)


class Secret:
    """The client's end of TLS, which returns the bytes to send."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=HOST)

    def step(self, sock: socket.socket) -> bool:
        """Do a step of the handshake. Return True if it is complete."""
        try:
            self._tls.do_handshake()
            is_over = True
        except ssl.SSLWantReadError:
            is_over = False
        if self._outgoing.pending:
            sock.sendall(self._outgoing.read())
        return is_over

    def heard(self, data: bytes) -> None:
        self._incoming.write(data)

    def said(self, data: bytes, *, is_last: bool = False) -> bytes:
        self._tls.write(data)
        if is_last:
            with pytest.raises(ssl.SSLWantReadError):
                self._tls.unwrap()
        return self._outgoing.read()


class Hasty:
    """A client that reads nothing and closes its socket behind its last word."""

    def __init__(self, scheme: str, address: tuple[str, int], context: ssl.SSLContext) -> None:
        self._is_websocket = scheme in ("ws", "wss")
        self.sock = socket.create_connection(address, TEST_S)
        # Nagle's algorithm may hold back the last words, and the reset would discard them.
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._secret = Secret(context) if scheme in ("mqtts", "wss") else None
        if self._secret is not None:
            while not self._secret.step(self.sock):
                self._secret.heard(self.sock.recv(65_536))
        if self._is_websocket:
            self.sock.sendall(self._said(REQUEST))
            assert self.sock.recv(65_536)

    def _said(self, data: bytes, *, is_last: bool = False) -> bytes:
        return data if self._secret is None else self._secret.said(data, is_last=is_last)

    def say(self, *packets: Packet, is_last: bool = False) -> None:
        data = b"".join(encode(packet, MQTT_5) for packet in packets)
        if self._is_websocket:
            data = framed(data) + (framed(CLOSE, Opcode.CLOSE) if is_last else b"")
        self.sock.sendall(self._said(data, is_last=is_last))
        if is_last:
            self.sock.close()  # Unread bytes make it a reset.


async def subscriber(running: object) -> Wire:
    wire = await connect(running, "s")  # type: ignore[arg-type]
    await wire.subscribe("#", 0)
    return wire


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_what_comes_with_the_end_is_worked_off(
    scheme: str, authority: Authority, pair: Pair
) -> None:
    network = {"listeners": [f"mqtt://{HOST}:0", f"{scheme}://{HOST}:0"]}
    keys = {"cert": pair.cert, "key": pair.key} if scheme in ("mqtts", "wss") else {}
    doors = open_doorways(NetworkSettings.model_validate(network | keys))
    async with broker(listener=doors, calm=True) as running:
        address = doors[1].sock.getsockname()[:2]
        wire = await subscriber(running)
        for number in range(12):
            client = await trio.to_thread.run_sync(
                Hasty, scheme, address, authority.client_context()
            )
            will = Will("will", b"%d" % number)
            client.say(connect_packet(f"c{number}", will=will))
            await until(lambda: running.node.counters.clients_connected == 2)
            sent = [Publish("t", b"%d" % n, 1, packet_id=n + 1) for n in range(8)]
            client.say(*sent, Disconnect(), is_last=True)
            for message in sent:
                found = await wire.expect(Publish)
                assert (found.topic, found.payload) == ("t", message.payload)
            await until(lambda: running.node.counters.clients_connected == 1)
        await wire.publish("end", b"")
        assert (await wire.expect(Publish)).topic == "end", "no will was sent"
        await wire.close()


def test_the_payload_before_a_close_frame_is_given_where_the_peer_is_gone() -> None:
    for control in (Opcode.CLOSE, Opcode.PING):
        ours, theirs = socket.socketpair()
        with ours:
            stream = WebSocketStream(ours, None, OriginRule(), lambda *_: None)
            stream.established = True
            theirs.sendall(framed(b"last") + framed(CLOSE, control))
            theirs.close()
            assert stream.recv(65_536, socket.MSG_DONTWAIT) == b"last"
            assert_over(stream)


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize(
    "bad",
    [framed(b"bye", Opcode.TEXT), Frame(Opcode.CLOSE, CLOSE).serialize(mask=False)],
    ids=["text", "without a mask"],
)
def test_the_payload_before_a_frame_that_breaks_websocket_is_given(
    bad: bytes, is_gone: bool
) -> None:
    faults: list[LayerFault] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = WebSocketStream(ours, None, OriginRule(), lambda fault, *_: faults.append(fault))
        stream.established = True
        theirs.sendall(framed(b"last") + bad)
        if is_gone:
            theirs.close()
        assert stream.recv(65_536, socket.MSG_DONTWAIT) == b"last"
        assert_over(stream)
        assert faults == [LayerFault.FRAME]
        if not is_gone:
            assert theirs.recv(100)[:2] == b"\x88\x02"


@pytest.mark.parametrize("over", ["close_notify", "an answer that is owed"])
def test_the_payload_of_tls_is_given_where_the_peer_is_gone(
    over: str, authority: Authority, pair: Pair
) -> None:
    keeper = TlsKeeper(TlsFiles(Path(pair.cert), Path(pair.key)), lambda *_: None)
    with socket.create_server((HOST, 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    with ours:
        stream = keeper.accept(ours)
        secret = Secret(authority.client_context())
        shake_hands(stream, secret, theirs)
        if over != "close_notify":
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            while stream.flush():
                stream.send(bytes(65_536))
        theirs.sendall(secret.said(b"last", is_last=over == "close_notify"))
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()  # A reset.
        assert stream.recv(65_536, socket.MSG_DONTWAIT) == b"last"
        assert_over(stream)


def shake_hands(stream: TlsStream, secret: Secret, theirs: socket.socket) -> None:
    while not (secret.step(theirs) and stream.established):
        with suppress(BlockingIOError):
            stream.recv(65_536, socket.MSG_DONTWAIT)
        with suppress(BlockingIOError):
            secret.heard(theirs.recv(65_536, socket.MSG_DONTWAIT))


def assert_over(stream: ByteStream) -> None:
    """Check that the next read finds the end of the stream."""
    try:
        assert stream.recv(65_536, socket.MSG_DONTWAIT) == b""
    except ConnectionError:
        pass


def test_close_notify_alone_ends_the_stream(authority: Authority, pair: Pair) -> None:
    keeper = TlsKeeper(TlsFiles(Path(pair.cert), Path(pair.key)), lambda *_: None)
    with socket.create_server((HOST, 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    with ours, theirs:
        stream = keeper.accept(ours)
        secret = Secret(authority.client_context())
        shake_hands(stream, secret, theirs)
        theirs.sendall(secret.said(b"last", is_last=True))
        assert stream.recv(65_536, socket.MSG_DONTWAIT) == b"last"
        assert stream.recv(65_536, socket.MSG_DONTWAIT) == b""
