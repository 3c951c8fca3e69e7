"""The real Kafka that tests start: a run has one."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka import needs_kafka, shared_kafka
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


@pytest.mark.slow
def test_all_processes_of_a_run_share_a_server() -> None:
    needs_kafka()
    said = "from tests.support.kafka import shared_kafka; print(shared_kafka().servers)"
    other = subprocess.run(
        [sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert other.stderr == ""
    assert other.stdout == f"{shared_kafka().servers}\n"
    shared_kafka().create_topic("outlives")  # also if the other process has started it
    assert asyncio.run(write(shared_kafka().servers, "outlives", [b"a"])) == [0]
