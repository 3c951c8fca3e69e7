"""`python -m benchmarks.law.search`: random loads, and those on which the law is beaten worst.

A load is its number: a crowd, steady publishers, some that publish without end, a wide fan-out,
memory, and one thing that breaks. `--first NUMBER --loads 1` looks at one again.

What a packet costs that comes alone is drawn; what it costs among others, and in a commit, follows
from that as in this broker (`simulations.proportions`).
"""

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from math import inf
from multiprocessing import get_context
from random import Random
from typing import Annotated, Any, Final

import typer

from benchmarks import pages
from benchmarks.checks import Check, Grid, Report
from benchmarks.parts import Strict, Write
from flowguard.config import KIB, MIB, FlowSettings, PolicyName
from simulations.proportions import among_others
from simulations.scenario import NodePlan, Scenario, StorePlan

from .dominance import OURS, dominates
from .figures import Row, look_at

RIVALS: Final[tuple[PolicyName, ...]] = ("unlimited", "static-1", "static-10", "static-100")
DURATION_S: Final = 35.0
CALM: Final = FlowSettings()
PACKETS: Final = 25
"""So many that come alone take as long as a queue may, or fewer where the machine is quicker."""
DOMINATED_MAX: Final = 0.03
WORST: Final = 5
console = pages.console()


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
    """What docs/overload.md, section 3, tells who has such a machine and such clients to set."""
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


@dataclass(frozen=True)
class Found:
    """What came of one load."""

    seed: int
    rows: Mapping[PolicyName, Row]
    """By policy."""
    violations: Mapping[PolicyName, str] = field(default_factory=dict)
    """What was violated where it was: such a run ends there."""

    def dominating(self, policy: PolicyName) -> dict[PolicyName, dict[str, float]]:
        """Policies that dominate this one, and their gains."""
        mine = self.rows[policy]
        found = {other: dominates(mine, row) for other, row in self.rows.items()}
        return {other: gains for other, gains in found.items() if gains}

    def has_died(self, policy: PolicyName) -> bool:
        """Whether a node died under it, where none died under another one."""
        fewest = min(row["deaths"] for row in self.rows.values())
        return self.rows[policy]["deaths"] > fewest == 0.0

    @property
    def worst(self) -> float:
        """The largest gain of anybody; one that has no measure counts as tenfold."""
        sizes = [size for gains in self.dominating(OURS).values() for size in gains.values()]
        return max((10.0 if size == inf else size for size in sizes), default=0.0)


def try_load(seed: int) -> Found:
    """Run the load of this number under all policies, here and now."""
    scenario = load_of(seed)
    rows: dict[PolicyName, Row] = {}
    violations: dict[PolicyName, str] = {}
    for policy in (OURS, *RIVALS):
        rows[policy], violation = look_at(scenario, policy)
        if violation is not None:
            violations[policy] = violation
    return Found(seed, rows, violations)


def told(found: list[Found]) -> Report:
    """The shares, and the worst loads."""
    beaten = sorted((one for one in found if one.dominating(OURS)), key=lambda one: -one.worst)
    died = [one.seed for one in found if one.has_died(OURS)]
    violated = [
        f"load {one.seed}: {one.violations[OURS]}" for one in found if OURS in one.violations
    ]
    share = len(beaten) / len(found)
    rows = tuple(
        (
            str(one.seed),
            rival,
            ", ".join(f"{name} {_percent(size)}" for name, size in gains.items()),
        )
        for one in beaten[:WORST]
        for rival, gains in one.dominating(OURS).items()
    )
    most = round(100 * DOMINATED_MAX)
    return Report(
        "law-search",
        f"{len(found)} random loads, from {found[0].seed} on",
        "One seed each. Dominated: another policy is better by more than 10 % in one figure and "
        "worse by more than 3 % in none. A run that violates an invariant ends there.",
        (
            Check("dominated", f"{100 * share:.1f} %", f"at most {most} %", share <= DOMINATED_MAX),
            Check(
                "nodes died, and under another policy none",
                ", ".join(map(str, died)) or "nowhere",
                "nowhere",
                not died,
            ),
            Check("invariants violated", str(len(violated)), "0", not violated),
        ),
        (
            Grid(
                (
                    "policy",
                    "of all loads dominated %",
                    "by flowguard %",
                    "where nodes died, and under another none %",
                    "where an invariant was violated %",
                ),
                tuple(_line(policy, found) for policy in (OURS, *RIVALS)),
            ),
            *((Grid(("the worst", "by", "better in"), rows),) if rows else ()),
        ),
        tuple(violated),
    )


def _line(policy: PolicyName, found: list[Found]) -> tuple[str, ...]:
    """How it stands among all of them."""
    dominating = [one.dominating(policy) for one in found]
    by_ours = sum(OURS in policies for policies in dominating)
    died = sum(one.has_died(policy) for one in found)
    violated = sum(policy in one.violations for one in found)
    counts = (sum(map(bool, dominating)), by_ours, died, violated)
    return (policy, *(f"{100 * count / len(found):.1f}" for count in counts))


def _percent(size: float) -> str:
    return "∞" if size == inf else f"+{100 * size:.0f} %"


def main(
    loads: Annotated[int, typer.Option(min=1, help="How many.")] = 60,
    first: Annotated[int, typer.Option(min=0, help="The first one's number.")] = 1_001,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Loads at a time.")] = 2,
    write: Write = False,
    strict: Strict = False,
) -> None:
    """Random loads: where does a fixed window beat the law?

    Exit status 1 with --strict: too often.
    """
    seeds = range(first, first + loads)
    found = []
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool, pages.progress(console) as shown:
        task = shown.add_task("random loads", total=loads)
        for one in pool.map(try_load, seeds):
            found.append(one)
            shown.advance(task)
    good = pages.tell(told(found), "Virtual time", console, pages.RESULTS if write else None)
    if strict and not good:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
