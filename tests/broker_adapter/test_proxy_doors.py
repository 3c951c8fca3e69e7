"""TLS and WebSocket on both sides of a proxy, and what it says of its clients to the upstream."""

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest
import trio
import trio.testing

from broker_adapter.proxy.core import ProxyCore
from broker_adapter.proxy.protocol import SIGNATURE
from broker_adapter.proxy.reactor import ProxyReactor
from broker_adapter.proxy.run import keep_house
from broker_adapter.proxy.watch.reload import Reloads
from flowguard.broker.layers.tls import TlsKeeper
from flowguard.broker.memory import bounds_of
from flowguard.broker.server import listen
from flowguard.broker.sockets.link import Link
from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Disconnect
from flowguard.config import MIB, FlowSettings, Settings
from flowguard.flow.load.signals import TICK_S
from flowguard.network_settings import NetworkSettings
from flowguard.types import MQTT_5, Publish, ReasonCode
from tests.broker_adapter.proxy_here import HOST, doorways, face_of, open_stream, proxying, upstream
from tests.broker_adapter.proxy_stage import ProxyStage
from tests.support.authority import Authority
from tests.support.layers import BROKEN_AT, BrokenLayer
from tests.support.real import TEST_S, Wire, broker, connect_packet, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize("encrypted", [False, True])
async def test_messages_of_any_size_pass_all_layers(authority: Authority, encrypted: bool) -> None:
    schemes = ("mqtt", "mqtts", "ws", "wss")
    tls = authority.client_context() if encrypted else None
    behind = doorways(authority, f"{'mqtts' if encrypted else 'mqtt'}://{HOST}:0")
    before = doorways(authority, *(f"{scheme}://{HOST}:0" for scheme in schemes))
    async with (
        broker(listener=behind, calm=True) as running,
        proxying(before, upstream(running.address[1], tls)) as core,
    ):
        for doorway in before:
            wire = Wire(await open_stream(doorway, authority), MQTT_5)
            await wire.send(connect_packet("me"))
            assert (await wire.expect(Connack)).reason_code == 0
            await wire.subscribe("t", 0)
            for size in (0, 1, 70_000, 700_000):
                await wire.send(Publish("t", b"x" * size))
                assert len((await wire.expect(Publish)).payload) == size
            await wire.close()
        assert not any(core.door.faults.values())


