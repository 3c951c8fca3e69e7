"""The client's address of a connection, as reported by a proxy in front."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from broker_adapter.proxy.protocol import SIGNATURE, header
from flowguard.broker.layers.proxied import BODY_BYTES_MAX, ProxiedStream
from flowguard.broker.server import Running
from flowguard.broker.sockets.link import Link
from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.accept_state import LayerFault
from flowguard.ops.explain import explain
from flowguard.types import MQTT_5
from tests.support.authority import Authority
from tests.support.real import Wire, broker, connect_packet, until

HOST = "127.0.0.1"
HERE = ("192.0.2.7", 8_883)
CLIENT = ("203.0.113.9", 40_001)
CLIENT_6 = ("2001:db8::9", 40_001, 0, 0)
LOCAL = SIGNATURE + b"\x20\x00\x00\x00"
WITH_MORE = SIGNATURE + b"\x21\x11" + (12 + 7).to_bytes(2, "big") + header(CLIENT, HERE)[16:]
WITH_MORE += b"\x04\x00\x04abcd"
LINE = b"PROXY TCP4 203.0.113.9 192.0.2.7 40001 8883\r\n"
LINE_6 = b"PROXY TCP6 2001:db8::9 2001:db8::9 40001 8883\r\n"
UNKNOWN = b"PROXY UNKNOWN\r\n"


class Pipe:
    """A socket from which what is in `data` comes, as much at once as `cut` says."""

    def __init__(self, data: bytes, cut: Iterator[int], host: str = HOST) -> None:
        self.data, self._cut, self._host = data, cut, host

    def recv(self, size_bytes: int, flags: int = 0) -> bytes:
        if not self.data:
            raise BlockingIOError
        count = min(size_bytes, next(self._cut, 1))
        piece, self.data = self.data[:count], self.data[count:]
        return piece

    def getpeername(self) -> tuple[str, int]:
        return (self._host, 5_000)


def stream_of(
    data: bytes,
    cut: Iterator[int] | None = None,
    host: str = HOST,
    trusted: str = "127.0.0.0/8",
    *,
    takes_names: bool = False,
) -> tuple[ProxiedStream, list[LayerFault]]:
    faults: list[LayerFault] = []
    listener = {"address": "127.0.0.1:0", "proxies": trusted}
    (settings,) = NetworkSettings.model_validate({"listeners": [listener]}).listeners
    pipe: Any = Pipe(data, cut or iter([1_000_000] * 1_000), host)
    stream = ProxiedStream(
        pipe, settings.proxies, lambda fault, *_: faults.append(fault), takes_names=takes_names
    )
    return stream, faults


def all_of(stream: ProxiedStream) -> bytes:
    found = b""
    try:
        while piece := stream.recv(65_536):
            found += piece
    except BlockingIOError:
        pass
    return found


@given(
    st.sampled_from(
        [header(CLIENT, HERE), header(CLIENT_6, CLIENT_6), LOCAL, WITH_MORE, LINE, LINE_6, UNKNOWN]
    ),
    st.binary(max_size=40),
    st.lists(st.integers(1, 20), max_size=80),
)
def test_what_follows_is_untouched_wherever_it_is_cut(
    head: bytes, data: bytes, cuts: list[int]
) -> None:
    stream, faults = stream_of(head + data, iter(cuts))
    assert all_of(stream) == data
    assert stream.established
    assert not faults


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (header(CLIENT, HERE), CLIENT),
        (WITH_MORE, CLIENT),
        (header(CLIENT_6, CLIENT_6), CLIENT_6[:2]),
        (LOCAL, (HOST, 5_000)),
        (SIGNATURE + b"\x21\x00\x00\x00", (HOST, 5_000)),
        (SIGNATURE + b"\x21\x31\x00\x04abcd", (HOST, 5_000)),
        (LINE, CLIENT),
        (LINE_6, CLIENT_6[:2]),
        (UNKNOWN, (HOST, 5_000)),
        (b"PROXY UNKNOWN ffff::1 ffff::1 1 2\r\n", (HOST, 5_000)),
    ],
)
def test_the_other_end_is_the_client_where_the_proxy_says_so(head: bytes, name: object) -> None:
    stream, _ = stream_of(head)
    all_of(stream)
    assert stream.getpeername() == name


def with_certificate(client: int, verify: int, *parts: tuple[int, bytes]) -> bytes:
    """Return a header that says so much about the client's TLS and certificate."""
    inner = b"".join(bytes((kind,)) + len(x).to_bytes(2, "big") + x for kind, x in parts)
    value = bytes((client,)) + verify.to_bytes(4, "big") + inner
    more = b"\x04\x00\x01x\x20" + len(value).to_bytes(2, "big") + value
    return (
        SIGNATURE
        + b"\x21\x11"
        + (12 + len(more)).to_bytes(2, "big")
        + header(CLIENT, HERE)[16:]
        + more
    )


