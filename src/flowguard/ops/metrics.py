"""Prometheus metrics: the metrics of the catalogue, read from the node at a scrape.

Names end in their unit (`_seconds`, `_bytes`) and, for counters, in `_total`; a label takes a few
known values and never a client's name. docs/reference/metrics.md lists them all.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from flowguard.ops.common.measurement import Kind, Look, Measurement
from flowguard.ops.common.view import Subject

FAMILIES: Final[dict[Kind, type[GaugeMetricFamily | CounterMetricFamily]]] = {
    Kind.GAUGE: GaugeMetricFamily,
    Kind.COUNTER: CounterMetricFamily,
}


@final
class NodeCollector(Collector):
    def __init__(self, view: Subject) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        return families(self._view.catalogue, self._view.look())


def registry_of(view: Subject) -> CollectorRegistry:
    """Return a registry with the metrics of this node only."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(view))
    return registry


def families(catalogue: Sequence[Measurement[Any]], look: Look[Any]) -> Iterator[Metric]:
    for each in catalogue:
        if each.metric and (value := each.get(look)) is not None:
            yield _family(each, value)


def _family(each: Measurement[Any], value: Any) -> Metric:
    name = f"flowguard_{each.metric}"
    if each.kind is Kind.HISTOGRAM:
        bounds = [*(str(bound) for bound in value.bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, value.cumulative()), strict=True))
        return HistogramMetricFamily(name, each.help, buckets=buckets, sum_value=value.total)
    family = FAMILIES[each.kind](name, each.help, labels=each.labels)
    values = dict.fromkeys(each.known, 0) | value if each.labels else {(): value}
    for labels, number in values.items():
        family.add_metric((labels,) if isinstance(labels, str) else labels, float(number))
    return family
