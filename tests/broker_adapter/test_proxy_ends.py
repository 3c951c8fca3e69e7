"""Ends of connections through a proxy, on sockets: nothing that was sent before them is lost."""

import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from broker_adapter.proxy.command import resolved
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Disconnect, Packet, Puback
from flowguard.types import MQTT_5, Publish
from tests.broker_adapter.proxy_here import HOST, doorways, open_stream, proxying, upstream
from tests.broker_adapter.upstream import MOSQUITTO, mosquitto, proxy
from tests.flowguard.broker.test_last_words import Hasty
from tests.support.authority import Authority
from tests.support.real import Wire, broker, connect_packet, until
from tests.support.websocket import WebSocketClient

pytestmark = pytest.mark.slow
COUNT = 5
MANY = 300


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def publishes(count: int) -> list[Publish]:
    return [Publish("t", b"%d" % n, 1, packet_id=n) for n in range(1, count + 1)]


async def open_wire(port: int) -> Wire:
    return Wire(await trio.open_tcp_stream(HOST, port), MQTT_5)


async def listening(port: int) -> Wire:
    """Return a subscriber."""
    wire = await open_wire(port)
    await wire.send(connect_packet("witness"))
    assert (await wire.expect(Connack)).reason_code == 0
    await wire.subscribe("t", 0)
    return wire


async def what_comes(wire: Wire) -> list[type[Packet]]:
    """Return the packets received until the other end closes."""
    kinds: list[type[Packet]] = []
    while (packet := await wire.receive()) is not None:
        kinds.append(type(packet))
    return kinds


@pytest.mark.peers
@pytest.mark.skipif(MOSQUITTO is None, reason="needs Mosquitto")
async def test_quick_publishers_lose_nothing_before_mosquitto(tmp_path: Path) -> None:
    """Clients that close at once, half-close at once, or half-close after CONNACK."""
    with mosquitto(tmp_path) as behind, proxy(tmp_path, behind.port) as port:
        witness = await listening(behind.port)
        (message,) = publishes(1)
        for number in range(COUNT):
            closing = await open_wire(port)
            await closing.send(connect_packet(f"a{number}"), message, Disconnect())
            await closing.close()
            half = await open_wire(port)
            await half.send(connect_packet(f"b{number}"), message, Disconnect())
            await half.stream.send_eof()
            assert await what_comes(half) == [Connack, Puback]
            await half.close()
            later = await open_wire(port)
            await later.send(connect_packet(f"c{number}"))
            await later.expect(Connack)
            await later.send(message)
            await later.stream.send_eof()
            assert await what_comes(later) == [Puback]
            await later.close()
        for _ in range(3 * COUNT):
            assert (await witness.expect(Publish)).payload == b"1"
        await witness.close()


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
async def test_who_says_everything_and_closes_is_forwarded_through_all_layers(
    authority: Authority, scheme: str, encrypted: bool
) -> None:
    tls = authority.client_context() if encrypted else None
    behind = doorways(authority, f"{'mqtts' if encrypted else 'mqtt'}://{HOST}:0", f"{HOST}:0")
    (before,) = doorways(authority, f"{scheme}://{HOST}:0")
    async with (
        broker(listener=behind, calm=True) as running,
        proxying([before], upstream(running.address[1], tls)),
    ):
        witness = await listening(behind[1].address.port or 0)
        stream: Any = await open_stream(before, authority)
        wire = Wire(stream, MQTT_5)
        await wire.send(connect_packet("me"), *publishes(MANY), Disconnect())
        if isinstance(stream, WebSocketClient):
            stream.protocol.send_close(1000)
            await stream.send_all(b"")
        await wire.close()
        heard = [(await witness.expect(Publish)).payload for _ in range(MANY)]
        assert heard == [message.payload for message in publishes(MANY)]
        await witness.close()


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
async def test_what_comes_with_the_end_of_a_layer_is_forwarded(
    authority: Authority, scheme: str
) -> None:
    behind = doorways(authority, f"mqtt://{HOST}:0")
    (before,) = doorways(authority, f"{scheme}://{HOST}:0")
    async with (
        broker(listener=behind, calm=True) as running,
        proxying([before], upstream(running.address[1])),
    ):
        witness = await listening(running.address[1])
        address = (HOST, before.address.port or 0)
        client = await trio.to_thread.run_sync(Hasty, scheme, address, authority.client_context())
        client.say(connect_packet("me"))
        await until(lambda: running.node.counters.clients_connected == 2)
        client.say(*publishes(COUNT), Disconnect(), is_last=True)
        heard = [(await witness.expect(Publish)).payload for _ in range(COUNT)]
        assert heard == [message.payload for message in publishes(COUNT)]
        await witness.close()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_who_half_closes_gets_all_acknowledgements(
    authority: Authority, encrypted: bool
) -> None:
    tls = authority.client_context() if encrypted else None
    behind = doorways(authority, f"{'mqtts' if encrypted else 'mqtt'}://{HOST}:0")
    before = doorways(authority, f"{HOST}:0")
    async with (
        broker(listener=behind, calm=True) as running,
        proxying(before, upstream(running.address[1], tls)),
    ):
        wire = await open_wire(before[0].address.port or 0)
        await wire.send(connect_packet("me"), *publishes(MANY))
        await wire.stream.send_eof()
        assert await what_comes(wire) == [Connack] + MANY * [Puback]
        await wire.close()