VERSION, NAME = (0x21, b"TLSv1.3"), (0x22, "s\u00e9nsor".encode())


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (with_certificate(0b011, 0, VERSION, NAME), "s\u00e9nsor"),
        (with_certificate(0b101, 0, NAME), "s\u00e9nsor"),
        (with_certificate(0b001, 0, VERSION, NAME), None),
        (with_certificate(0b011, 10, VERSION, NAME), None),
        (with_certificate(0b011, 0, VERSION), None),
        (with_certificate(0b011, 0, (0x22, b"")), None),
        (with_certificate(0b011, 0, NAME)[:-7] + b"\xff" * 7, None),
        (with_certificate(0b011, 0, (0x22, b"s\xff")), None),
        (WITH_MORE, None),
        (LINE, None),
    ],
)
def test_name_in_the_certificate_is_taken_from_proxies_that_check_it(
    head: bytes, name: str | None
) -> None:
    for takes_names in (True, False):
        stream, _ = stream_of(head + b"data", takes_names=takes_names)
        assert all_of(stream) == b"data"
        assert stream.identity == (name if takes_names else None)


@pytest.mark.parametrize(
    ("listener", "why"),
    [
        ({"address": "127.0.0.1:0"}, "needs network addresses in proxies"),
        ({"address": "mqtts://127.0.0.1:0", "proxies": HOST}, "without TLS"),
    ],
)
def test_listener_takes_the_word_of_proxies_only(listener: dict[str, Any], why: str) -> None:
    given = {**listener, "proxies_check_certificates": True}
    with pytest.raises(ValidationError, match=why):
        NetworkSettings.model_validate({"listeners": [given]})


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 203.0.113.9 192.0.2.7 40001\r\n",
        b"PROXY TCP4 sensor-9 192.0.2.7 40001 8883\r\n",
        b"PROXY TCP4 203.0.113.9 192.0.2.7 x 8883\r\n",
        b"PROXY        \r\n",
        b"PROXY TCP6 " + b"f" * 100,
        b"PRIVATE KEYS\r\n",
        b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01a",
        b"\x16\x03\x01\x02\x00\x01",
        SIGNATURE + b"\x11\x11\x00\x0c" + b"\0" * 12,
        SIGNATURE + b"\x22\x11\x00\x0c" + b"\0" * 12,
        SIGNATURE + b"\x21\x11\x00\x0b" + b"\0" * 11,
        SIGNATURE + b"\x21\x21\x00\x0c" + b"\0" * 12,
        SIGNATURE + b"\x21\x11" + (BODY_BYTES_MAX + 1).to_bytes(2, "big"),
    ],
)
def test_what_says_it_in_another_way_is_closed(data: bytes) -> None:
    stream, faults = stream_of(data)
    with pytest.raises(ConnectionResetError):
        stream.recv(100)
    assert faults == [LayerFault.NOT_PROXIED]


@given(
    st.sampled_from([SIGNATURE, b"PROXY ", b"PROXY TCP4 "]),
    st.binary(min_size=1, max_size=80),
    st.lists(st.integers(1, 9), max_size=40),
)
def test_no_bytes_make_it_hold_more_than_a_header(
    first: bytes, data: bytes, cuts: list[int]
) -> None:
    stream, _ = stream_of(first + data, iter(cuts))
    try:
        all_of(stream)
    except ConnectionResetError:
        pass
    assert len(stream._header) <= 16 + BODY_BYTES_MAX


