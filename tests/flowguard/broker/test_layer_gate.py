"""The gate before TLS: a connection without a slot stays unread, a closed one costs no
cryptography."""

import socket
import ssl
from pathlib import Path

import pytest
import trio

from flowguard.broker.server import Running
from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.codec.packets import Connack
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.accept_state import LayerFault
from tests.support.authority import Authority
from tests.support.real import CALM, Wire, broker, connect, connect_packet, until

pytestmark = pytest.mark.slow
HOST = "127.0.0.1"


def doorway_of(authority: Authority) -> Doorway:
    pair = authority.issue(HOST)
    network = {"listeners": [f"mqtts://{HOST}:0"], "cert": pair.cert, "key": pair.key}
    (doorway,) = open_doorways(NetworkSettings.model_validate(network))
    return doorway


def handshakes_begun(doorway: Doorway) -> int:
    """As OpenSSL counts them: those for which any cryptography was done."""
    assert doorway.tls is not None
    return doorway.tls._context.session_stats()["accept"]


def client_hello(authority: Authority) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = authority.client_context().wrap_bio(incoming, outgoing, server_hostname=HOST)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


async def test_peers_that_have_left_cost_no_cryptography(tmp_path: Path) -> None:
    """All but one have gone when it is their turn."""
    authority = Authority(tmp_path)
    doorway = doorway_of(authority)
    hello = client_hello(authority)
    async with broker({"flow": {"connects_in_process_max": 1}}, listener=[doorway]) as running:
        for _ in range(50):
            with socket.create_connection(running.address) as sock:
                sock.sendall(hello)
        alive = socket.create_connection(running.address)
        alive.sendall(hello)
        await until(lambda: running.node.door.faults[LayerFault.LEFT] == 50)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(alive))
        assert (await stream.receive_some(5))[:1] == b"\x16"  # It is answered in TLS.
        assert handshakes_begun(doorway) == 1
        await stream.aclose()
        handshakes = running.node.door.handshakes
        assert handshakes is not None
        assert handshakes.buffered == handshakes.in_process == 0


async def come_in(running: Running, context: ssl.SSLContext, number: int) -> None:
    plain = await trio.open_tcp_stream(*running.address)
    stream = trio.SSLStream(plain, context, server_hostname=HOST)
    await stream.do_handshake()
    wire = Wire(stream, 5)  # type: ignore[arg-type]
    await wire.send(connect_packet(f"c{number}"))
    assert (await wire.expect(Connack)).reason_code == 0
    await wire.ping()
    await wire.close()


async def test_a_crowd_for_which_there_are_few_places_is_let_in_whole(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    doorway = doorway_of(authority)
    context = authority.client_context()
    flow = {"connects_in_process_max": 3, "connect_patience_s": 200, "connect_timeout_s": 200}
    async with broker({"flow": {**CALM, **flow}}, listener=[doorway]) as running:
        gate = running.node.door.handshakes
        assert gate is not None
        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(come_in, running, context, number)
        assert not gate.refused
        assert running.node.counters.connects_accepted == 60
        assert not any(running.node.door.faults.values())


async def test_nobody_who_is_there_is_closed_for_having_waited(tmp_path: Path) -> None:
    """A closed client connects again, and has to be accepted once more, which helps no client."""
    authority = Authority(tmp_path)
    doorway = doorway_of(authority)
    hello = client_hello(authority)
    flow = {"connects_in_process_max": 1, "connect_patience_s": 0.01, "connect_timeout_s": 600}
    async with broker({"flow": flow}, listener=[doorway]) as running:
        gate = running.node.door.handshakes
        assert gate is not None
        crowd = [socket.create_connection(running.address) for _ in range(200)]
        for sock in crowd:
            sock.sendall(hello)
        await until(lambda: handshakes_begun(doorway) + sum(gate.refused.values()) >= 200)
        assert handshakes_begun(doorway) == 200
        for sock in crowd:
            sock.close()


async def test_bytes_one_by_one_are_a_handshake_that_never_holds_a_place(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    doorway = doorway_of(authority)
    hello = client_hello(authority)
    async with broker({"flow": {"connects_in_process_max": 1}}, listener=[doorway]) as running:
        slow = await trio.open_tcp_stream(*running.address)
        for byte in hello[:40]:
            await slow.send_all(bytes((byte,)))
        await come_in(running, authority.client_context(), 1)
        await slow.send_all(hello[40:])
        assert (await slow.receive_some(5))[:1] == b"\x16"
        await slow.aclose()


async def test_those_on_a_plain_listener_do_not_wait_behind_handshakes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue(HOST)
    listeners = [f"mqtt://{HOST}:0", f"mqtts://{HOST}:0"]
    network = {"listeners": listeners, "cert": pair.cert, "key": pair.key}
    doorways = open_doorways(NetworkSettings.model_validate(network))
    hello = client_hello(authority)
    async with broker({"flow": CALM}, listener=doorways) as running:
        port = running.addresses[1].port
        assert port is not None
        crowd = [socket.create_connection((HOST, port)) for _ in range(100)]
        for sock in crowd:
            sock.sendall(hello)
        client = await connect(running, "plain")
        await client.ping()
        await client.close()
        for sock in crowd:
            sock.close()


async def test_a_handshake_is_booked_apart_from_connects_and_messages(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    hello = client_hello(authority)
    async with broker({"flow": CALM}, listener=[doorway_of(authority)]) as running:
        observer, booked_s = running.node.guard.observer, 0.0
        deadline_s = trio.current_time() + 60.0
        while not booked_s:  # Each tick starts a new count.
            assert trio.current_time() < deadline_s
            with socket.create_connection(running.address) as sock:
                sock.sendall(hello)
                await trio.to_thread.run_sync(sock.recv, 1)
                booked_s = observer.handshakes_s
        assert observer.connecting_s == 0.0
