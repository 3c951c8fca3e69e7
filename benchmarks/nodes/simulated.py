"""The load of `cascade` in the simulator, with the objects that decide in the real nodes.

These are the law and the CONNECT gate, the signs of life and the assignment of shards. A simulated
device uses the node of its shard, so the kill ends the connections of a third of them. At the real
nodes it also ends those of devices whose shard is at another node.
"""

from dataclasses import dataclass
from math import inf, isinf
from unittest import mock

from benchmarks.checks import Columns
from flowguard.config import MIB, FlowSettings, PolicyName
from simulations.process import entrance
from simulations.results.run import Summary, run
from simulations.scenario import (
    Fault,
    NetworkPlan,
    NodePlan,
    PopulationPlan,
    PublishPlan,
    RetryPlan,
    Scenario,
    StorePlan,
)

from . import busy_store
from .devices import CONNACK_S, IN_TIME_S, OUTSTANDING, PAYLOAD_BYTES

COMMIT_S = 0.01
"""A real commit takes at least `busy_store.LEAST_S`, its messages included; a simulated one takes
this in addition to its messages."""
KILL_S, CONNECT_OVER_S = 40.0, 15.0


@dataclass(frozen=True)
class Plan:
    """The load, as at the real nodes."""

    nodes: int
    shards: int
    devices: int
    rate_per_s: float
    flow: FlowSettings
    memory_mib: int
    retry_s: float
    settled_s: float
    after_s: float


@dataclass(frozen=True)
class Simulated:
    plan: Plan
    summary: Summary

    @property
    def back_s(self) -> float:
        back_s = self.summary.back_s
        return inf if back_s is None else back_s

    @property
    def in_time(self) -> float:
        """Messages in time, in percent of those that were due, after `Plan.settled_s`."""
        from_s = KILL_S + self.plan.settled_s
        counts = [at.done_count for at in self.summary.samples if at.t_s >= from_s]
        due = self.plan.rate_per_s * (self.plan.after_s - self.plan.settled_s)
        return 100 * (counts[-1] - counts[0]) / due


def seconds_of(value: float) -> str:
    return "never" if isinf(value) else f"{value:.0f} s"


COLUMNS: Columns[Simulated] = {
    "policy, simulated": lambda run: run.summary.policy,
    "nodes that died, too": lambda run: f"{run.summary.deaths_count}",
    "all connected after": lambda run: seconds_of(run.back_s),
    "messages in time from 30 s on": lambda run: f"{run.in_time:.1f} %",
}


def scenario_of(plan: Plan) -> Scenario:
    return Scenario(
        title="One of three nodes is killed",
        nodes=plan.nodes,
        duration_s=KILL_S + plan.after_s,
        node=NodePlan(memory_max_bytes=plan.memory_mib * MIB),
        store=StorePlan(commit_s=COMMIT_S, op_s=busy_store.MESSAGE_S),
        network=NetworkPlan(shards=plan.shards),
        flow=plan.flow,
        populations={
            "devices": PopulationPlan(
                clients=plan.devices,
                start_over_s=CONNECT_OVER_S,
                node="shard",
                timeout_s=CONNACK_S,
                retry=RetryPlan(kind="fixed", first_s=plan.retry_s),
                publish=PublishPlan(
                    rate_per_s=plan.rate_per_s / plan.devices,
                    even=True,
                    outstanding=OUTSTANDING,
                    payload_bytes=PAYLOAD_BYTES,
                    deadline_s=IN_TIME_S,
                ),
            )
        },
        faults=(Fault(kind="node_down", at_s=KILL_S),),
    )


def simulated(plan: Plan, policy: PolicyName) -> Simulated:
    """Simulate the load once. A CONNECT has as many operations as messages that cost as much."""
    ops = round(busy_store.SESSION_S / busy_store.MESSAGE_S) * entrance.CLAIM_OPS[:1]
    with mock.patch.object(entrance, "CLAIM_OPS", ops):
        return Simulated(plan, run(scenario_of(plan), policy))
