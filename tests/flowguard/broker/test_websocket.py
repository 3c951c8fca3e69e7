"""WebSocket between sockets and MQTT: alone and on TLS, whole and in pieces, kept and broken."""

import socket
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode

from flowguard.broker.layers.websocket import (
    FRAME_BYTES,
    FrameReader,
    OriginRule,
    WebSocketStream,
    broken_close,
)
from flowguard.broker.server import Running
from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.codec.packets import Connack, Disconnect
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.accept_state import LayerFault
from flowguard.types import Publish, ReasonCode
from tests.support.authority import Authority
from tests.support.real import Wire, broker, connect_packet, until
from tests.support.websocket import WebSocketClient

HOST = "127.0.0.1"
CODES = (1000, 1001, 1003, 1007, 1011, 1014, 3000, 4999)


def doorways(**options: Any) -> list[Doorway]:
    network = {"listeners": [f"ws://{HOST}:0"], **options}
    return open_doorways(NetworkSettings.model_validate(network))


async def open_client(running: Running, **options: Any) -> WebSocketClient:
    client = WebSocketClient(await trio.open_tcp_stream(*running.address), **options)
    await client.open()
    return client


async def wire_of(client: WebSocketClient, client_id: str) -> Wire:
    wire = Wire(client, 5)  # type: ignore[arg-type]
    await wire.send(connect_packet(client_id))
    assert (await wire.expect(Connack)).reason_code == 0
    return wire


# --- with the broker --------------------------------------------------------------------------


@pytest.mark.spec("MQTT-6.0.0-2", "MQTT-6.0.0-4", "v3:MQTT-6.0.0-2", "v3:MQTT-6.0.0-4")
@pytest.mark.parametrize("frame_bytes", [1, 7, 1_000_000])
async def test_packets_and_frames_need_not_begin_together(frame_bytes: int) -> None:
    async with broker(listener=doorways(), calm=True) as running:
        client = await open_client(running, frame_bytes=frame_bytes)
        assert client.protocol.subprotocol == "mqtt"
        wire = await wire_of(client, "c")
        await wire.subscribe("t", 0)
        for size in (0, 100, 5_000):
            await wire.send(Publish("t", bytes(size)), Publish("t", b"next"))
            assert len((await wire.expect(Publish)).payload) == size
            assert (await wire.expect(Publish)).payload == b"next"
        await wire.close()
        await until(lambda: running.node.connections_count == 0)
        assert not any(running.node.door.faults.values())


async def test_large_messages_go_in_frames_of_bounded_size() -> None:
    async with broker(listener=doorways(), calm=True) as running:
        client = await open_client(running)
        wire = await wire_of(client, "c")
        await wire.subscribe("t", 0)
        payload = bytes(range(256)) * 3_000
        await wire.send(Publish("t", payload))
        assert (await wire.expect(Publish)).payload == payload
        assert client.largest_frame == FRAME_BYTES
        await wire.close()


async def test_websocket_on_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue(HOST)
    options = {"listeners": [f"wss://{HOST}:0"], "cert": pair.cert, "key": pair.key}
    async with broker(listener=doorways(**options)) as running:
        plain = await trio.open_tcp_stream(*running.address)
        secure = trio.SSLStream(plain, authority.client_context(), server_hostname=HOST)
        client = WebSocketClient(secure)
        await client.open()
        wire = await wire_of(client, "c")
        await wire.subscribe("t", 0)
        await wire.send(Publish("t", bytes(300_000)))
        assert len((await wire.expect(Publish)).payload) == 300_000
        running.stop.set()
        goodbye = await wire.expect(Disconnect)
        assert goodbye.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        assert await wire.receive() is None
        assert not any(running.node.door.faults.values())
        await wire.close()


async def test_pings_are_answered_and_a_close_is() -> None:
    async with broker(listener=doorways()) as running:
        client = await open_client(running)
        wire = await wire_of(client, "c")
        client.protocol.send_ping(b"are you there?")
        await client.send_all(b"")
        await wire.ping()
        (pong,) = client.frames
        assert (pong.opcode, pong.data) == (Opcode.PONG, b"are you there?")
        client.protocol.send_close(1001)
        await client.send_all(b"")
        assert await wire.receive() is None
        assert client.frames[-1].opcode is Opcode.CLOSE
        assert bytes(client.frames[-1].data) == struct.pack("!H", 1001)
        await until(lambda: running.node.connections_count == 0)
        await wire.close()


