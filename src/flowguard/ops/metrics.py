"""Prometheus metrics: read off the node's status when somebody scrapes, nothing before.

Names end in their unit (`_seconds`, `_bytes`) and, for counters, in `_total`; a label takes a few
known values and never a client's name. docs/operations.md lists them all.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from flowguard.flow import Reason
from flowguard.flow.histogram import Histogram
from flowguard.flow.policy import Rung
from flowguard.flow.signals import Signal
from flowguard.ops.status import Status, View
from flowguard.telemetry.progress import BOUNDS, OF_A_BROKER

AT_THE_GATE: Final = tuple(
    str(reason) for reason in Reason if reason is Reason.DRAINING or reason.name.startswith("GATE_")
)
"""Reasons for refusing a CONNECT; all others are for dropping a message."""
FOR_MESSAGES: Final = tuple(str(reason) for reason in Reason if str(reason) not in AT_THE_GATE)


@final
class NodeCollector(Collector):
    """Makes the metrics of one node, at every scrape anew."""

    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterable[Metric]:
        status = self._view.status()
        node = self._view.node
        return chain(
            _node(status),
            _pressure(status),
            _clients(status),
            _door(status),
            _gate(status),
            _shadow(status),
            _traffic(status),
            _bounds(status),
            _recording(status),
            [
                _histogram(
                    "flowguard_journal_wait_seconds",
                    "Work for the store: from its arrival until it was durable; "
                    "all of a batch as its oldest.",
                    node.journal.sojourn,
                ),
                _histogram(
                    "flowguard_connect_service_seconds",
                    "CONNECTs: from taking their client id to CONNACK.",
                    node.connect_service,
                ),
            ],
        )


def registry_of(view: View) -> CollectorRegistry:
    """A registry with the metrics of this node and no other."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(view))
    return registry


def _node(status: Status) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "flowguard_info", "Always 1; version and policy as labels.", labels=("version", "policy")
    )
    info.add_metric((status["version"], status["policy"]), 1)
    yield info
    yield _gauge(
        "flowguard_start_time_seconds", "Unix time at which the node started.", status["started_s"]
    )
    yield _gauge("flowguard_draining", "1 while the node drains, else 0.", status["draining"])


def _pressure(status: Status) -> Iterator[Metric]:
    pressure, window = status["pressure"], status["window"]
    yield _gauge(
        "flowguard_pressure_ratio",
        "The worst signal by its objective, 0 to 16; 1 is just at the objective.",
        pressure["value"],
    )
    yield _labelled_gauge(
        "flowguard_signal_pressure_ratio",
        "Each signal by its objective; 1 is just at the objective.",
        "signal",
        pressure["signals"],
    )
    yield _labelled_gauge(
        "flowguard_pressure_cause",
        "1 for the signal that is worst, 0 for the others.",
        "signal",
        {str(signal): signal == pressure["cause"] for signal in Signal},
    )
    yield _gauge(
        "flowguard_window_packets",
        "Cost units that the law grants each client in process; below 1 clients take turns.",
        window["granted"],
    )
    yield _gauge("flowguard_window_max_packets", "The window of a calm node.", window["limit_max"])
    yield _gauge(
        "flowguard_window_closed",
        "1 while nothing is admitted (full journal, drain), else 0.",
        window["closed"],
    )


def _clients(status: Status) -> Iterator[Metric]:
    clients, unfinished = status["clients"], status["unfinished"]
    yield _gauge("flowguard_clients_connected", "Clients connected.", clients["connected"])
    yield _gauge(
        "flowguard_clients_paused",
        "Clients of which packets wait for room in a window.",
        clients["paused"],
    )
    yield _gauge("flowguard_sessions", "Sessions, connected or not.", clients["sessions"])
    yield _gauge("flowguard_subscriptions", "Subscriptions.", clients["subscriptions"])
    yield _gauge(
        "flowguard_unfinished_packets",
        "Cost units of all packets in process.",
        unfinished["packets"]["used"],
    )
    yield _gauge(
        "flowguard_unfinished_bytes",
        "Bytes of all packets in process.",
        unfinished["bytes"]["used"],
    )


