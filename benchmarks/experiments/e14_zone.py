"""E14: a third of the nodes of a million clients dies: the sizing of a cluster."""

from functools import partial
from typing import Any, Final

from benchmarks.checks import Check, Report
from flowguard.config import PolicyName

from . import figures
from .cases import OURS, Case, Experiment, Runs
from .judging import Column, at_most, held, misses, none_of, table
from .probe import Observed

CLIENTS: Final = 1_000_000
CONNECTS_PER_S, CLIENT_KIB, LOAD = 10_000.0, 22.5, 0.5
"""CONNECTs per second of a node with four cores, memory of a TLS client, load of messages."""
SMALLER: Final = 0.02
"""At full scale: simulated clients for each client, and the speed of the nodes by it."""
CASES: Final = {"10 nodes, 3 die": (10, 3, 4_096), "30 nodes, 10 die": (30, 10, 1_536)}
"""Nodes, those that die, and the memory of a node, MiB."""
CONTROL: Final[PolicyName] = "unlimited"
CALM_S: Final = 10.0
BOUND_S: Final = 60.0


def rate(case: str) -> float:
    """CONNECTs per second that a node serves beside the messages of all clients."""
    nodes, dead, _ = CASES[case]
    return CONNECTS_PER_S * (1.0 - LOAD * nodes / (nodes - dead))


def cases(scale: float) -> list[Case]:
    smaller = SMALLER * scale
    made: list[Case] = []
    for name, (nodes, dead, memory_mib) in CASES.items():
        changes: dict[str, Any] = {
            "clients": round(CLIENTS * smaller),
            "nodes": nodes,
            "dead": dead,
            "connects_per_s": rate(name) * smaller,
            "connection_kib": round(CLIENT_KIB / smaller),
            "memory_max_mib": memory_mib,
        }
        policies = (OURS, CONTROL) if not made else (OURS,)
        made.append(Case(name, "zone", changes, policies))
    return made


def back_s(share: float, case: str, run: Observed) -> float | None:
    """From the deaths until this share of all clients is connected again."""
    kill_s = 2.5 * CLIENTS / CASES[case][0] / rate(case) + CALM_S
    connected = run.series.connected["devices"]
    before = connected[figures.index_of(kill_s) - 1]
    return figures.first_at_least(connected, share * before, kill_s)


def ideal_s(case: str) -> float:
    nodes, dead, _ = CASES[case]
    return CLIENTS * dead / nodes / ((nodes - dead) * rate(case))


def judge(runs: Runs) -> Report:
    checks: list[Check] = []
    columns = {
        "99 % back after s": Column(None, of_case=partial(back_s, 0.99)),
        "all back after s": Column(None, of_case=partial(back_s, 1.0)),
        "died of memory": Column(figures.deaths, digits=0),
        "most memory of a node MiB": Column(figures.memory_mib, digits=0),
    }
    for case in CASES:
        deaths = runs.figures(case, figures.deaths)
        checks.append(none_of(f"{case}: nodes that ran out of memory", deaths))
        back = runs.figures(case, partial(back_s, 0.99, case))
        checks.append(at_most(f"{case}: 99 % back", back, BOUND_S, " s"))
    first = next(iter(CASES))
    deaths = runs.figures(first, figures.deaths, CONTROL)
    checks.append(misses(none_of(f"{first}: nodes that ran out of memory", deaths), CONTROL))
    ideals = "; ".join(f"{case}: {ideal_s(case):.0f} s" for case in CASES)
    rates = "; ".join(f"{case}: {rate(case):,.0f}" for case in CASES)
    return Report(
        "sim-e14",
        f"E14, simulated: {CLIENTS:,} clients, and a third of the nodes dies",
        f"Measured inputs (docs/operate/capacity.md): {CLIENT_KIB:g} KiB of memory for a TLS "
        "client, and 2,500 TLS handshakes per second and core. Assumed: nodes "
        f"with four cores, busy to {LOAD:.0%} with messages, twice as much memory more until a "
        "client is connected, and back-off from 1 to 60 s. Messages "
        "are not simulated: the nodes that are left serve those of all clients, and CONNECTs in "
        f"the rest of their time. CONNECTs per second and node: {rates}. One simulated client "
        f"stands for {1 / (SMALLER * runs.scale):,.0f}, on nodes that are as much slower. The "
        "shards move after the lease of 3 s and a start of 2 s. Adoption in Redis and relays cost "
        f"nothing here. Ideal, with neither lease nor start: {ideals}.",
        (*checks, held(runs)),
        (table(runs, "case", columns),),
    )


EXPERIMENT = Experiment("E14", cases, judge, "delays of retries are not scaled.")