async def test_of_two_reloads_the_files_read_last_are_in_use(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = doorways(authority, f"mqtts://{HOST}:0")
    go_on, read, contexts = threading.Event(), TlsKeeper.read, []

    def slow_at_first(keeper: TlsKeeper) -> ssl.SSLContext:
        contexts.append(read(keeper))
        context = contexts[-1]
        if len(contexts) == 1:
            go_on.wait()
        return context

    monkeypatch.setattr(TlsKeeper, "read", slow_at_first)
    reloads = Reloads(face_of(ProxyStage().core), before, lambda: bounds_of(Settings()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reloads.reload)
        await until(lambda: len(contexts) == 1)
        nursery.start_soon(reloads.reload)
        await trio.testing.wait_all_tasks_blocked(0.1)
        go_on.set()
    assert before[0].tls is not None
    assert before[0].tls._context is contexts[1]
    before[0].sock.close()


async def test_a_certificate_that_is_not_trusted_is_an_upstream_that_is_not_there(
    authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").client_context()
    behind, before = doorways(authority, f"mqtts://{HOST}:0"), doorways(authority, f"{HOST}:0")
    async with (
        broker(listener=behind, calm=True) as running,
        proxying(before, upstream(running.address[1], stranger)) as core,
    ):
        wire = Wire(await open_stream(before[0], authority), MQTT_5)
        await wire.send(connect_packet("me"))
        while core.is_up:  # noqa: ASYNC110
            await trio.sleep(0.01)
        await wire.close()


@pytest.mark.parametrize(("method", "established"), BROKEN_AT)
async def test_a_layer_that_fails_ends_its_pair_and_no_other(
    authority: Authority, method: str, established: bool
) -> None:
    broken = Doorway(
        listen(HOST, 0), websocket=lambda sock, *_: BrokenLayer(sock, method, established)
    )
    whole = doorways(authority, f"{HOST}:0")
    told: list[Exception] = []
    async with (
        broker(calm=True) as running,
        proxying([*whole, broken], upstream(running.address[1]), on_error=told.append) as core,
    ):
        witness = Wire(await open_stream(whole[0], authority), MQTT_5)
        await witness.send(connect_packet("witness"))
        assert (await witness.expect(Connack)).reason_code == 0
        wire = Wire(await trio.open_tcp_stream(HOST, broken.address.port or 0), MQTT_5)
        with suppress(trio.BrokenResourceError):
            await wire.send(connect_packet("c"), Disconnect(ReasonCode.SUCCESS))
            while await wire.receive() is not None:
                pass
        await until(lambda: len(core.pairs) == 1 and bool(told))
        await witness.ping()
        await witness.close()
        await wire.close()
    assert [str(error) for error in told] == [method]


@pytest.mark.parametrize("scheme", ["mqtt", "wss"])
async def test_the_upstream_is_told_where_a_client_comes_from(
    authority: Authority, scheme: str
) -> None:
    before = doorways(authority, f"{scheme}://{HOST}:0")
    with socket.create_server((HOST, 0)) as server:
        server.setblocking(False)
        behind = trio.socket.from_stdlib_socket(server)
        place = upstream(server.getsockname()[1])
        async with proxying(before, place, says_address=True):
            stream = await open_stream(before[0], authority)
            transport = stream
            while not isinstance(transport, trio.SocketStream):
                transport = getattr(transport, "transport_stream", None) or transport.stream
            ends = transport.socket.getsockname(), transport.socket.getpeername()
            wire = Wire(stream, MQTT_5)
            await wire.send(connect_packet("me"))
            accepted, _ = await behind.accept()
            with accepted:
                said = b""
                connect = encode(connect_packet("me"), MQTT_5)
                while len(said) < 28 + len(connect):
                    said += await accepted.recv(1_000)
                ports = b"".join(port.to_bytes(2) for _, port in ends)
                local = socket.inet_aton(HOST)
                assert said[:28] == SIGNATURE + b"\x21\x11\x00\x0c" + local + local + ports
                assert said[28:] == connect
            await wire.close()


async def test_a_broker_behind_it_knows_its_clients_by_their_own_addresses(
    authority: Authority,
) -> None:
    listener = {"address": f"mqtt://{HOST}:0", "proxies": HOST}
    behind = open_doorways(NetworkSettings.model_validate({"listeners": [listener]}))
    before = doorways(authority, f"mqtt://{HOST}:0")
    async with (
        broker(listener=behind) as running,
        proxying(before, upstream(running.address[1]), says_address=True),
    ):
        stream = await open_stream(before[0], authority)
        assert isinstance(stream, trio.SocketStream)
        wire = Wire(stream, MQTT_5)
        await wire.send(connect_packet("me"))
        assert (await wire.expect(Connack)).reason_code == 0
        session = running.node.registry.sessions["me"]
        assert session.outbound is not None
        link = session.outbound.connection.transport
        assert isinstance(link, Link)
        own = stream.socket.getsockname()
        assert link.peer() == f"{own[0]}:{own[1]}"
        await wire.close()


async def test_an_error_in_one_tick_does_not_end_the_proxy() -> None:
    """The clock of its handshakes fails."""

    def fail_later() -> float:
        calls.append(None)
        if len(calls) > begun:
            raise LookupError("broken")
        return monotonic()

    calls: list[None] = []
    begun = 1_000
    errors: list[Exception] = []
    flow = FlowSettings(unfinished_bytes_max=MIB)
    core = ProxyCore(flow, MIB, [], draw=lambda: 0.5, on_error=errors.append)
    reactor = ProxyReactor(core, fail_later)
    begun = len(calls)
    with trio.fail_after(TEST_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_house, core, reactor, monotonic)
            while len(errors) < 2:  # noqa: ASYNC110
                await trio.sleep(TICK_S)
            nursery.cancel_scope.cancel()
    reactor.close()