def _door(status: Status) -> Iterator[Metric]:
    door = status["door"]
    yield _gauge(
        "flowguard_connections",
        "Sockets of clients, also of those that have not said CONNECT yet.",
        door["connections"]["used"],
    )
    if door["connections"]["limit"] is not None:
        yield _gauge(
            "flowguard_connections_limit",
            "Sockets that descriptors and memory suffice for; beyond it nobody is accepted.",
            door["connections"]["limit"],
        )
    yield _labelled_counter(
        "flowguard_accept_rests",
        "Ticks for which a listener was left alone: who comes waits in the backlog.",
        "reason",
        door["rests"],
    )


def _gate(status: Status) -> Iterator[Metric]:
    gate = status["gate"]
    yield _gauge(
        "flowguard_connects_limit", "CONNECTs that may be in process at once.", gate["limit"]
    )
    yield _gauge("flowguard_connects_in_process", "CONNECTs in process.", gate["in_process"])
    yield _gauge("flowguard_connects_waiting", "CONNECTs in the buffer.", gate["buffered"]["used"])
    yield _labelled_gauge(
        "flowguard_gate_rung",
        "1 for the rung of the shedding ladder on which the node stands, 0 for the others.",
        "rung",
        {rung.name.lower(): rung.name.lower() == gate["rung"] for rung in Rung},
    )
    yield _labelled_counter(
        "flowguard_connects_refused",
        "CONNECTs that overload protection refused or dropped.",
        "reason",
        dict.fromkeys(AT_THE_GATE, 0) | gate["refused"],
    )
    yield _labelled_counter(
        "flowguard_messages_dropped",
        "What was not delivered, kept or taken, by the bound that was reached.",
        "reason",
        dict.fromkeys(FOR_MESSAGES, 0) | status["dropped"],
    )


def _shadow(status: Status) -> Iterator[Metric]:
    """The metrics of the shadow policy, only where there is one."""
    shadow = status["shadow"]
    if shadow is None:
        return
    yield _gauge(
        "flowguard_shadow_window_packets",
        "Of a shadow: the window that it would grant.",
        shadow["window"],
    )
    yield _gauge(
        "flowguard_shadow_clients_paused",
        "Of a shadow: clients beyond its window and within the real one.",
        shadow["paused"],
    )
    yield CounterMetricFamily(
        "flowguard_shadow_connects_admitted",
        "Of a shadow: CONNECTs that it would have admitted.",
        shadow["admitted"],
    )
    yield _labelled_counter(
        "flowguard_shadow_connects_refused",
        "Of a shadow: CONNECTs that it would have refused or dropped.",
        "reason",
        dict.fromkeys(AT_THE_GATE, 0)
        | {str(reason): count for reason, count in shadow["refused"].items()},
    )
    yield CounterMetricFamily(
        "flowguard_shadow_connections_closed",
        "Of a shadow: sockets that it would have closed at once.",
        shadow["closed"],
    )


def _traffic(status: Status) -> Iterator[Metric]:
    traffic = status["traffic"]
    for name, documentation, value in (
        ("connections_accepted", "Sockets accepted.", traffic["connections_accepted"]),
        (
            "connections_closed",
            "Sockets closed at once: the load was too high even to refuse them.",
            traffic["connections_closed"],
        ),
        ("connects_accepted", "CONNECTs answered with success.", traffic["connects_accepted"]),
        ("connects_failed", "CONNECTs answered with an error.", traffic["connects_refused"]),
        ("publish_received", "PUBLISH received.", traffic["publish_received"]),
        ("publish_sent", "PUBLISH sent.", traffic["publish_sent"]),
        (
            "publish_received_bytes",
            "Payloads of PUBLISH received.",
            traffic["publish_received_bytes"],
        ),
        ("publish_sent_bytes", "Payloads of PUBLISH sent.", traffic["publish_sent_bytes"]),
        ("packets_received", "Control packets received.", traffic["packets_received"]),
        ("packets_sent", "Control packets sent.", traffic["packets_sent"]),
        ("received_bytes", "Bytes received from clients.", traffic["received_bytes"]),
        ("sent_bytes", "Bytes sent to clients.", traffic["sent_bytes"]),
        ("takeovers", "Connections ended by a newer one of the same client.", traffic["takeovers"]),
        ("sessions_expired", "Sessions that expired.", traffic["clients_expired"]),
        (
            "dead_letters",
            "Messages that expired in a session and were published again as dead letters.",
            traffic["dead_letters"],
        ),
        ("wills_published", "Wills published.", traffic["wills_published"]),
        ("protocol_errors", "Connections ended for their bytes.", traffic["protocol_errors"]),
        (
            "unknown_acknowledgements",
            "Acknowledgements of packet identifiers that are not in use.",
            traffic["unknown_acknowledgements"],
        ),
    ):
        yield CounterMetricFamily(f"flowguard_{name}", documentation, value)


