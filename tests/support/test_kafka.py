"""The real Kafka that tests start: it keeps what it acknowledged, and a run has one."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka import kafka, shared_kafka
from tests.support.patience import HANG_S

ROOT = Path(__file__).resolve().parents[2]


async def write(servers: str, topic: str, payloads: list[bytes]) -> list[int]:
    """Offsets of messages that all in-sync replicas have."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        acks="all",
        enable_idempotence=True,
        request_timeout_ms=int(HANG_S * 1_000),
    )
    await producer.start()
    try:
        sent = [await producer.send(topic, payload, partition=0) for payload in payloads]
        return [(await each).offset for each in sent]
    finally:
        await producer.stop()


async def read(servers: str, topic: str, count: int) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.mark.slow
def test_what_a_node_has_acknowledged_is_there_after_it_was_killed(tmp_path: Path) -> None:
    with kafka(tmp_path) as server:
        server.create_topic("kept")
        assert asyncio.run(write(server.servers, "kept", [b"a", b"b"])) == [0, 1]
        server.nodes[0].kill()
        server.nodes[0].start()
        server.wait_until_ready()
        assert asyncio.run(read(server.servers, "kept", 2)) == [b"a", b"b"]


@pytest.mark.slow
def test_all_processes_of_a_run_share_a_server() -> None:
    said = "from tests.support.kafka import shared_kafka; print(shared_kafka().servers)"
    other = subprocess.run(
        [sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert other.stderr == ""
    assert other.stdout == f"{shared_kafka().servers}\n"
    shared_kafka().create_topic("outlives")  # also if the other process has started it
    assert asyncio.run(write(shared_kafka().servers, "outlives", [b"a"])) == [0]
