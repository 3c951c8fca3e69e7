"""A listener with several names: a client gets the certificate of the name that it requests."""

import socket
import ssl
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from flowguard.broker.logs.error_log import SHOWN_MAX
from flowguard.cli.log_lines import log_ignored
from flowguard.codec.packets import Connack
from flowguard.errors import ConfigError
from tests.flowguard.broker.test_tls import HOST, doorways, secure_client
from tests.support.authority import Authority, Pair
from tests.support.real import TEST_S, Wire, broker, connect_packet

pytestmark = pytest.mark.slow
ALERT = 21
"""The kind of a TLS record [RFC 8446, 5.1]."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue(HOST)


def served(authority: Authority, port: int, name: str | None) -> int:
    """Return the serial number of the certificate for a requested name."""
    context = ssl.create_default_context(cafile=str(authority.cert))
    context.check_hostname = False
    with (
        socket.create_connection((HOST, port), timeout=TEST_S) as plain,
        context.wrap_socket(plain, server_hostname=name) as tls,
    ):
        found = tls.getpeercert() or {}
    return int(str(found["serialNumber"]), 16)


async def test_who_asks_for_a_name_gets_its_certificate_and_a_reload_renews_it(
    authority: Authority, pair: Pair
) -> None:
    names = ("one.example", "*.two.example")
    pairs = {name: authority.issue(name) for name in names}
    certs = [
        {"server_name": name, "cert": each.cert, "key": each.key} for name, each in pairs.items()
    ]
    listener = {"address": f"mqtts://{HOST}:0", "certs": certs}
    doors = doorways(pair, listener)
    async with broker(listener=doors) as running:

        async def serial(name: str | None) -> int:
            return await trio.to_thread.run_sync(served, authority, running.address[1], name)

        assert await serial("one.example") == pairs["one.example"].serial
        assert await serial("ONE.example") == pairs["one.example"].serial
        assert await serial("a.two.example") == pairs["*.two.example"].serial
        for name in ("a.b.two.example", "two.example", "other.example", None):
            assert await serial(name) == pair.serial
        client = await secure_client(running, authority.client_context(), "stays")
        new = authority.issue("one.example")
        for path, source in (
            (pairs["one.example"].cert, new.cert),
            (pairs["one.example"].key, new.key),
        ):
            path.write_bytes(source.read_bytes())
        keeper = doors[0].tls
        assert keeper is not None
        keeper.use(keeper.read())
        assert await serial("one.example") == new.serial
        await client.ping()
        await client.close()


def hello(name: bytes) -> bytes:
    """The first message of a client that asks for a name of these bytes."""
    outgoing = ssl.MemoryBIO()
    usual = "a" * len(name)
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=usual)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read().replace(usual.encode(), name)


async def test_names_that_are_no_text_do_not_fill_the_log(
    authority: Authority, pair: Pair, capfd: pytest.CaptureFixture[str]
) -> None:
    certs = [{"server_name": "one.example", "cert": pair.cert, "key": pair.key}]
    doors = doorways(pair, {"address": f"mqtts://{HOST}:0", "certs": certs})
    with capture_logs() as logs:
        async with broker(listener=doors) as running, trio.open_nursery() as nursery:
            nursery.start_soon(log_ignored)
            for _ in range(2 * SHOWN_MAX):
                async with await trio.open_tcp_stream(*running.address) as stream:
                    await stream.send_all(hello(b"\xff" * 30))
                    assert (await stream.receive_some(1))[0] == ALERT
            nursery.cancel_scope.cancel()
    assert len([each for each in logs if "exc_info" in each]) == SHOWN_MAX
    assert "UnicodeDecodeError" not in capfd.readouterr().err


async def test_a_client_certificate_is_asked_for_under_every_name(
    authority: Authority, pair: Pair
) -> None:
    other = authority.issue("one.example")
    certs = [{"server_name": "one.example", "cert": other.cert, "key": other.key}]
    listener = {"address": f"mqtts://{HOST}:0", "certs": certs, "client_ca": authority.cert}
    async with broker(listener=doorways(pair, listener)) as running:
        for context, is_let_in in (
            (authority.client_context(), False),
            (authority.client_context(authority.issue("sensor")), True),
        ):
            plain = await trio.open_tcp_stream(*running.address)
            stream = trio.SSLStream(plain, context, server_hostname="one.example")
            wire = Wire(stream, 5)  # type: ignore[arg-type]
            try:
                await wire.send(connect_packet("c"))
                accepted = (await wire.expect(Connack)).reason_code == 0
                await wire.close()
            except trio.BrokenResourceError:
                accepted = False
                await trio.aclose_forcefully(plain)
            assert accepted is is_let_in


def test_a_certificate_of_a_name_that_cannot_be_used_is_named(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    for certs, complaint in (
        ({"server_name": "a.example", "cert": bad, "key": pair.key}, "bad.pem"),
        ({"server_name": "a.example", "cert": tmp_path / "no", "key": pair.key}, "cannot read"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            doorways(pair, {"address": f"mqtts://{HOST}:0", "certs": [certs]})
    with pytest.raises(ValueError, match="expected a name"):
        doorways(
            pair,
            {
                "address": f"mqtts://{HOST}:0",
                "certs": [{"server_name": "a*.b", "cert": pair.cert, "key": pair.key}],
            },
        )