def _bounds(status: Status) -> Iterator[Metric]:
    journal, memory = status["journal"], status["memory"]
    uses = {
        "unfinished": status["unfinished"]["bytes"],
        "connects": status["gate"]["buffered_bytes"],
        "journal": journal["bytes"],
        **status["budgets"],
    }
    yield _labelled_gauge(
        "flowguard_budget_used_bytes",
        "Bytes that all clients share, by what they are for.",
        "budget",
        {name: use["used"] for name, use in uses.items()},
    )
    yield _labelled_gauge(
        "flowguard_budget_limit_bytes",
        "What flowguard_budget_used_bytes may be at most.",
        "budget",
        {name: use["limit"] for name, use in uses.items() if use["limit"] is not None},
    )
    yield _gauge(
        "flowguard_journal_operations",
        "Store operations waiting for their commit, or in it.",
        journal["operations"]["used"],
    )
    yield _gauge(
        "flowguard_journal_waiting_seconds",
        "How long the oldest work waits that is not in commit yet.",
        journal["waiting_s"],
    )
    yield _gauge(
        "flowguard_journal_commit_seconds",
        "How long the commit under way has taken so far.",
        journal["committing_s"],
    )
    store = status["store"]
    yield _gauge(
        "flowguard_store_read_only",
        "1 while the disk is full and durable work is refused, else 0.",
        store["read_only"],
    )
    yield CounterMetricFamily(
        "flowguard_store_pages_unreadable_total",
        "Pages of queues that the store could not read: what is in them is held back.",
        store["pages_unreadable"],
    )
    yield _gauge("flowguard_store_used_bytes", "Size of the store.", store["used_bytes"])
    if store["free_bytes"] is not None:
        yield _gauge("flowguard_store_free_bytes", "Left on its disk.", store["free_bytes"])
    if memory is not None:
        yield _gauge(
            "flowguard_memory_resident_bytes",
            "Resident memory of the process; the allocator may keep more than is held.",
            memory["resident_bytes"],
        )
        yield _gauge(
            "flowguard_memory_held_bytes",
            "What the node holds, by its own count; by the limit, it is the memory signal.",
            memory["held_bytes"],
        )
        yield _gauge(
            "flowguard_memory_limit_bytes",
            "All that the process may hold.",
            memory["limit_bytes"],
        )


def _recording(status: Status) -> Iterator[Metric]:
    """The metrics of a recording, only where a broker was told to record itself."""
    recording = status["recording"]
    if recording is None:
        return
    yield _gauge(
        "flowguard_recording",
        "1 while the broker records itself, 0 after an error has ended that.",
        recording["error"] is None,
    )
    yield CounterMetricFamily(
        "flowguard_recording_rows", "Rows handed to files.", recording["written_rows"]
    )
    dropped = CounterMetricFamily(
        "flowguard_recording_rows_dropped",
        "Rows that found no room on their way to the disk; label bound: rows or bytes.",
        labels=("table", "bound"),
    )
    for table in OF_A_BROKER:
        counts = recording["dropped_rows"].get(table, {})
        for bound in BOUNDS:
            dropped.add_metric((table, bound), counts.get(bound, 0))
    yield dropped
    yield _gauge(
        "flowguard_recording_used_bytes", "Recorded runs on the disk.", recording["used_bytes"]
    )
    yield _gauge(
        "flowguard_recording_limit_bytes",
        "What flowguard_recording_used_bytes may be before the oldest run is deleted.",
        recording["limit_bytes"],
    )


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, float(value))


def _labelled_gauge(
    name: str, documentation: str, label: str, values: Mapping[str, float]
) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), float(value))
    return family


def _labelled_counter(
    name: str, documentation: str, label: str, values: Mapping[str, int]
) -> Metric:
    family = CounterMetricFamily(name, documentation, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family


def _histogram(name: str, documentation: str, histogram: Histogram) -> Metric:
    bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, histogram.cumulative()), strict=True))
    return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=histogram.total)
