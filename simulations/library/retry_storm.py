"""Clients that try again too soon keep an overload alive: experiment E3."""

from typing import Literal

from simulations.scenario import (
    Fault,
    NodePlan,
    NotNegative,
    PopulationPlan,
    Positive,
    RetryPlan,
    Scenario,
)

SERVICE_S = 0.01
TIMEOUT_S = 3.0
CALM_S = 20.0
"""Time before the trigger."""
AFTER_S = 90.0
WHAT = {"load": "then too much", "pause": "then a pause"}
RETRIES = {
    "none": RetryPlan(kind="fixed", first_s=0.001, tries=3),
    "exponential": RetryPlan(kind="backoff", first_s=1.0, max_s=60.0, tries=3),
}


def scenario(
    load: NotNegative = 0.8,
    trigger: Literal["load", "pause"] = "load",
    trigger_s: Positive = 10.0,
    factor: Positive = 2.0,
    backoff: Literal["none", "exponential"] = "none",
) -> Scenario:
    """`load` is the share of the server's capacity, `factor` times that comes in the trigger."""
    until_s = CALM_S + trigger_s
    duration_s = until_s + AFTER_S
    rate_per_s = load / SERVICE_S
    request = PopulationPlan(
        timeout_s=TIMEOUT_S,
        durable=False,
        stay_s=0.0,
        retry=RETRIES[backoff],
        start_over_s=duration_s,
    )
    populations = {"steady": request.model_copy(update={"clients": round(rate_per_s * duration_s)})}
    faults: tuple[Fault, ...] = ()
    if trigger == "load":
        surge = {
            "clients": round((factor - 1.0) * rate_per_s * trigger_s),
            "start_s": CALM_S,
            "start_over_s": trigger_s,
        }
        populations["surge"] = request.model_copy(update=surge)
    else:
        faults = (Fault(kind="pause", at_s=CALM_S, until_s=until_s),)
    node = NodePlan()
    return Scenario(
        title=f"{load:.0%} load, {WHAT[trigger]} for {trigger_s:g} s: does it ever recover?",
        description=(
            "A request is a client that connects, gets its answer and leaves; one server, 10 ms "
            "each. Clients wait 3 s and try three times. After the trigger the server could carry "
            "the load easily. If it serves clients that have given up, their retries keep it "
            "busy for ever. Look at: goodput after the trigger, wasted, gave up. "
            "trigger=pause stops the process instead, backoff=exponential is kinder. flowguard is "
            "configured for clients that wait 10 s; it learns from hang-ups that they wait 3 s."
        ),
        duration_s=duration_s,
        trigger_at_s=CALM_S,
        trigger_until_s=until_s,
        node=node.model_copy(update={"connect_s": SERVICE_S - node.accept_s}),
        populations=populations,
        faults=faults,
    )
