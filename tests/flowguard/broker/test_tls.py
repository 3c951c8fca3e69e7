"""TLS between sockets and MQTT: what passes, what does not, and what is counted."""

import socket
import ssl
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from flowguard.broker.layers.layer import PENDING_MAX_BYTES
from flowguard.broker.layers.tls import HELLO_MAX_BYTES, TlsFiles, TlsKeeper, TlsStream
from flowguard.broker.server import Running
from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.codec.packets import Connack, Disconnect, Packet
from flowguard.errors import ConfigError
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.accept_state import LayerFault, Rest
from flowguard.types import Publish, ReasonCode
from tests.support.authority import Authority, Pair
from tests.support.real import CALM, Wire, broker, connect, connect_packet, until

pytestmark = pytest.mark.slow
HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue(HOST)


def doorways(pair: Pair, *addresses: Any, **options: Any) -> list[Doorway]:
    listeners = addresses or (f"mqtts://{HOST}:0",)
    network = {"listeners": listeners, "cert": pair.cert, "key": pair.key, **options}
    return open_doorways(NetworkSettings.model_validate(network))


async def secure_wire(running: Running, context: ssl.SSLContext) -> Wire:
    plain = await trio.open_tcp_stream(*running.address)
    stream = trio.SSLStream(plain, context, server_hostname=HOST)
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(plain)
        raise
    return Wire(stream, 5)  # type: ignore[arg-type]


async def secure_client(running: Running, context: ssl.SSLContext, client_id: str) -> Wire:
    wire = await secure_wire(running, context)
    await wire.send(connect_packet(client_id))
    assert (await wire.expect(Connack)).reason_code == 0
    return wire


# --- with the broker --------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
async def test_messages_of_any_size_pass_and_the_end_is_said(
    authority: Authority, pair: Pair, version: str
) -> None:
    payloads = [bytes([n % 251]) * size for n, size in enumerate((0, 1, 16_384, 70_000, 900_000))]
    context = authority.client_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    async with broker(listener=doorways(pair), calm=True) as running:
        client = await secure_client(running, context, "c")
        await client.subscribe("t", 0)
        for payload in payloads:
            await client.send(Publish("t", payload))
            assert (await client.expect(Publish)).payload == payload
        await client.send(Disconnect())
        assert await client.receive() is None  # Not without close_notify: trio insists on it.
        await client.close()
        await until(lambda: running.node.connections_count == 0)
        assert not any(running.node.door.faults.values())


async def test_who_does_not_read_is_served_later_and_in_order(
    authority: Authority, pair: Pair
) -> None:
    """More bytes than all buffers hold: records, outbox and queue go on when the socket takes
    more."""
    count, size = 60, 100_000
    options = {"session": {"outbox_bytes_max": 2**26, "packet_size_max": 2**20}}
    async with broker({**options, "flow": CALM}, listener=doorways(pair)) as running:
        reader = await secure_client(running, authority.client_context(), "reader")
        await reader.subscribe("t", 0)
        writer = await secure_client(running, authority.client_context(), "writer")
        for number in range(count):
            await writer.send(Publish("t", number.to_bytes(2) + bytes(size)))
        await writer.ping()
        received = [(await reader.expect(Publish)).payload[:2] for _ in range(count)]
        assert received == [number.to_bytes(2) for number in range(count)]
        await reader.close()
        await writer.close()


async def test_the_drain_is_told_through_tls(authority: Authority, pair: Pair) -> None:
    async with broker(listener=doorways(pair)) as running:
        client = await secure_client(running, authority.client_context(), "c")
        running.stop.set()
        goodbye = await client.expect(Disconnect)
        assert goodbye.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        assert await client.receive() is None
        await client.close()


