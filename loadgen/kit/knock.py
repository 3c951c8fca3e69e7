"""Knock: check that a broker serves one client: CONNECT, SUBSCRIBE, PUBLISH, and the message
returns."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias, final

from flowguard.types import MQTT_5, MQTT_311
from loadgen.storm.plan import CrowdPlan, RetryMode, RetryPolicy, Target, TrafficPlan
from loadgen.storm.traffic import Traffic

Clock: TypeAlias = Callable[[], float]
PATIENCE_S: Final = 5.0
"""Time for a CONNACK of a broker without a crowd, and as much for the rest."""
PLAN: Final = TrafficPlan(1, 1, 1, outstanding=1, backlog=1, seconds=0.02, late_s=PATIENCE_S)


@final
class Knock(NamedTuple):
    """The result of a knock; `why` is empty if the client was served."""

    seconds: float
    why: str

    @property
    def served(self) -> bool:
        return not self.why


async def knock(target: Target, patience_s: float, clock: Clock) -> Knock:
    """Try until one client is served, or `patience_s` has passed."""
    began_s = clock()
    retry = RetryPolicy(RetryMode.FIXED, 0.2, 0.2)
    crowd = CrowdPlan(PLAN.clients, retry, min(PATIENCE_S, patience_s), patience_s)
    traffic = Traffic(target, PLAN, crowd, clock)
    await traffic.run()
    tally = traffic.crowd.tally
    if traffic.tally.received:
        why = ""
    elif tally.accepted:
        why = "it accepts a client, but a message does not come back"
    else:
        counts = [f"{count} {name}" for name, count in tally.failures.items() if count]
        counts += [f"{count} refused with 0x{code:02x}" for code, count in tally.refused.items()]
        counts += [f"{tally.busy} told to come back later"] * bool(tally.busy)
        why = f"no CONNACK within {patience_s:g} s: {', '.join(counts) or 'timed out'}"
    return Knock(clock() - began_s, why)


async def greet(target: Target, clock: Clock, *, fall_back: bool) -> tuple[Target, Knock]:
    """Knock for the first time; `fall_back` tries 3.1.1 if the broker does not understand 5.0."""
    first = await knock(target, PATIENCE_S, clock)
    if first.served or not fall_back or target.version != MQTT_5:
        return target, first
    older = replace(target, version=MQTT_311)
    second = await knock(older, PATIENCE_S, clock)
    return (older, second) if second.served else (target, first)
