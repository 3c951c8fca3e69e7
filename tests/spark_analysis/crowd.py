"""Runs that look like those of a crowd: not simulated, only drawn, with known differences.

Without protection goodput collapses from 80 % load on and does not come back, everybody connects
late and one node takes the other with it; with protection it dips and recovers.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.spark_analysis.hand import Row
from tests.spark_analysis.recorded import record

NODES = 2
BASE_PER_STEP = 20
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, float("inf"))


@dataclass(frozen=True)
class Drawn:
    """What a run is like."""

    scenario: str
    policy: str
    seed: int
    clients: int = 200
    duration_s: int = 60
    load: float = 0.9
    trigger_s: float = 5.0
    steps_per_s: int = 10
    parameters: dict[str, str] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        words = [self.scenario, self.policy, *(f"{k}={v}" for k, v in self.parameters.items())]
        return "-".join([*words, f"{self.load:g}", f"{self.trigger_s:g}", str(self.seed)])

    @property
    def is_protected(self) -> bool:
        return self.policy != "none"

    @property
    def collapses(self) -> bool:
        return not self.is_protected and self.load >= 0.8


TRIGGER_AT_S = 20.0


def draw(directory: Path, drawn: Drawn) -> Path:
    """Write the run."""
    chance = random.Random(f"{drawn}")
    steps = [
        step / drawn.steps_per_s for step in range(1, drawn.duration_s * drawn.steps_per_s + 1)
    ]
    run = {
        "source": "simulation",
        "flowguard_version": "0.1",
        "scenario": drawn.scenario,
        "policy": drawn.policy,
        "seed": drawn.seed,
        "nodes_count": NODES,
        "clients_count": drawn.clients,
        "duration_s": float(drawn.duration_s),
        "trigger_at_s": TRIGGER_AT_S,
        "trigger_until_s": TRIGGER_AT_S + drawn.trigger_s,
        "load_ratio": drawn.load,
        "parameters": sorted(drawn.parameters.items()),
        "command": f"flowguard simulate {drawn.scenario} --policy {drawn.policy} "
        f"--seed {drawn.seed}",
    }
    return record(
        directory,
        drawn.run_id,
        run=run,
        end={"ended_s": float(drawn.duration_s), "deaths_count": 2 if drawn.collapses else 0},
        samples=[row for t_s in steps for row in _samples(drawn, t_s, chance)],
        goodput=[_goodput(drawn, t_s, chance) for t_s in steps],
        latencies=[
            row for second in range(1, drawn.duration_s + 1) for row in _latencies(drawn, second)
        ],
        clients=[_client(drawn, number, chance) for number in range(drawn.clients)],
    )


def _share(drawn: Drawn, t_s: float) -> float:
    """Of the work: what is done in time."""
    if t_s <= TRIGGER_AT_S:
        return 1.0
    since_s = t_s - TRIGGER_AT_S - drawn.trigger_s
    if drawn.collapses:
        return 0.15
    if since_s <= 0:
        return 0.7 if drawn.is_protected else 0.4
    return min(0.8 + since_s / 10 * 0.2, 1.0)


def _connected(drawn: Drawn, t_s: float) -> int:
    speed = 0.12 if drawn.is_protected else 0.05
    delay = 1 + 0.03 * (drawn.seed % 7)
    return min(int(drawn.clients * speed * t_s / delay), drawn.clients)


def _goodput(drawn: Drawn, t_s: float, chance: random.Random) -> Row:
    due = max(round(BASE_PER_STEP * drawn.load + chance.gauss(0, 1)), 0)
    connected = _connected(drawn, t_s)
    is_early = connected < drawn.clients
    declined = (1 if drawn.is_protected else 6) if is_early else 0
    return {
        "population": "cars",
        "t_s": t_s,
        "clients_count": drawn.clients,
        "connected_count": connected,
        "first_connected_count": connected,
        "attempts_count": declined + connected - _connected(drawn, t_s - 1 / drawn.steps_per_s),
        "declined_count": declined,
        "wasted_count": declined // 3,
        "due_count": due,
        "acknowledged_count": due,
        "in_time_count": round(due * _share(drawn, t_s)),
        "delivered_count": due,
    }


def _samples(drawn: Drawn, t_s: float, chance: random.Random) -> Iterator[Row]:
    for node in range(NODES):
        fell_s = TRIGGER_AT_S + 4 + 8 * node
        is_alive = not (drawn.collapses and t_s > fell_s)
        if not is_alive:
            yield {"node": node, "t_s": t_s, "rung": "buffer"}
            continue
        is_hot = TRIGGER_AT_S < t_s <= TRIGGER_AT_S + drawn.trigger_s
        window = 100.0 if not is_hot else 20.0 * chance.uniform(0.9, 1.1)
        used = 40 + 10 * drawn.load + (35 if is_hot and not drawn.is_protected else 0)
        yield {
            "node": node,
            "t_s": t_s,
            "is_alive": True,
            "pressure_ratio": 2.0 if is_hot else 0.6,
            "window": window if drawn.is_protected else 100.0,
            "rung": "close" if is_hot and drawn.is_protected else "buffer",
            "connects_buffered_count": 30 if is_hot else 2,
            "connects_buffered_bytes": 9_000 if is_hot else 600,
            "unfinished_bytes": 400_000 if is_hot else 20_000,
            "memory_bytes": round((used + chance.uniform(0, 5)) * 2**20),
            "memory_limit_bytes": 100 * 2**20,
            "accepted_count": 2,
            "refused_count": 1 if drawn.is_protected and is_hot else 0,
            "discarded_count": 0 if drawn.is_protected else 3,
            "published_count": 10,
            "lost_count": 1 if drawn.collapses and t_s > TRIGGER_AT_S + 3.8 else 0,
            "dropped_count": 0,
            "busy_s": 0.07,
            "refusing_s": 0.01,
        }


def _latencies(drawn: Drawn, second: int) -> Iterator[Row]:
    middle = 4 if drawn.is_protected or second <= TRIGGER_AT_S else 8
    counts = {middle - 2: 20, middle - 1: 60, middle: 100, middle + 1: 18, middle + 2: 2}
    for kind, shift in (("acknowledgement", 0), ("connect", 1)):
        for index, count in counts.items():
            bound_s = BOUNDS_S[min(index + shift, len(BOUNDS_S) - 1)]
            if index + shift >= len(BOUNDS_S):
                continue
            yield {
                "population": "cars",
                "kind": kind,
                "t_s": float(second),
                "bound_s": bound_s,
                "count": count,
            }


def _client(drawn: Drawn, number: int, chance: random.Random) -> Row:
    greedy = 5.0 if not drawn.is_protected and number % 10 == 0 else 1.0
    return {
        "population": "cars",
        "client": number,
        "attempts_count": 1 + number % 3,
        "first_connected_s": 1.0,
        "acknowledged_count": 50,
        "in_time_count": round(50 * greedy / 5 if not drawn.is_protected else 48),
        "cost_units": greedy * 50 + chance.uniform(0, 2),
    }


LIMITS = {"flow.connect_limit_max": "64", "flow.window_max": "50"}


def draw_few(directory: Path) -> Path:
    """A crowd under three parameter sets, two seeds each, and a map of two loads and triggers."""
    for seed in (1, 2):
        for policy, limits in (("none", {}), ("adaptive", {}), ("adaptive", LIMITS)):
            drawn = Drawn("flash-crowd", policy, seed, parameters=limits, steps_per_s=2)
            draw(directory / drawn.run_id, drawn)
    for policy in ("none", "adaptive"):
        for load in (0.7, 0.95):
            for trigger_s in (1.0, 20.0):
                drawn = Drawn(
                    "retry-storm",
                    policy,
                    1,
                    load=load,
                    trigger_s=trigger_s,
                    clients=50,
                    parameters={"load": f"{load:g}", "trigger_s": f"{trigger_s:g}"},
                    steps_per_s=2,
                )
                draw(directory / drawn.run_id, drawn)
    return directory
