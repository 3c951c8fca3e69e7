"""Memory of a TLS handshake that does not end: bounded from the first byte, and counted."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from flowguard.broker.layers.layer_gate import FREE_BYTES, PLACE_BYTES
from flowguard.broker.layers.tls import (
    CHAIN_BYTES,
    CHAIN_MAX_BYTES,
    HELLO_MAX_BYTES,
    HELLO_RECORDS_MAX,
    TlsFiles,
)
from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.accept_state import LayerFault
from flowguard.node.upkeep.holdings import held_bytes
from tests.flowguard.broker.test_layer_gate import client_hello, come_in
from tests.flowguard.broker.test_tls import CUTS, Ends, pieces
from tests.support.authority import Authority, Pair
from tests.support.real import broker, until

pytestmark = pytest.mark.slow
HOST = "127.0.0.1"
HELLO = 1
CHANGE_CIPHER = b"\x14\x03\x03\x00\x01\x01"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue(HOST)


@pytest.fixture
def two(authority: Authority, pair: Pair) -> Iterator[Ends]:
    """Both ends; the client has to send certificates."""
    made = Ends(authority, TlsFiles(pair.cert, pair.key, authority.cert))
    yield made
    made.close()


def records(message: bytes, size_bytes: int) -> bytes:
    """A handshake message in records of this size."""
    parts = [message[at : at + size_bytes] for at in range(0, len(message), size_bytes)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2) + part for part in parts)


def message_of(said: bytes) -> bytes:
    """The ClientHello in the record that a client has sent."""
    return said[5:]


@given(
    declared=st.integers(HELLO_MAX_BYTES + 1, 2**24 - 1),
    size_bytes=st.integers(1, 1_000),
    before=st.sampled_from([b"", CHANGE_CIPHER]),
    cuts=CUTS,
)
@settings(max_examples=settings.default.max_examples)
def test_a_long_hello_in_records_of_any_size_is_rejected_before_there_is_memory_for_it(
    authority: Authority, pair: Pair, declared: int, size_bytes: int, before: bytes, cuts: list[int]
) -> None:
    two = Ends(authority, TlsFiles(pair.cert, pair.key))
    hello = bytes([HELLO]) + declared.to_bytes(3) + bytes(1_000)
    for piece in pieces(before + records(hello, size_bytes), cuts):
        two.deliver(piece)
    two.close()
    assert two.broken
    assert two.faults == {LayerFault.NOT_TLS: 1}
    assert two.server._tls is None


def test_a_hello_in_records_of_any_size_is_answered(two: Ends) -> None:
    hello = message_of(two.client_says())
    size_bytes = -(-len(hello) // HELLO_RECORDS_MAX)
    two.deliver(records(hello, size_bytes))
    assert two.server.begun
    assert not two.faults


def test_a_hello_in_too_many_records_is_rejected(two: Ends) -> None:
    hello = message_of(two.client_says())
    two.deliver(records(hello, len(hello) // (HELLO_RECORDS_MAX + 1)))
    assert two.broken
    assert two.server._tls is None


def test_a_hello_that_is_not_complete_is_not_given_to_openssl(two: Ends) -> None:
    two.deliver(two.client_says()[:-1])
    assert not two.broken
    assert two.server._tls is None


@pytest.mark.parametrize(
    "first",
    [
        b"\x80\x2e\x01\x03\x03" + bytes(20),
        CHANGE_CIPHER * 2 + b"\x17\x03\x03\x40\x00",
        CHANGE_CIPHER + b"\x14\x03\x03\xff\xff" + bytes(1_000),
        b"\x14\x03\x03\x00\x00",
    ],
)
def test_what_begins_with_something_else_does_not_wait_in_openssl(two: Ends, first: bytes) -> None:
    two.deliver(first)
    assert two.broken
    assert two.faults.total() == 1


def retried(authority: Authority, pair: Pair) -> Ends:
    """Both ends, after the server has asked for another ClientHello."""
    two = Ends(authority, TlsFiles(pair.cert, pair.key))
    two.server._context.set_ecdh_curve("secp384r1")  # The client's first key share is of another.
    two.deliver(two.client_says())
    assert two.server.begun
    return two


def test_the_second_hello_is_bounded_as_the_first(authority: Authority, pair: Pair) -> None:
    two = retried(authority, pair)
    said = two.client_says()
    two.deliver(said[:-1])
    assert not two.server.established
    two.deliver(said[-1:])
    while said := two.client_says():
        two.deliver(said)
    assert two.server.established
    two.close()
    two = retried(authority, pair)
    hello = bytes([HELLO]) + (HELLO_MAX_BYTES + 1).to_bytes(3) + bytes(100)
    two.deliver(CHANGE_CIPHER + records(hello, 2))
    assert two.broken
    assert two.faults == {LayerFault.NOT_TLS: 1}
    two.close()


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_certificates_are_bounded(
    authority: Authority, two: Ends, tmp_path: Path, version: str
) -> None:
    client = authority.issue("client")
    chain = tmp_path / "chain.pem"
    chain.write_bytes(client.cert.read_bytes() + 100 * authority.cert.read_bytes())
    context = authority.client_context()
    context.maximum_version = ssl.TLSVersion[version]
    context.load_cert_chain(chain, client.key)
    two.client = context.wrap_bio(two._incoming, two._outgoing, server_hostname=HOST)
    two.deliver(two.client_says())
    said = two.client_says()
    assert len(said) > CHAIN_MAX_BYTES + 2_000
    two.deliver(said[:CHAIN_MAX_BYTES])
    assert not two.broken
    two.deliver(said[CHAIN_MAX_BYTES : CHAIN_MAX_BYTES + 1])
    assert two.broken
    assert two.faults == {LayerFault.CERTIFICATE: 1}


# --- all together -----------------------------------------------------------------------------


def doorway_of(authority: Authority, pair: Pair) -> Doorway:
    network = {"cert": pair.cert, "key": pair.key, "client_ca": authority.cert}
    listeners = {"listeners": [f"mqtts://{HOST}:0"]}
    (doorway,) = open_doorways(NetworkSettings.model_validate({**network, **listeners}))
    return doorway


async def test_unfinished_handshakes_take_the_places_of_connections(
    authority: Authority, pair: Pair
) -> None:
    """More come than there is memory for; each stops after its ClientHello."""
    doorway = doorway_of(authority, pair)
    context = authority.client_context(authority.issue("client"))
    settings = {"node": {"connections_max": 100}, "flow": {"connect_timeout_s": 600}}
    async with broker(settings, listener=[doorway], calm=True) as running:
        door = running.node.door
        assert door.places is not None
        streams = []
        for _ in range(60):
            stream = await trio.open_tcp_stream(*running.address)
            await stream.send_all(client_hello(authority))
            streams.append(stream)
        await until(lambda: door.faults[LayerFault.LATE] > 0)
        sockets_bytes = PLACE_BYTES * running.node.connections_count
        assert door.handshake_bytes > CHAIN_BYTES
        assert door.handshake_bytes + sockets_bytes <= FREE_BYTES + PLACE_BYTES * door.places
        assert held_bytes(running.node) > door.handshake_bytes
        await come_in(running, context, 1)
        for stream in streams:
            await stream.aclose()
        await until(lambda: not running.node.connections_count)
        assert door.handshake_bytes == 0