async def test_plain_and_encrypted_listeners_serve_the_same_node(
    authority: Authority, pair: Pair
) -> None:
    both = doorways(pair, f"mqtt://{HOST}:0", f"mqtts://{HOST}:0")
    async with broker(listener=both) as running:
        assert [str(address.scheme) for address in running.addresses] == ["mqtt", "mqtts"]
        plain = await connect(running, "plain")
        await plain.subscribe("t", 0)
        running.addresses.reverse()  # `secure_client` connects to the first one
        secure = await secure_client(running, authority.client_context(), "secure")
        await secure.publish("t", b"from TLS")
        assert (await plain.expect(Publish)).payload == b"from TLS"
        await plain.close()
        await secure.close()


async def refused(running: Running, context: ssl.SSLContext) -> None:
    """A client that gets no CONNACK; in TLS 1.3 it learns so after its own part is done.

    Python before 3.11.4 takes an end without close_notify for a proper one.
    """
    with suppress(trio.BrokenResourceError, ssl.SSLError):
        assert await call_in_vain(running, context) is None


async def call_in_vain(running: Running, context: ssl.SSLContext) -> Packet | None:
    wire = await secure_wire(running, context)
    try:
        await wire.send(connect_packet("refused"))
        return await wire.receive()
    finally:
        await trio.aclose_forcefully(wire.stream)


async def test_client_certificates_are_asked_for_and_say_who_it_is(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    theirs = stranger.issue("sensor-7")
    async with broker(listener=doorways(pair, client_ca=authority.cert)) as running:
        faults = running.node.door.faults
        await refused(running, authority.client_context())
        await until(lambda: faults[LayerFault.CERTIFICATE] == 1)
        context = authority.client_context(theirs)
        await refused(running, context)
        await until(lambda: faults[LayerFault.CERTIFICATE] == 2)
        client = await secure_client(
            running, authority.client_context(authority.issue("sensor-7")), "c"
        )
        await client.ping()
        await client.close()


async def test_a_certificate_with_a_name_that_is_no_text_is_refused(
    authority: Authority, pair: Pair
) -> None:
    dns_name = b"\x30\x05\x82\x03\xff\xfe\xfd"
    broken = authority.issue("broken", alternative_names=dns_name)
    async with broker(listener=doorways(pair, client_ca=authority.cert)) as running:
        await refused(running, authority.client_context(broken))
        await until(lambda: running.node.door.faults[LayerFault.CERTIFICATE] == 1)
        good = authority.client_context(authority.issue("good"))
        client = await secure_client(running, good, "c")
        await client.close()


async def test_a_revoked_certificate_is_refused(authority: Authority, pair: Pair) -> None:
    good, bad = authority.issue("good"), authority.issue("bad")
    options = {"client_ca": authority.cert, "crl": authority.revoke(bad)}
    async with broker(listener=doorways(pair, **options)) as running:
        await refused(running, authority.client_context(bad))
        await until(lambda: running.node.door.faults[LayerFault.CERTIFICATE] == 1)
        client = await secure_client(running, authority.client_context(good), "c")
        await client.close()


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (b"\x10\x0d\0\4MQTT\5\2\0\0\0\0\0", LayerFault.NOT_TLS),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", LayerFault.NOT_TLS),
        (bytes(100), LayerFault.NOT_TLS),
        (b"\x16\x03\x01\x00\x05", LayerFault.LEFT),
        (b"", LayerFault.LEFT),
    ],
)
async def test_what_is_no_tls_is_closed_and_counted(
    pair: Pair, said: bytes, fault: LayerFault
) -> None:
    async with broker(listener=doorways(pair)) as running:
        stream = await trio.open_tcp_stream(*running.address)
        await stream.send_all(said)
        if fault is LayerFault.LEFT:
            await stream.send_eof()
        await until(lambda: running.node.door.faults[fault] == 1)
        await until(lambda: running.node.connections_count == 0)
        await stream.aclose()


async def test_a_handshake_that_never_ends_is_ended(pair: Pair) -> None:
    async with broker({"flow": {"connect_timeout_s": 0.2}}, listener=doorways(pair)) as running:
        stream = await trio.open_tcp_stream(*running.address)
        await stream.send_all(b"\x16\x03\x01\x00\x05")
        await until(lambda: running.node.door.faults[LayerFault.LATE] == 1)
        await until(lambda: running.node.connections_count == 0)
        await stream.aclose()


