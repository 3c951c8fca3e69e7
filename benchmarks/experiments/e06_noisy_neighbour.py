"""E6: neighbours that flood: a thousand of them, one with large messages, one with a crowd."""

from functools import partial
from typing import Any, Final

from benchmarks.checks import Check, Report
from flowguard.config import PolicyName
from flowguard.node.publish.plans import DELIVERIES_PIECE

from . import figures
from .cases import OURS, WITHOUT_TURNS, Case, Experiment, Runs, no_turns
from .judging import Column, at_least, at_most, held, misses, table
from .probe import Observed

CONTROL: Final[PolicyName] = "unlimited"
NOISY, QUIET, SUBSCRIBERS = 1_000, 100, 5_000
PUBLISH_S, DELIVERY_S, COST_DELIVERIES = 0.000_1, 0.000_003, 100
FLOOD, LARGE, FAN_OUT = "1,000 clients", "one of 64 KiB messages", "one to 5,000 subscribers"
CASES: Final = (FLOOD, LARGE, FAN_OUT)
ALONE: Final = "nobody"
SETTLED_S = 20.0
"""The last of the noisy ones is there for 10 s."""


def cases(scale: float) -> list[Case]:
    quiet = max(10, round(QUIET * scale))
    node = {"node.publish_s": PUBLISH_S / scale, "populations.quiet.clients": quiet}
    one = {"populations.noisy.clients": 1}
    changes: dict[str, dict[str, Any]] = {
        ALONE: {"populations.noisy": None},
        FLOOD: {"populations.noisy.clients": max(10, round(NOISY * scale))},
        LARGE: one | {"populations.noisy.publish.payload_bytes": 65_536},
        FAN_OUT: {
            "populations": fan_out(round(SUBSCRIBERS * scale)),
            "node.delivery_s": DELIVERY_S / scale,
            "flow.cost_deliveries": max(1, round(COST_DELIVERIES * scale)),
        },
    }
    made = []
    for name, changed in changes.items():
        made.append(Case(name, "noisy_neighbour", changed | node, (OURS, CONTROL), SETTLED_S))
        if name != ALONE:
            without = changed | node | WITHOUT_TURNS
            made.append(
                Case(no_turns(name), "noisy_neighbour", without, (OURS, CONTROL), SETTLED_S)
            )
    return made


def fan_out(subscribers: int) -> dict[str, Any]:
    """One that publishes to a crowd, instead of the file's thousand."""
    flood = {"outstanding": 100, "payload_bytes": 1_024, "v5": False, "deadline_s": 10.0}
    return {
        "listeners": {
            "clients": subscribers,
            "start_over_s": 9.0,
            "durable": False,
            "subscribes": True,
        },
        "noisy": {"clients": 1, "start_s": 10.0, "publish": flood | {"to": "listeners"}},
        "quiet": {"clients": QUIET, "publish": {"rate_per_s": 1.0, "deadline_s": 0.3}},
    }


quiet_p99_ms = partial(figures.acknowledged_p99_ms, "quiet")


def fairness(run: Observed) -> float | None:
    return run.fairness


def judge(runs: Runs) -> Report:
    unloaded_ms = runs.figures(ALONE, quiet_p99_ms).mean or 0.0
    checks: list[Check] = []
    for case in CASES:
        what = f"{case}: p99 of the quiet ones, of unloaded"
        ours = runs.figures(case, quiet_p99_ms).by(unloaded_ms)
        control = runs.figures(no_turns(case), quiet_p99_ms, CONTROL).by(unloaded_ms)
        checks += [
            at_least(f"{case}: Jain index", runs.figures(case, fairness), 0.95, digits=3),
            at_most(what, ours, 2.0, "x", 2),
            misses(at_most(what, control, 2.0, "x", 2), f"{CONTROL}, no turns"),
        ]
    return Report(
        "sim-e6",
        "E6, simulated: a noisy neighbour",
        f"{max(10, round(QUIET * runs.scale))} quiet clients at 1 message/s, and a tenant that "
        "sends as fast as it may, up to 100 messages outstanding each, to one node. Jain: the "
        "weighted cost served to each client by its max-min fair share. p99: from second 20 on. No "
        "turns: the loop works off all that a client has sent before it looks at the next one. "
        f"What a fan-out costs: a message to {round(SUBSCRIBERS * runs.scale):,} subscribers "
        f"is {1e3 * SUBSCRIBERS * DELIVERY_S:.0f} ms of the loop, in pieces of "
        f"{DELIVERIES_PIECE} subscribers, and has its client's window for itself. Between two "
        "pieces everybody else is served; where there are no turns, nobody.",
        (*checks, held(runs)),
        (table(runs, "noise", COLUMNS),),
    )


COLUMNS: Final = {
    "p99 of the quiet ones ms": Column(quiet_p99_ms),
    "Jain": Column(fairness, digits=3),
    "most memory MiB": Column(figures.memory_mib, digits=0),
}
EXPERIMENT = Experiment(
    "E6",
    cases,
    judge,
    "windows, payloads, pieces of 250 deliveries and the time of a commit are not scaled.",
)
