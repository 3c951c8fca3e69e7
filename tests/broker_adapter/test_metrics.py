"""Metrics of a guard."""

from prometheus_client import CollectorRegistry, generate_latest

from broker_adapter import Guard
from broker_adapter.metrics import GuardCollector
from flowguard.config import FlowSettings


def test_collector_has_gauges_and_rejections_by_reason() -> None:
    guard = Guard(FlowSettings(window_max=2), waiting_max=1)
    registry = CollectorRegistry()
    registry.register(GuardCollector(guard))
    client = guard.client()
    for _ in range(5):
        guard.start(client, 0.0, size_bytes=10)
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        "flowguard_guard_window 2.0",
        "flowguard_guard_in_process 2.0",
        "flowguard_guard_in_process_bytes 20.0",
        "flowguard_guard_waiting 1.0",
        'flowguard_guard_rejected_total{reason="queue_messages"} 2.0',
    ):
        assert line in lines