async def test_an_old_version_is_refused(authority: Authority, pair: Pair) -> None:
    context = authority.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with broker(listener=doorways(pair, tls_version_min="1.3")) as running:
        with pytest.raises(trio.BrokenResourceError):
            await secure_wire(running, context)
        await until(lambda: running.node.door.faults[LayerFault.NOT_AGREED] == 1)


async def test_a_listener_has_a_limit_of_its_own(authority: Authority, pair: Pair) -> None:
    """Connections beyond it wait in the kernel, until a client leaves."""
    few = {"address": f"mqtts://{HOST}:0", "connections_max": 1}
    async with broker(listener=doorways(pair, few)) as running:
        first = await secure_client(running, authority.client_context(), "first")
        async with trio.open_nursery() as nursery:
            second: list[Wire] = []

            async def come() -> None:
                second.append(await secure_client(running, authority.client_context(), "second"))

            nursery.start_soon(come)
            await until(lambda: running.node.door.rests[Rest.LISTENER] > 0)
            await first.ping()
            assert not second
            await first.close()
        await second[0].ping()
        await second[0].close()


async def test_certificates_are_read_anew_and_nobody_is_lost(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    (doorway,) = doorways(pair)
    assert doorway.tls is not None
    successor = Authority(tmp_path, "successor")
    async with broker(listener=[doorway]) as running:
        old = await secure_client(running, authority.client_context(), "old")
        theirs = successor.issue(HOST)
        with pytest.raises(ConfigError, match="no certificate and its key"):
            TlsFiles(theirs.cert, pair.key).load()
        await old.ping()
        doorway.tls.use(TlsFiles(theirs.cert, theirs.key).load())
        new = await secure_client(running, successor.client_context(), "new")
        await new.ping()
        await old.ping()
        await new.close()
        await old.close()


# --- without it -------------------------------------------------------------------------------


class Ends:
    """The server's end as the reactor has it, a client without a socket, and what lies between."""

    def __init__(self, authority: Authority, files: TlsFiles) -> None:
        ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.faults: Counter[LayerFault] = Counter()
        self.server: TlsStream = TlsKeeper(files, self._count).accept(ours)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = authority.client_context().wrap_bio(
            self._incoming, self._outgoing, server_hostname=HOST
        )
        self.received = b""
        self.broken = False

    def _count(self, fault: LayerFault, stream: object, why: str) -> None:
        self.faults[fault] += 1

    def client_says(self) -> bytes:
        """Return its next handshake bytes, and then the bytes that it has to send."""
        try:
            self.client.do_handshake()
        except ssl.SSLError:
            pass
        return self._outgoing.read()

    def deliver(self, data: bytes) -> None:
        """The server reads this, and the client what the server says to it."""
        if not data or self.broken:
            return
        self.theirs.send(data)
        try:
            self.received += self.server.recv(65_536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True
        try:
            self._incoming.write(self.theirs.recv(1_000_000))
        except BlockingIOError:
            pass

    def close(self) -> None:
        self.server.close()
        self.theirs.close()


@contextmanager
def ends(authority: Authority, pair: Pair) -> Iterator[Ends]:
    made = Ends(authority, TlsFiles(pair.cert, pair.key))
    try:
        yield made
    finally:
        made.close()


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


CUTS = st.lists(st.integers(0, 100_000), max_size=8)


@given(cuts=CUTS, messages=st.lists(st.binary(min_size=1, max_size=40_000), max_size=4))
@settings(max_examples=settings.default.max_examples)
def test_bytes_may_be_cut_anywhere(
    authority: Authority, pair: Pair, cuts: list[int], messages: list[bytes]
) -> None:
    with ends(authority, pair) as two:
        while said := two.client_says():
            for piece in pieces(said, cuts):
                two.deliver(piece)
        assert two.server.established
        for message in messages:
            two.client.write(message)
        for piece in pieces(two.client_says(), cuts):
            two.deliver(piece)
        # All bytes of a read are decrypted in it: none stays behind without an event.
        assert two.received == b"".join(messages)
        assert not two.faults


@given(
    step=st.integers(0, 2),
    place=st.integers(0, 100_000),
    bit=st.integers(0, 7),
    message=st.binary(),
)
@settings(max_examples=settings.default.max_examples)
def test_a_flipped_bit_is_never_taken_for_a_message(
    authority: Authority, pair: Pair, step: int, place: int, bit: int, message: bytes
) -> None:
    with ends(authority, pair) as two:
        for number in range(3):
            said = two.client_says()
            if number == 2 and two.server.established and not two.broken:
                two.client.write(message + b"!")
                said += two.client_says()
            if number == step and said:
                index = place % len(said)
                said = said[:index] + bytes([said[index] ^ (1 << bit)]) + said[index + 1 :]
            two.deliver(said)
        assert (message + b"!").startswith(two.received)
        assert sum(two.faults.values()) == (1 if two.broken else 0)


@given(declared=st.integers(HELLO_MAX_BYTES + 1, 2**24 - 1), cuts=CUTS)
def test_who_declares_a_long_greeting_is_closed_before_there_is_room_for_it(
    authority: Authority, pair: Pair, declared: int, cuts: list[int]
) -> None:
    hello = b"\x16\x03\x01\x40\x00" + b"\x01" + declared.to_bytes(3) + bytes(1_000)
    with ends(authority, pair) as two:
        for piece in pieces(hello, cuts):
            two.deliver(piece)
        assert two.broken
        assert two.faults == {LayerFault.NOT_TLS: 1}
        assert two.server._tls is None


def test_a_peer_that_makes_us_answer_and_reads_nothing_is_closed_with_little_held(
    authority: Authority, pair: Pair
) -> None:
    """The peer reads nothing, and still causes answers: here by the broker's own unread records."""
    with ends(authority, pair) as two:
        while said := two.client_says():
            two.deliver(said)
        block = bytes(200_000)
        while two.server.send(block) == len(block):
            pass
        assert not two.server.flush()
        assert len(two.server._pending) <= PENDING_MAX_BYTES
        held = len(two.server._pending)
        for _ in range(5):
            with pytest.raises(BlockingIOError):
                two.server.send(bytes(200_000))
        assert len(two.server._pending) == held


@pytest.mark.parametrize("wrong", ["cert", "key", "chain", "client_ca", "crl"])
def test_a_file_that_cannot_be_used_is_named(
    authority: Authority, pair: Pair, tmp_path: Path, wrong: str
) -> None:
    files = {"cert": pair.cert, "key": pair.key, "client_ca": authority.cert}
    files["crl"] = authority.revoke()
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("nothing\n")
    with pytest.raises(ConfigError, match=r"garbage\.pem"):
        TlsFiles(**{**files, wrong: garbage}).load()
    with pytest.raises(ConfigError, match=r"cannot read .*absent"):
        TlsFiles(**{**files, wrong: tmp_path / "absent"}).load()


def test_an_encrypted_key_is_refused_and_nobody_is_asked(pair: Pair, tmp_path: Path) -> None:
    encrypted = tmp_path / "encrypted.key"
    subprocess.run(
        ["openssl", "ec", "-in", str(pair.key), "-aes256", "-passout", "pass:x", "-out", encrypted],
        check=True,
        capture_output=True,
    )
    with pytest.raises(ConfigError, match="unencrypted"):
        TlsFiles(pair.cert, encrypted).load()


def test_a_tls_listener_without_a_certificate_says_which_settings_it_wants() -> None:
    with pytest.raises(ConfigError, match=r"--cert FILE --key FILE"):
        open_doorways(NetworkSettings.model_validate({"listeners": [f"mqtts://{HOST}:0"]}))
