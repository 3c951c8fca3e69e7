"""`flowguard proxy` with a real Mosquitto behind it."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
import trio

from benchmarks.brokers import free_port
from broker_adapter.proxy.command import gated
from flowguard.cli.settings import load
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from flowguard.types import MQTT_5, MQTT_311, Publish, SubscriptionOptions
from tests.broker_adapter.upstream import MOSQUITTO, Mosquitto, mosquitto, proxy
from tests.interop.broker import PATIENCE_S, start
from tests.interop.paho_peer import end_loop
from tests.support.real import TEST_S, Wire, connect_packet

pytestmark = [
    pytest.mark.peers,
    pytest.mark.slow,
    pytest.mark.skipif(MOSQUITTO is None, reason="needs Mosquitto"),
]


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Mosquitto]:
    with mosquitto(tmp_path) as running:
        yield running


async def open_wire(port: int, version: int = MQTT_5) -> Wire:
    return Wire(await trio.open_tcp_stream("127.0.0.1", port), version)


async def attempt(port: int, client_id: str, version: int = MQTT_5) -> tuple[Wire, int | None]:
    """Return a connection, and the reason code of its CONNACK, or None without one."""
    wire = await open_wire(port, version)
    try:
        await wire.send(connect_packet(client_id, version))
        connack = await wire.receive()
    except trio.BrokenResourceError:
        return wire, None
    return wire, connack.reason_code if isinstance(connack, Connack) else None


async def conversation(port: int, version: int) -> bytes:
    """All that a broker answers to a conversation with everything in it."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    options = SubscriptionOptions(2)
    received = bytearray()

    async def say(answer: int, *packets: object) -> None:
        """Send packets, and wait for `answer` bytes."""
        await stream.send_all(b"".join(encode(packet, version) for packet in packets))  # type: ignore
        wanted = len(received) + answer
        while len(received) < wanted:
            data = await stream.receive_some()
            if not data:
                return
            received.extend(data)

    def size(*packets: object) -> int:
        return sum(len(encode(packet, version)) for packet in packets)  # type: ignore

    big = b"x" * 200_000
    connack = 4 if version == MQTT_311 else 5
    await say(connack, connect_packet("me", version))
    received[:] = received[:4] if version == MQTT_311 else received
    await say(size(Suback(1, (2,))), Subscribe(1, (("a/#", options),)))
    await say(size(Publish("a/0", b"x")), Publish("a/0", b"x"))
    echo = Publish("a/1", big, 1, packet_id=1)
    await say(size(Puback(2), echo), Publish("a/1", big, 1, packet_id=2))
    await say(0, Puback(1))
    await say(size(Pubrec(3)), Publish("a/2", b"z", 2, packet_id=3))
    await say(size(Pubcomp(3), Publish("a/2", b"z", 2, packet_id=2)), Pubrel(3))
    await say(size(Pubrel(2)), Pubrec(2))
    await say(2, Pubcomp(2), Pingreq())
    await say(size(Unsuback(4, (0,) if version == MQTT_5 else ())), Unsubscribe(4, ("a/#",)))
    await say(1, Disconnect())
    await stream.aclose()
    return bytes(received)


@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
async def test_a_conversation_through_the_proxy_is_the_same_byte_by_byte(
    version: int, upstream: Mosquitto, tmp_path: Path
) -> None:
    with proxy(tmp_path, upstream.port) as port, trio.fail_after(TEST_S):
        direct = await conversation(upstream.port, version)
        assert len(direct) > 200_000
        assert await conversation(port, version) == direct


def test_pahos_client_gets_every_message_once_and_in_order(
    upstream: Mosquitto, tmp_path: Path
) -> None:
    got: list[bytes] = []
    with proxy(tmp_path, upstream.port, window_max=5) as port:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.on_message = lambda *event: got.append(event[2].payload)
        client.connect("127.0.0.1", port)
        client.subscribe("a/#", 2)
        client.loop_start()
        sent = [client.publish("a/b", b"%d" % n, qos=1) for n in range(500)]
        for message in sent:
            message.wait_for_publish(PATIENCE_S)
        while len(got) < 500:
            assert client.is_connected()
        client.disconnect()
        end_loop(client)
    assert got == [b"%d" % n for n in range(500)]