@pytest.mark.parametrize(
    ("host", "trusted", "is_trusted"),
    [
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "192.0.2.1, 10.1.2.3", True),
        ("::ffff:10.1.2.3", "10.0.0.0/8", True),
        ("fe80::1%eth0", "fe80::/10", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("2001:db8::1", "10.0.0.0/8", False),
    ],
)
def test_only_proxies_that_are_trusted_may_say_it(
    host: str, trusted: str, is_trusted: bool
) -> None:
    stream, faults = stream_of(header(CLIENT, HERE) + b"x", host=host, trusted=trusted)
    if is_trusted:
        assert stream.recv(10) == b"x"
        return
    with pytest.raises(ConnectionResetError):
        stream.recv(10)
    assert faults == [LayerFault.UNTRUSTED]
    assert stream.getpeername() == (host, 5_000)


# --- with the broker --------------------------------------------------------------------------


def doorways(proxies: str, scheme: str = "mqtt", **network: Any) -> list[Doorway]:
    listener = {"address": f"{scheme}://{HOST}:0", "proxies": proxies}
    return open_doorways(NetworkSettings.model_validate({"listeners": [listener], **network}))


def peers(running: Running) -> list[str]:
    """The addresses of all clients, as log and limits see them."""
    found = []
    for session in running.node.registry.sessions.values():
        link = session.outbound and session.outbound.connection.transport
        if isinstance(link, Link):
            found.append(link.peer())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("cut", [0, 1, 14, 27, 30])
async def test_a_client_has_its_own_address_behind_a_proxy(cut: int) -> None:
    async with broker(listener=doorways(HOST)) as running:
        stream = await trio.open_tcp_stream(*running.address)
        said = header(CLIENT, HERE) + encode(connect_packet("c"), MQTT_5)
        for piece in (said[:cut], said[cut:]):
            if piece:
                await stream.send_all(piece)
                await trio.testing.wait_all_tasks_blocked()
        wire = Wire(stream, MQTT_5)
        assert (await wire.expect(Connack)).reason_code == 0
        await wire.ping()
        assert peers(running) == ["203.0.113.9:40001"]
        shown = explain(running.node, "c", time())
        assert shown is not None
        assert shown["connected"] is not None
        assert shown["connected"]["address"] == "203.0.113.9:40001"
        await wire.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trusted", "said", "fault"),
    [
        ("192.0.2.0/24", header(CLIENT, HERE), LayerFault.UNTRUSTED),
        (HOST, b"", LayerFault.NOT_PROXIED),
    ],
)
async def test_who_may_not_say_it_or_does_not_is_closed_and_counted(
    trusted: str, said: bytes, fault: LayerFault
) -> None:
    async with broker(listener=doorways(trusted)) as running:
        stream = await trio.open_tcp_stream(*running.address)
        await stream.send_all(said + encode(connect_packet("c"), MQTT_5))
        try:
            assert await stream.receive_some() == b""
        except trio.BrokenResourceError:
            pass  # The bytes were not read.
        await until(lambda: running.node.door.faults[fault] == 1)
        assert not running.node.registry.sessions
        await stream.aclose()


@pytest.mark.slow
async def test_tls_stands_above_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue(HOST)
    doors = doorways(HOST, "mqtts", cert=pair.cert, key=pair.key)
    async with broker(listener=doors) as running:
        plain = await trio.open_tcp_stream(*running.address)
        await plain.send_all(header(CLIENT_6, CLIENT_6))
        stream = trio.SSLStream(plain, authority.client_context(), server_hostname=HOST)
        wire = Wire(stream, MQTT_5)  # type: ignore[arg-type]
        await wire.send(connect_packet("c"))
        assert (await wire.expect(Connack)).reason_code == 0
        assert peers(running) == ["[2001:db8::9]:40001"]
        await wire.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
async def test_who_leaves_before_the_header_is_counted_once(tmp_path: Path, scheme: str) -> None:
    pair = Authority(tmp_path).issue(HOST)
    files = {"cert": pair.cert, "key": pair.key} if scheme in ("mqtts", "wss") else {}
    async with broker(listener=doorways(HOST, scheme, **files)) as running:
        stream = await trio.open_tcp_stream(*running.address)
        await stream.send_all(SIGNATURE[:5])
        await stream.send_eof()
        # Half a header is never read, so the kernel sends a reset if it arrives before the end.
        with contextlib.suppress(trio.BrokenResourceError):
            assert await stream.receive_some() == b""
        faults = {fault: count for fault, count in running.node.door.faults.items() if count}
        assert faults == {LayerFault.LEFT: 1}
        await stream.aclose()