def masked(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


@pytest.mark.spec("MQTT-6.0.0-1", "v3:MQTT-6.0.0-1")
@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (masked(Opcode.TEXT, b"\x10\x0c"), 1003),
        (Frame(Opcode.BINARY, b"not masked").serialize(mask=False), 1002),
        (masked(Opcode.CONT, b"of nothing"), 1002),
        (masked(Opcode.BINARY, b"a", fin=False) + masked(Opcode.BINARY, b"b"), 1002),
        (b"\x09\x84\0\0\0\0ping", 1002),  # A fragmented control frame.
        (b"\x89\xfe\x00\x7e\0\0\0\0" + bytes(126), 1002),  # An oversized one.
        (b"\xc2\x81\0\0\0\0x", 1002),  # Compressed, without an agreement on that.
        (b"\x83\x81\0\0\0\0x", 1002),
        (b"\x8b\x81\0\0\0\0x", 1002),
        (masked(Opcode.CLOSE, b"\x03"), 1002),
        (masked(Opcode.CLOSE, struct.pack("!H", 1000) + b"\xff"), 1007),
    ],
    ids=[  # Masks are random, and every process of a run has to collect the same names.
        "text",
        "not masked",
        "continuation of nothing",
        "begun within another",
        "fragmented control",
        "oversized control",
        "compressed",
        "reserved opcode",
        "reserved control opcode",
        "half a close code",
        "close reason that is no text",
    ],
)
async def test_what_breaks_websocket_is_told_so_and_counted(frame: bytes, code: int) -> None:
    async with broker(listener=doorways()) as running:
        client = await open_client(running)
        await client.stream.send_all(frame)
        assert await client.receive_some(1) == b""
        assert bytes(client.frames[-1].data) == struct.pack("!H", code)
        await until(lambda: running.node.door.faults[LayerFault.FRAME] == 1)
        await client.aclose()


@pytest.mark.parametrize(
    "code", [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65_535], ids=str
)
def test_a_close_code_that_nobody_may_send_breaks_websocket(code: int) -> None:
    """Earlier data counts, wherever TCP cuts."""
    faults: list[LayerFault] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = WebSocketStream(ours, None, OriginRule(), lambda fault, *_: faults.append(fault))
        stream.established = True
        close = masked(Opcode.CLOSE, struct.pack("!H", code))
        theirs.sendall(masked(Opcode.BINARY, b"last") + close)
        assert stream.recv(65_536, socket.MSG_DONTWAIT) == b"last"
        assert theirs.recv(100) == b"\x88\x02" + struct.pack("!H", 1002)
        assert faults == [LayerFault.FRAME]


@pytest.mark.parametrize("said", [b"", *(struct.pack("!H", code) for code in CODES)], ids=repr)
@pytest.mark.parametrize("reason", ["", "näher"])
def test_a_close_frame_as_it_may_be_is_taken(said: bytes, reason: str) -> None:
    said += reason.encode() if said else b""
    reader = FrameReader()
    assert reader.feed(masked(Opcode.CLOSE, said)) == b""
    assert reader.controls == [(Opcode.CLOSE, said)]
    assert not broken_close(said)


@pytest.mark.spec("MQTT-6.0.0-3", "v3:MQTT-6.0.0-3")
@pytest.mark.parametrize(
    ("origins", "headers", "fault"),
    [
        ([], {"Origin": "https://evil.example"}, LayerFault.ORIGIN),
        (["https://shop.example"], {"Origin": "https://evil.example"}, LayerFault.ORIGIN),
        ([], {"Origin": "null"}, LayerFault.ORIGIN),
        ([], {"Sec_WebSocket_Protocol": "chat"}, LayerFault.SUBPROTOCOL),
        ([], {"Sec_WebSocket_Version": "8"}, LayerFault.NOT_WEBSOCKET),
    ],
)
async def test_who_may_not_connect_is_refused_in_http_and_counted(
    origins: list[str], headers: dict[str, str], fault: LayerFault
) -> None:
    async with broker(listener=doorways(origins=origins)) as running:
        client = WebSocketClient(await trio.open_tcp_stream(*running.address))
        if "Sec_WebSocket_Protocol" in headers:
            client.protocol.available_subprotocols = None
        with pytest.raises(InvalidHandshake) as refusal:
            await client.open(**replaced(client, headers))
        assert isinstance(refusal.value, InvalidStatus)
        assert refusal.value.response.status_code in (400, 403, 426)
        await until(lambda: running.node.door.faults[fault] == 1)
        await client.aclose()


def replaced(client: WebSocketClient, headers: dict[str, str]) -> dict[str, str]:
    """Replace headers, which the library would only add."""
    if "Sec_WebSocket_Version" in headers:
        connect = client.protocol.connect

        def other() -> Any:
            request = connect()
            del request.headers["Sec-WebSocket-Version"]
            return request

        client.protocol.connect = other  # type: ignore[method-assign]
    return headers


