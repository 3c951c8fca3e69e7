"""Metrics of a guard for Prometheus: `REGISTRY.register(GuardCollector(guard))`.

It needs the package prometheus-client, and reads counters that the guard has anyway.
"""

from collections.abc import Iterator
from typing import final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broker_adapter.host_guard import HostGuard


@final
class GuardCollector(Collector):
    def __init__(self, guard: HostGuard, prefix: str = "flowguard_guard") -> None:
        """`prefix`: the beginning of all names, one for each guard of a registry."""
        self._guard = guard
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        guard, grant = self._guard, self._guard.grant
        values = {
            "window": (grant.window, "Window of a client, cost units."),
            "pressure": (grant.pressure.value, "Pressure, 1 at an objective."),
            "in_process": (guard.in_process, "Packets in process, cost units."),
            "in_process_bytes": (guard.in_process_bytes, "Size of these packets, bytes."),
            "waiting": (guard.waiting_count, "Packets that wait for capacity."),
            "connects_in_process": (guard.connects_in_process, "CONNECTs in process."),
            "connects_waiting": (guard.connects_waiting, "CONNECTs that wait."),
        }
        for name, (value, text) in values.items():
            yield GaugeMetricFamily(f"{self._prefix}_{name}", text, value)
        for name, counts, text in (
            ("rejected", guard.refused, "Packets rejected, by reason."),
            ("connects_rejected", guard.connects_refused, "CONNECTs rejected, by reason."),
        ):
            family = CounterMetricFamily(f"{self._prefix}_{name}", text, labels=["reason"])
            for reason, count in dict(counts).items():
                family.add_metric([str(reason)], count)
            yield family
