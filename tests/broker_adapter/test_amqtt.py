"""amqtt with the plugin, and without: a flood that is held back, and one that is swallowed."""

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from benchmarks.brokers import free_port
from flowguard.codec.packets import Connack, Pingreq, Pingresp, Puback
from flowguard.types import MQTT_5, MQTT_311, Publish
from tests.support.real import TEST_S, Wire, connect_packet, until

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".peers" / "amqtt" / "bin" / "python"
FLOOD = 200
LONG_FLOOD = 500
QUEUE = 100
"""Capacity of the plugin's queue to subscribers."""
WINDOW = 5

pytestmark = [
    pytest.mark.peers,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs amqtt (scripts/setup-test-peers.sh)"),
]


@asynccontextmanager
async def amqtt(folder: Path, *, guarded: bool, **flow: object) -> AsyncIterator[int]:
    """A broker of its own, with the flood's valve in `folder`; its port."""
    port = free_port()
    hold = "tests.broker_adapter.amqtt_hold"
    lines = [
        f"listeners: {{default: {{type: tcp, bind: '127.0.0.1:{port}'}}}}",
        "plugins:",
        f"  {hold}.HoldConnects: {{path: {folder / 'connects'}}}",
        f"  {hold}.Hold: {{path: {folder / 'messages'}}}",
        f"  {hold}.HoldDeliveries: {{path: {folder / 'deliveries'}}}",
    ]
    if guarded:
        limits = ", ".join(f"{key}: {value}" for key, value in flow.items())
        lines.append(f"  broker_adapter.amqtt_plugin.OverloadProtection: {{flow: {{{limits}}}}}")
    config = folder / "amqtt.yaml"
    config.write_text("\n".join(lines) + "\n")
    log = folder / "amqtt.txt"
    with log.open("w") as output:
        process = subprocess.Popen(  # noqa: ASYNC220
            [PYTHON, PYTHON.parent / "amqtt", "-c", config],
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )
    try:
        with trio.fail_after(TEST_S):
            while True:
                output = log.read_text()
                assert process.poll() is None, output
                assert "Broker startup failed" not in output, "without a port it goes on"
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await trio.sleep(0.05)
            yield port
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.wait()


async def connect(port: int, client_id: str) -> Wire:
    wire = Wire(await trio.open_tcp_stream("127.0.0.1", port), MQTT_311)
    await wire.send(connect_packet(client_id, MQTT_311))
    assert (await wire.expect(Connack)).reason_code == 0
    return wire


async def flood(port: int, folder: Path) -> tuple[int, list[bytes]]:
    """Acknowledgements while nothing is worked on; and what a subscriber gets afterwards."""
    subscriber = await connect(port, "subscriber")
    await subscriber.subscribe("a", 0)
    valve = folder / "messages"
    valve.touch()
    publisher = await connect(port, "publisher")
    acknowledged: list[int] = []
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            while isinstance(packet := await publisher.receive(), Puback):
                acknowledged.append(packet.packet_id)

        nursery.start_soon(listen)
        await publisher.send(
            *(Publish("a", b"%d" % number, 1, packet_id=number) for number in range(1, FLOOD + 1))
        )
        await until(lambda: len(acknowledged) >= WINDOW)
        # A request is answered after all packets that could be acknowledged.
        for _ in range(3):
            await subscriber.send(Pingreq())
            await subscriber.expect(Pingresp)
        before = len(acknowledged)
        valve.unlink()
        await until(lambda: len(acknowledged) == FLOOD)
        nursery.cancel_scope.cancel()
    got = []
    for _ in range(FLOOD):
        got.append((await subscriber.expect(Publish)).payload)
    await publisher.close()
    await subscriber.close()
    return before, got


async def test_a_flood_is_acknowledged_no_further_than_its_window(tmp_path: Path) -> None:
    calm = {"store_objective_s": 1e9, "loop_objective_s": 1e9}
    async with amqtt(tmp_path, guarded=True, window_max=WINDOW, **calm) as port:
        before, got = await flood(port, tmp_path)
    assert before == WINDOW
    assert got == [b"%d" % number for number in range(1, FLOOD + 1)]