async def test_no_more_of_a_client_reaches_the_upstream_than_its_window(tmp_path: Path) -> None:
    """An upstream that acknowledges nothing: what reaches it is what the window lets through."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        heard: list[Publish] = []

        async def serve(stream: trio.SocketStream) -> None:
            decoder = PacketDecoder(2**28)
            async for data in stream:
                decoder.feed(bytes(data))
                while (packet := decoder.next()) is not None:
                    if isinstance(packet, Publish):
                        heard.append(packet)
                    elif isinstance(packet, Connect):
                        await stream.send_all(encode(Connack(False, 0), MQTT_5))
                    elif isinstance(packet, Pingreq):
                        await stream.send_all(b"\xd0\x00")

        nursery.start_soon(trio.serve_listeners, serve, listeners)
        upstream_port = listeners[0].socket.getsockname()[1]
        with proxy(
            tmp_path, upstream_port, window_max=3, store_objective_s=1e9, loop_objective_s=1e9
        ) as port:
            wire, code = await attempt(port, "me")
            assert code == 0
            many = [Publish("a", b"x", 1, packet_id=number) for number in range(1, 51)]
            await wire.send(*many)
            await wire.ping()  # The control lane: it is answered, though they wait.
            assert [packet.packet_id for packet in heard] == [1, 2, 3]
            await wire.close()
        nursery.cancel_scope.cancel()


async def test_a_crowd_is_let_in_few_at_a_time_and_told_when_to_come_back(
    upstream: Mosquitto, tmp_path: Path
) -> None:
    codes: list[int | None] = []
    with proxy(tmp_path, upstream.port, connects_in_process_max=4, connect_buffer_max=20) as port:
        async with trio.open_nursery() as nursery:

            async def come(number: int) -> None:
                wire, code = await attempt(port, f"c{number}")
                codes.append(code)
                await wire.close()

            for number in range(300):
                nursery.start_soon(come, number)
    assert len(codes) == 300
    assert set(codes) <= {0, 137}, "refusals, and no reset"
    assert codes.count(0) >= 20


async def test_the_upstream_is_killed_and_started_again_and_everybody_is_back(
    upstream: Mosquitto, tmp_path: Path
) -> None:
    """Ten times; the connections of clients end, they wait, and are served again."""
    clients = 30
    with proxy(tmp_path, upstream.port, connect_patience_s=60) as port, trio.fail_after(TEST_S):
        for turn in range(10):
            wires: list[Wire] = []
            async with trio.open_nursery() as nursery:

                async def come(number: int, wires: list[Wire] = wires) -> None:
                    wire, code = await attempt(port, f"c{number}")
                    assert code == 0
                    await wire.subscribe("a", 1)
                    wires.append(wire)

                for number in range(clients):
                    nursery.start_soon(come, number)
                if turn:
                    await trio.sleep(0.05)  # They wait at the proxy.
                    await trio.to_thread.run_sync(upstream.start)
            await wires[0].send(Publish("a", b"%d" % turn, 1, packet_id=7))
            for wire in wires:
                while not isinstance(packet := await wire.receive(), Publish):
                    assert isinstance(packet, Puback)
                assert packet.payload == b"%d" % turn
            upstream.kill()
            for wire in wires:
                try:
                    while await wire.receive() is not None:
                        pass
                except trio.BrokenResourceError:
                    pass
                await wire.close()


async def test_an_upstream_that_is_not_there_is_136_with_a_time(tmp_path: Path) -> None:
    with proxy(tmp_path, free_port(), connect_patience_s=1.0) as port, trio.fail_after(TEST_S):
        wire = await open_wire(port)
        await wire.send(connect_packet("me"))
        connack = await wire.expect(Connack)
        assert connack.reason_code == 136
        assert int(dict(connack.properties.user_properties)["retry-after-ms"]) >= 500
        assert await wire.receive() is None, "it ends in good order"
        old = await open_wire(port, MQTT_311)
        await old.send(connect_packet("me", MQTT_311))
        assert await old.stream.receive_some(4) == b"\x20\x02\x00\x03"
        await old.close()
        await wire.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--upstream", "nowhere"], "nowhere"),
        (["--upstream", "127.0.0.1:0"], "--upstream 127.0.0.1:0: port 0 is no address"),
        (["--upstream", "no.such.host.invalid:1883"], "--upstream no.such.host.invalid:1883"),
        (["--upstream", "127.0.0.1:1", "--config", "/no/such/file"], "/no/such/file"),
    ],
)
def test_what_cannot_start_says_so_in_one_line(arguments: list[str], said: str) -> None:
    process = start("proxy", *arguments, "--listen", "127.0.0.1:0")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert not out
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_the_log_names_a_client_whose_websocket_handshake_fails() -> None:
    process = start("proxy", "--upstream", "127.0.0.1:1", "--listen", "ws://127.0.0.1:0")
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[2].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            address = "{}:{}".format(*client.getsockname())
            while client.recv(4_096):
                pass
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    (line,) = [line for line in log.splitlines() if "transport failed" in line]
    assert address in line
    assert "not_websocket" in line


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        process = start("proxy", "--upstream", "127.0.0.1:1", "--listen", f"127.0.0.1:{port}")
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert f"127.0.0.1:{port}" in err


@pytest.mark.parametrize(
    ("environment", "connects"),
    [({}, 128), ({"FLOWGUARD_FLOW__CONNECTS_IN_PROCESS_MAX": "500"}, 500)],
)
def test_connects_at_once_fit_into_the_backlogs_of_upstreams_unless_settings_say_otherwise(
    environment: dict[str, str], connects: int
) -> None:
    flow = load(None, environment).bounds.settings.flow
    assert gated(flow, 2).connects_in_process_max == connects
