"""A flood from all sides, many times larger than every limit: the process stays below its bound."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Packet, Puback, Pubrec
from flowguard.types import MQTT_311, Publish
from tests.interop.broker import address_in
from tests.support.real import TEST_S, Wire, connect_packet

MIB = 1024 * 1024
BOUND_BYTES = 256 * MIB
FLOOD_BYTES = 80 * MIB
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CONFIG = f"""
[flow]
memory_max_bytes = {BOUND_BYTES}
journal_bytes_max = {8 * MIB}

[session]
queue_bytes_max = {16 * MIB}
queue_messages_max = 1_000_000
outbox_bytes_max = {2 * MIB}

[node]
queue_bytes_max = {24 * MIB}
outbox_bytes_max = {24 * MIB}
retained_bytes_max = {16 * MIB}
input_bytes_max = {16 * MIB}
"""
"""Together some 64 MiB of content; a fresh process has about as much, objects cost the rest."""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    config = tmp_path / "flowguard.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "flowguard", "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--config", str(config)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        process.terminate()
        assert process.wait(TEST_S) == 0


def resident_bytes(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE_BYTES


class Flood:
    """Clients of one broker process, and the most memory it was seen to use."""

    def __init__(self, process: subprocess.Popen[str], address: tuple[str, int]) -> None:
        self._process = process
        self._address = address
        self.peak_bytes = 0

    async def client(self, client_id: str, *, durable: bool = False) -> Wire:
        wire = Wire(await trio.open_tcp_stream(*self._address), MQTT_311)
        await wire.send(connect_packet(client_id, MQTT_311, durable=durable))
        assert (await wire.expect(Connack)).reason_code == 0
        return wire

    async def run(self, topic: str, payload_bytes: int, qos: int, *, retain: bool) -> None:
        """FLOOD_BYTES of messages; with QoS, each chunk is acknowledged before the next one."""
        wire = await self.client(f"flood-{topic}")
        per_chunk = max(1, 64 * 1024 // (payload_bytes + 20))
        for chunk in range(max(1, FLOOD_BYTES // (per_chunk * (payload_bytes + 20)))):
            messages = [
                Publish(
                    f"{topic}/{chunk * per_chunk + number}" if retain else topic,
                    bytes(payload_bytes),
                    qos,
                    retain,
                    packet_id=number % 65_535 + 1 if qos else 0,
                )
                for number in range(per_chunk)
            ]
            await wire.stream.send_all(b"".join(encode(each, MQTT_311) for each in messages))
            if qos:
                for _ in messages:
                    await wire.expect(Puback)
            self.peak_bytes = max(self.peak_bytes, resident_bytes(self._process))
        await wire.ping()
        self.peak_bytes = max(self.peak_bytes, resident_bytes(self._process))
        await wire.close()

    async def run_pubrecs(self) -> None:
        """Answers without end to a client that reads none of them."""
        wire = await self.client("pubrecs")
        packets: list[Packet] = [Pubrec(1)] * 20_000
        with trio.move_on_after(1.0):
            while True:
                await wire.send(*packets)
        self.peak_bytes = max(self.peak_bytes, resident_bytes(self._process))
        await wire.close()


@pytest.mark.slow
async def test_memory_stays_below_the_configured_bound_whatever_is_thrown_at_the_broker(
    process: subprocess.Popen[str],
) -> None:
    assert process.stdout is not None
    line = await trio.to_thread.run_sync(process.stdout.readline)
    flood = Flood(process, ("127.0.0.1", address_in(line)[1]))
    with trio.fail_after(2 * TEST_S):
        offline = await flood.client("offline", durable=True)
        await offline.subscribe("queued", 1)
        await offline.close()
        deaf = [await flood.client(f"deaf-{number}") for number in range(20)]
        for wire in deaf:
            await wire.subscribe("sent", 0)
            await wire.subscribe("queued", 1)
        await flood.run("queued", 5_000, 1, retain=False)
        await flood.run("sent", 5_000, 0, retain=False)
        await flood.run("kept", 5_000, 0, retain=True)
        await flood.run_pubrecs()
        for wire in deaf:
            await wire.close()
    assert flood.peak_bytes < BOUND_BYTES


@pytest.mark.slow
async def test_memory_stays_below_the_bound_when_messages_are_all_overhead(
    process: subprocess.Popen[str],
) -> None:
    """A queue full of one-byte payloads, retained topics without number: objects, not bytes."""
    assert process.stdout is not None
    line = await trio.to_thread.run_sync(process.stdout.readline)
    flood = Flood(process, ("127.0.0.1", address_in(line)[1]))
    with trio.fail_after(2 * TEST_S):
        offline = await flood.client("offline", durable=True)
        await offline.subscribe("tiny", 1)
        await offline.close()
        wire = await flood.client("p")
        for _ in range(10):  # Each counts for at least 205 bytes, so they exceed the limit.
            await wire.send(*[Publish("tiny", b"x", 1, packet_id=n) for n in range(1, 10_001)])
            for _ in range(10_000):
                await wire.expect(Puback)
        await wire.close()
        wire = await flood.client("r")
        for chunk in range(10):
            await wire.send(*[Publish(f"{chunk}/{n}", b"x", 0, True) for n in range(10_000)])
        await wire.ping()
        await wire.close()
    assert resident_bytes(process) < BOUND_BYTES


@pytest.mark.slow
async def test_memory_stays_below_the_bound_when_many_send_half_of_a_large_packet(
    process: subprocess.Popen[str],
) -> None:
    """200 times half a MiB; the budget, and 64 KiB that each may keep, are less than a third."""
    assert process.stdout is not None
    line = await trio.to_thread.run_sync(process.stdout.readline)
    flood = Flood(process, ("127.0.0.1", address_in(line)[1]))
    half = encode(Publish("t", bytes(1_000_000)), MQTT_311)[: MIB // 2]
    with trio.fail_after(2 * TEST_S):
        wires = [await flood.client(f"half-{number}") for number in range(200)]
        before_bytes = resident_bytes(process)
        for wire in wires:
            with suppress(trio.BrokenResourceError):  # Ended before it had sent all of it.
                await wire.stream.send_all(half)
        witness = await flood.client("witness")
        await witness.ping()
        assert resident_bytes(process) - before_bytes < (16 + 200 // 16 + 12) * MIB
        for wire in [*wires, witness]:
            await wire.close()