async def test_the_end_comes_to_the_upstream_behind_everything_and_its_answers_come_back(
    authority: Authority,
) -> None:
    """An upstream that says CONNACK and acknowledges only when it has heard the end."""
    before = doorways(authority, f"{HOST}:0")
    messages = publishes(3)
    with socket.create_server((HOST, 0)) as server:
        server.setblocking(False)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(server))
        async with proxying(before, upstream(server.getsockname()[1])):
            wire = await open_wire(before[0].address.port or 0)
            await wire.send(connect_packet("me"), *messages)
            await wire.stream.send_eof()
            accepted = await listener.accept()
            decoder, heard = PacketDecoder(1_000), list[Packet]()
            async for data in accepted:
                decoder.feed(bytes(data))
                while (packet := decoder.next()) is not None:
                    heard.append(packet)
                    if isinstance(packet, Connect):
                        await accepted.send_all(encode(Connack(False, 0), MQTT_5))
            assert heard == [connect_packet("me"), *messages]
            for message in messages:
                await accepted.send_all(encode(Puback(message.packet_id), MQTT_5))
            await accepted.aclose()
            assert await what_comes(wire) == [Connack, Puback, Puback, Puback]
            await wire.close()


async def test_a_client_that_resets_its_connection_is_forgotten(authority: Authority) -> None:
    """The upstream notices it, and `proxying` waits until no client is left."""
    before = doorways(authority, f"{HOST}:0")
    with socket.create_server((HOST, 0)) as server:
        server.setblocking(False)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(server))
        async with proxying(before, upstream(server.getsockname()[1])):
            wire = await open_wire(before[0].address.port or 0)
            await wire.send(connect_packet("me"))
            accepted = await listener.accept()
            await accepted.send_all(encode(Connack(False, 0), MQTT_5))
            await wire.expect(Connack)
            wire.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await wire.close()
            with suppress(trio.BrokenResourceError):
                while await accepted.receive_some():
                    pass
            await accepted.aclose()


async def test_an_upstream_is_found_at_whichever_of_its_addresses_it_listens(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = doorways(authority, f"{HOST}:0")
    async with broker(calm=True) as running:
        port = running.address[1]
        found = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (HOST, port)),
        ]
        with monkeypatch.context() as patched:
            patched.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            place = resolved(f"two.addresses.invalid:{port}", None)
        async with proxying(before, place) as core:
            wire = await open_wire(before[0].address.port or 0)
            await wire.send(connect_packet("me"))
            assert (await wire.expect(Connack)).reason_code == 0
            assert core.is_up
            await wire.close()
