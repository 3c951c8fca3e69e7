"""Random loads: a load is its number.

A crowd, steady publishers, publishers without end, a wide publisher in half of them, memory, and
one fault. The cost of a packet that comes alone is drawn. Its cost among others, and in a commit,
follows from that as in this broker (`simulations.proportions`).
"""

from random import Random
from typing import Any, Final

from flowguard.config import KIB, MIB, FlowSettings
from simulations.proportions import among_others
from simulations.scenario import NodePlan, Scenario, StorePlan

DURATION_S: Final = 35.0
CALM: Final = FlowSettings()
PACKETS: Final = 25
"""Number of packets that, each alone, take as long as the queue objective of a slow machine."""


def load_of(seed: int) -> Scenario:
    """The load of this number: the same for ever."""
    random = Random(seed)
    connect_s = 10.0 ** random.uniform(-3.3, -2.1)
    packet_s = random.choice((0.001_2, 0.002_4, 0.004))
    nodes = random.choice((1, 1, 2, 3))
    payload_bytes = random.choice((16, 64, KIB, 16 * KIB))
    rate_per_s = random.uniform(0.4, 1.7)
    populations: dict[str, Any] = {
        "crowd": {
            "clients": random.randint(1_500, 3_000),
            "start_s": random.uniform(4.0, 8.0),
            "start_over_s": random.uniform(0.5, 4.5),
            "timeout_s": random.choice((5.0, 10.0, 20.0)),
            "durable": random.random() < 0.7,
            "retry": {
                "kind": random.choice(("backoff", "fixed")),
                "first_s": random.choice((0.5, 1.0, 2.0)),
                "obedient": random.choice((0.0, 0.5)),
            },
        },
        "steady": {
            # A tenth to six tenths of the loops.
            "clients": round(random.uniform(0.1, 0.6) * nodes / packet_s / rate_per_s),
            "start_over_s": 2.0,
            "publish": {
                "rate_per_s": rate_per_s,
                "payload_bytes": payload_bytes,
                "deadline_s": random.choice((0.1, 0.3, 1.0)),
                "outstanding": random.choice((1, 10, 100)),
            },
        },
        "greedy": {
            "clients": random.choice((1, 2, 5)),
            "start_s": 3.0,
            "start_over_s": 1.0,
            "publish": {
                "outstanding": random.choice((5, 20, 100, 200)),
                "v5": random.random() < 0.5,
                "payload_bytes": random.choice((64, KIB, 16 * KIB)),
            },
        },
    }
    if random.random() < 0.5:
        listeners = random.randint(200, 500)
        populations["listeners"] = {
            "clients": listeners,
            "start_over_s": 2.0,
            "durable": False,
            "subscribes": True,
        }
        wide = {"to": "listeners", "deadline_s": 1.0, "outstanding": 5, "rate_per_s": 6.0}
        populations["wide"] = {"clients": 1, "start_s": 3.0, "publish": wide}
    node = {
        "accept_s": connect_s * random.uniform(0.02, 0.18),
        "refuse_s": connect_s * random.uniform(0.01, 0.08),
        "connect_s": connect_s,
        "publish_s": packet_s,
        "delivery_s": 10.0 ** random.uniform(-5.1, -4.3),
        "accepts_first": random.random() < 0.7,
        "noise": random.choice((0.0, 0.3)),
        "listen_backlog": random.choice((128, 1_024, 4_096)),
        "connecting_bytes": random.choice((0, 20, 64)) * KIB,
        "memory_max_bytes": random.choice((112, 160, 512)) * MIB,
        "restart_s": 8.0,
    }
    plans = among_others(
        NodePlan.model_validate(node), StorePlan(commit_s=10.0 ** random.uniform(-3.3, -2.4))
    )
    return Scenario.model_validate(
        {
            "title": f"random load {seed}",
            "seed": seed,
            "nodes": nodes,
            "duration_s": DURATION_S,
            "node": plans[0],
            "store": plans[1],
            "network": {"latency_s": random.choice((0.001, 0.005, 0.03)), "replicas": 1},
            "flow": _flow(packet_s, populations["crowd"]["timeout_s"]),
            "populations": populations,
            "faults": [_fault(random, nodes)],
        }
    )


def _flow(packet_s: float, timeout_s: float) -> dict[str, float]:
    """Objectives for a machine and its clients by docs/explain/overload.md, section 3."""
    queue_s = max(CALM.queue_objective_s, PACKETS * packet_s)
    return {
        "queue_objective_s": queue_s,
        "loop_objective_s": max(CALM.loop_objective_s, 2.0 * queue_s),
        "connect_patience_s": max(CALM.connect_patience_s, 0.8 * timeout_s),
    }


def _fault(random: Random, nodes: int) -> dict[str, Any]:
    kinds = ["slow_cpu", "slow_store", "store_stop"] + ["node_down"] * (nodes > 1)
    kind = random.choice(kinds)
    at_s = random.uniform(9.0, 13.0)
    slower = random.uniform(1.5, 9.0) if kind.startswith("slow") else 1.0
    lasts_s = random.uniform(2.5, 9.0)
    return {"kind": kind, "node": 0, "at_s": at_s, "until_s": at_s + lasts_s, "factor": slower}