async def test_without_the_plugin_all_of_it_is_acknowledged_and_nothing_done(
    tmp_path: Path,
) -> None:
    async with amqtt(tmp_path, guarded=False) as port:
        subscriber = await connect(port, "subscriber")
        await subscriber.close()
        (tmp_path / "messages").touch()
        publisher = await connect(port, "publisher")
        await publisher.send(
            *(Publish("a", b"x", 1, packet_id=number) for number in range(1, FLOOD + 1))
        )
        for _ in range(FLOOD):
            await publisher.expect(Puback)
        await publisher.close()


async def test_the_same_packet_again_before_it_is_done_holds_nobody_up(tmp_path: Path) -> None:
    async with amqtt(tmp_path, guarded=True, window_max=1) as port:
        valve = tmp_path / "messages"
        valve.touch()
        publisher = await connect(port, "publisher")
        await publisher.send(*[Publish("a", b"x", 1, packet_id=5)] * 2, Pingreq())
        await publisher.expect(Puback)
        valve.unlink()
        while not isinstance(await publisher.receive(), Pingresp):
            pass
        await publisher.close()


def test_a_connection_that_ends_while_its_packet_waits_leaves_nothing_in_process() -> None:
    done = subprocess.run(
        [PYTHON, "-m", "tests.broker_adapter.amqtt_leaving"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=TEST_S,
        check=True,
    )
    assert done.stdout.splitlines() == ["0 0", "0 0"]


async def place_of_a_quiet_message(port: int, folder: Path, flood: int, held: int) -> int:
    """Return how many messages of a flood are delivered before one of another client.

    It is published when amqtt has processed `held` of the flood, and none is delivered.
    """
    subscriber = await connect(port, "subscriber")
    await subscriber.subscribe("#", 0)
    (folder / "deliveries").touch()
    published = folder / "deliveries-published"
    published.touch()
    flooding, quiet = await connect(port, "flood"), await connect(port, "quiet")
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            while isinstance(await flooding.receive(), Puback):
                pass

        nursery.start_soon(listen)
        await flooding.send(*(Publish("a", b"x", 1, packet_id=n) for n in range(1, flood + 1)))
        await until(lambda: published.stat().st_size >= held)
        await quiet.send(Publish("quiet", b"x", 1, packet_id=1))
        await until(lambda: published.stat().st_size > held)
        (folder / "deliveries").unlink()
        place = 0
        while (await subscriber.expect(Publish)).topic != "quiet":
            place += 1
        nursery.cancel_scope.cancel()
    for wire in (subscriber, flooding, quiet):
        await wire.close()
    return place


async def test_a_quiet_message_waits_behind_the_queue_not_behind_the_flood(tmp_path: Path) -> None:
    calm = {"store_objective_s": 1e9, "loop_objective_s": 1e9}
    async with amqtt(tmp_path, guarded=True, window_max=WINDOW, **calm) as port:
        place = await place_of_a_quiet_message(port, tmp_path, LONG_FLOOD, QUEUE + 2)
    assert place <= QUEUE + WINDOW + 1


async def test_without_the_plugin_a_quiet_message_waits_behind_the_flood(tmp_path: Path) -> None:
    async with amqtt(tmp_path, guarded=False) as port:
        place = await place_of_a_quiet_message(port, tmp_path, LONG_FLOOD, LONG_FLOOD)
    assert place > LONG_FLOOD - WINDOW


async def test_connects_beyond_the_gate_are_refused(tmp_path: Path) -> None:
    (tmp_path / "connects").touch()
    limits = {"connects_in_process_max": 1, "connect_buffer_max": 0}
    codes: list[int] = []

    async def come(name: str, version: int) -> None:
        """Connect, and note what CONNACK says."""
        wire = Wire(await trio.open_tcp_stream("127.0.0.1", port), version)
        await wire.send(connect_packet(name, version))
        answer = b""
        while len(answer) < 4:
            answer += await wire.stream.receive_some(4 - len(answer))
        codes.append(answer[3])
        await wire.close()

    async with amqtt(tmp_path, guarded=True, **limits) as port, trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(come, f"c{number}", MQTT_311)
        await until(lambda: len(codes) == 2)
        await come("new", MQTT_5)
        assert codes == [3, 3, 137], "one of the three has the place"
        (tmp_path / "connects").unlink()
        await until(lambda: len(codes) == 4)
        assert codes[-1] == 0
