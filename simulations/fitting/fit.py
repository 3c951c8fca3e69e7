"""Fit: a recorded run as a scenario, and what the recording does not show."""

from dataclasses import dataclass
from typing import Any, Final

from flowguard.config import FlowSettings
from simulations.fitting.costs import node_costs, store_costs, work_by_second
from simulations.fitting.groups import groups_of, retries_of
from simulations.fitting.measured import simulated
from simulations.fitting.messages import add_messages
from simulations.fitting.recorded import RecordedRun
from simulations.proportions import QUEUEING
from simulations.scenario import Scenario
from simulations.scenario_files.loading import change

ROUNDS: Final = 2
"""Simulations whose working time corrects the costs."""
FACTOR_MAX: Final = 2.0
"""Largest correction of one round."""
LATENCY_S: Final = 0.000_1
COSTS: Final = (
    *("accept_s", "connect_s", "refuse_s", "read_s", "publish_s", "queue_s", "send_s"),
    *("delivery_s", "handoff_s"),
)
_FLOW: Final = "flow."
_NOT_FITTED: Final = ("policy", "shadow_policy", "memory_max_bytes", "unfinished_bytes_max")


@dataclass(frozen=True, slots=True)
class Fit:
    table: dict[str, Any]
    """The scenario's file."""
    notes: list[str]
    """Sentences about values that the recording does not show."""

    @property
    def scenario(self) -> Scenario:
        return Scenario.model_validate(self.table)


def fit(run: RecordedRun) -> Fit:
    """Return a scenario that is like the run."""
    notes: list[str] = []
    groups = groups_of(run, notes)
    behaviour = retries_of(run, notes)
    populations: dict[str, dict[str, Any]] = {
        group.name: {
            "clients": len(group.arrivals_s),
            "durable": group.durable,
            "subscribes": group.subscribes,
            "keep_alive_s": group.keep_alive_s,
            **behaviour,
            "arrivals": {"points": group.points()},
        }
        for group in groups
    }
    add_messages(run, groups, populations, notes)
    plans = [table.get("publish", {}) for table in populations.values()]
    are_wide = any(plan.get("stored") and plan.get("spread") == "all" for plan in plans)
    notes.append("The network is not in the recording: a latency of 0.1 ms is assumed.")
    table = {
        "title": f"like the recorded run {run.run_id}",
        "duration_s": float(run.seconds),
        "flow": _limits(run),
        "node": node_costs(run, QUEUEING if are_wide else 0.0, notes),
        "store": {},
        "network": {"latency_s": LATENCY_S},
        "populations": populations,
    }
    _correct(run, table, notes)
    return Fit(table, notes)


def _limits(run: RecordedRun) -> dict[str, Any]:
    """Return the limits that differ from the defaults."""
    return {
        key.removeprefix(_FLOW): change(f"{key}={value}")[1]
        for key, value in run.parameters.items()
        if key.startswith(_FLOW)
        and key.removeprefix(_FLOW) in FlowSettings.model_fields
        and key.removeprefix(_FLOW) not in _NOT_FITTED
    }


def _correct(run: RecordedRun, table: dict[str, Any], notes: list[str]) -> None:
    """Multiply the costs, so that the simulated loop works as long as the recorded one did."""
    busy_s = sum(work_by_second(run)[1])
    whole = 1.0
    node = table["node"]
    if not run.has("samples", "committing_s") or not sum(run.by_second("committing_s")):
        notes.append("There was no commit, or the run does not show them: 1 ms is assumed.")
    for _ in range(ROUNDS):
        table["store"] = store_costs(run, node["handoff_s"])
        model_s = simulated(Scenario.model_validate(table)).busy_s
        factor = min(FACTOR_MAX, max(1.0 / FACTOR_MAX, busy_s / model_s)) if model_s else 1.0
        whole *= factor
        for key in COSTS:
            node[key] *= factor
    table["store"] = store_costs(run, node["handoff_s"])
    if abs(whole - 1.0) > 0.2:
        notes.append(f"Costs were multiplied by {whole:.2f}, so that the loop works as long.")
