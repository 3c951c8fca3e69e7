"""The catalogue of the proxy: everything that its `/status` and `/metrics` show.

A measurement that a broker has, too, keeps its name, so that alerts and boards fit both.
"""

from collections.abc import Callable
from typing import Final

from broker_adapter.proxy.upstream import Upstream
from broker_adapter.proxy.watch.face import Face
from flowguard.ops.common.measurement import Look, Measurement, gauge, histogram, shown
from flowguard.ops.common.measurements import (
    CLIENTS,
    GATE,
    IDENTITY,
    LAW,
    LISTENERS,
    PROCESS,
    TRAFFIC,
    WORK,
)

# A table: one entry is one or two lines.
# fmt: off
OWN: Final[tuple[Measurement[Face], ...]] = (
    gauge("upstreams.away_s", "upstreams_away_seconds",
        lambda at: at.node.core.away_s(at.now_s),
        "Time since no broker behind the proxy has answered, or 0."),
    shown("upstreams.why", lambda at: "" if at.node.core.is_up else _why(at.node)),
    shown("upstreams.each", lambda at: {
        each.name: {
            "up": each.is_up, "why": each.why, "clients": each.pairs_count,
            "packets": len(each.in_process), "oldest_packet_s": each.age_s(at.now_s),
        }
        for each in at.node.core.upstreams
    }),
    gauge("", "upstream_up", lambda at: _each(at, lambda one: one.is_up),
        "1 if a broker behind the proxy answered the last try, else 0.", "upstream"),
    gauge("", "upstream_clients", lambda at: _each(at, lambda one: one.pairs_count),
        "Clients connected or connecting to a broker behind the proxy.", "upstream"),
    gauge("", "upstream_packets", lambda at: _each(at, lambda one: len(one.in_process)),
        "Packets that a broker behind the proxy has not acknowledged.", "upstream"),
    gauge("", "upstream_oldest_packet_seconds",
        lambda at: _each(at, lambda one: one.age_s(at.now_s)),
        "Time for which the oldest of these packets has waited.", "upstream"),
)
CATALOGUE: Final[tuple[Measurement[Face], ...]] = (
    *IDENTITY,
    gauge("draining", "draining", lambda at: at.node.door.leaving,
        "1 while the node drains, else 0."),
    *LAW,
    *CLIENTS,
    gauge("clients.paused", "clients_paused", lambda at: at.node.core.paused_count,
        "Clients with packets that wait for a window."),
    *WORK,
    *LISTENERS,
    *GATE,
    *TRAFFIC,
    *OWN,
    histogram("acknowledgement_seconds", lambda at: at.node.core.acknowledged,
        "PUBLISH of QoS 1 and 2: from forwarding it to its PUBACK or PUBREC."),
    histogram("connect_service_seconds", lambda at: at.node.core.lives.connect_service,
        "CONNECTs: from the gate to the upstream's CONNACK."),
    *PROCESS,
)
# fmt: on


def _why(face: Face) -> str:
    """Return the error of each upstream; with its name if there are several."""
    if len(face.core.upstreams) == 1:
        return face.core.upstreams[0].why
    return "; ".join(f"{each.name}: {each.why}" for each in face.core.upstreams if each.why)


def _each(at: Look[Face], figure: Callable[[Upstream], float]) -> dict[str, float]:
    return {each.name: figure(each) for each in at.node.core.upstreams}