async def test_a_page_that_is_listed_and_one_from_our_own_address_may_connect() -> None:
    async with broker(listener=doorways(origins=["https://shop.example"])) as running:
        for origin in ("https://shop.example", f"http://{HOST}"):
            client = WebSocketClient(await trio.open_tcp_stream(*running.address))
            await client.open(Origin=origin)
            await client.aclose()


@pytest.mark.parametrize(
    "said",
    [
        b"\x10\x0c\0\4MQTT\5\2\0\0\0\0",
        b"POST / HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * 20_000,
        b"\x16\3",
    ],
)
async def test_what_is_no_request_is_closed_and_counted(said: bytes) -> None:
    async with broker(listener=doorways()) as running:
        stream = await trio.open_tcp_stream(*running.address)
        await stream.send_all(said)
        await until(lambda: running.node.door.faults[LayerFault.NOT_WEBSOCKET] == 1)
        await until(lambda: running.node.connections_count == 0)
        await stream.aclose()


# --- without it -------------------------------------------------------------------------------

FRAMES = st.lists(
    st.tuples(
        st.lists(st.binary(max_size=300), min_size=1, max_size=4),
        st.sampled_from([None, Opcode.PING, Opcode.PONG]),
        st.binary(max_size=125),
    ),
    max_size=5,
)


@given(messages=FRAMES, cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_frames_may_be_cut_anywhere_and_little_is_held(
    messages: list[tuple[list[bytes], Opcode | None, bytes]], cuts: list[int]
) -> None:
    data, expected, controls = b"", b"", []
    for parts, control, said in messages:
        for index, part in enumerate(parts):
            opcode = Opcode.CONT if index else Opcode.BINARY
            data += masked(opcode, part, fin=index == len(parts) - 1)
            expected += part
            if control is not None:  # They may come between the fragments of a message.
                data += masked(control, said)
                controls.append((int(control), said))
    reader = FrameReader()
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    received = b""
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        received += reader.feed(data[start:end])
        assert reader.held_bytes < 140
    assert received == expected
    assert reader.controls == controls


@given(data=st.binary(max_size=400))
def test_whatever_comes_is_taken_or_refused_and_little_is_held(data: bytes) -> None:
    reader = FrameReader()
    try:
        payload = reader.feed(data)
    except ConnectionResetError:
        return
    assert len(payload) + reader.held_bytes <= len(data)


def test_a_peer_that_pings_and_reads_no_pong_is_closed_with_little_held() -> None:
    faults: Counter[LayerFault] = Counter()

    def count(fault: LayerFault, stream: object, why: str) -> None:
        faults[fault] += 1

    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = WebSocketStream(ours, None, OriginRule(), count)
        stream.established = True
        pings = masked(Opcode.PING, bytes(125)) * 100
        held = 0

        def drown() -> None:
            nonlocal held
            while True:
                theirs.sendall(pings)
                try:
                    stream.recv(65_536, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    held = max(held, len(stream._pending))

        with pytest.raises(ConnectionResetError):
            drown()
        assert held <= 65_536
        assert faults == {LayerFault.UNREAD: 1}


def test_what_is_owed_to_a_peer_that_has_closed_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = WebSocketStream(ours, None, OriginRule(), lambda *_: None)
        stream.established = True
        close = struct.pack("!H", 1000)
        theirs.sendall(masked(Opcode.BINARY, b"last") + masked(Opcode.CLOSE, close))
        assert stream.recv(65_536, socket.MSG_DONTWAIT) == b"last"
        assert stream.send(b"an answer") == len(b"an answer")
        ours.shutdown(socket.SHUT_WR)
        assert theirs.recv(100) == b"\x88\x02" + close, "nothing behind the close frame"


@pytest.mark.parametrize(
    ("origins", "origin", "host", "may"),
    [
        ((), None, "broker.example", True),
        ((), "http://127.0.0.1:8080", "127.0.0.1:8080", True),
        ((), "http://localhost:8080", "localhost:8080", True),
        ((), "http://[::1]:8080", "[::1]:8080", True),
        ((), "http://127.0.0.1:9999", "127.0.0.1:8080", False),
        ((), "http://rebound.example:8080", "rebound.example:8080", False),
        (("http://shop.example",), "http://Shop.example", "broker.example", True),
        (("http://shop.example",), "https://shop.example", "broker.example", False),
        (("*",), "null", None, True),
        ((), "null", "127.0.0.1", False),
        ((), "http://[", "127.0.0.1", False),
    ],
)
def test_the_origin_rule(
    origins: tuple[str, ...], origin: str | None, host: str | None, may: bool
) -> None:
    assert OriginRule(origins).allows(origin, host) is may
