"""Run: a scenario under one policy, step by step, and its figures.

Between two steps the world is sampled and `watch` is called; nothing of that changes
the run. A recorder plugs in here: `attach` is given the world before its first event.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter
from typing import Final, Literal

from flowguard.config import PolicyName
from simulations.crowd.clients import NEVER_S
from simulations.crowd.connection import Outcome
from simulations.invariants import Invariants
from simulations.scenario import Scenario
from simulations.world import World

SAMPLE_S: Final = 0.5
BACK: Final = 0.99
"""Share of the clients connected before a disturbance that must reconnect to end it."""

EndedBy = Literal["duration", "connected", "violation", "stopped"]


@dataclass(frozen=True, slots=True)
class NodeSample:
    """A node at an instant; one that is down has no pressure and no window."""

    pressure: float
    window: float
    memory_bytes: int
    is_alive: bool


@dataclass(frozen=True, slots=True)
class WorldSample:
    t_s: float
    connected_count: int
    done_count: int
    """Successes so far: PUBACKs in time, or CONNACKs if no client publishes."""
    nodes: tuple[NodeSample, ...]


BEYOND: Final = "beyond all bounds"
"""A time that is infinite, in words: no bucket of a histogram is for it."""


@dataclass(slots=True)
class Summary:
    """A run in numbers. Times are virtual seconds since its start, or None if it never happened."""

    policy: PolicyName
    seed: int
    clients: int
    ended_s: float = 0.0
    ended_by: EndedBy = "stopped"
    violation: str | None = None
    """The invariant that did not hold, and the seed that shows it again."""
    connected_share: float = 0.0
    """Share of the clients that were connected at least once."""
    connected_50_s: float | None = None
    connected_99_s: float | None = None
    connected_100_s: float | None = None
    back_s: float | None = None
    """Time from the beginning of the disturbance until as many clients as before are connected."""
    goodput_after_share: float | None = None
    """Goodput in the last third after the disturbance, divided by that before it."""
    attempts_per_client: float = 0.0
    declined_count: int = 0
    """Attempts that failed."""
    given_up_count: int = 0
    wasted_count: int = 0
    """CONNECTs served for clients that had left."""
    due_count: int = 0
    acknowledged_count: int = 0
    in_time_share: float | None = None
    """Share of the messages due that were acknowledged within their deadline."""
    in_time_counts: dict[str, int] = field(default_factory=dict)
    """Messages acknowledged within their deadline, by population."""
    in_time_shares: dict[str, float] = field(default_factory=dict)
    """Share of the messages due that were acknowledged within their deadline, by population."""
    replayed_count: int = 0
    """Queued messages that were sent and acknowledged."""
    replayed_last_s: float | None = None
    """When the last of these messages was acknowledged."""
    acknowledged_p99_s: float | None = None
    """Infinite if it is longer than the histogram's largest bound; so is `delivered_p99_s`."""
    delivered_p99_s: float | None = None
    memory_peak_bytes: int = 0
    """Memory peak of the node that held most."""
    deaths_count: int = 0
    """Nodes that died of memory."""
    events_count: int = 0
    run_s: float = 0.0
    """Real time of the run."""
    samples: list[WorldSample] = field(default_factory=list)

    @property
    def events_per_s(self) -> float:
        return self.events_count / self.run_s if self.run_s else 0.0


Watch = Callable[[World], bool]
"""Called after every step. If it returns False, the run ends with the figures so far."""


def run(
    scenario: Scenario,
    policy: PolicyName,
    *,
    watch: Watch | None = None,
    attach: Callable[[World], None] | None = None,
) -> Summary:
    """Run to the end, or until `watch` returns False."""
    started_s = perf_counter()
    with _uncollected():
        summary = _run(scenario, policy, watch, attach)
    summary.run_s = perf_counter() - started_s
    return summary


@contextmanager
def _uncollected() -> Iterator[None]:
    """Suspend the garbage collector, which would scan the whole crowd again and again.

    The garbage of a run has no cycles. The world itself is one, and is collected at the end.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


def _run(
    scenario: Scenario,
    policy: PolicyName,
    watch: Watch | None,
    attach: Callable[[World], None] | None,
) -> Summary:
    world = World(scenario, policy)
    Invariants(world)
    if attach is not None:
        attach(world)
    summary = Summary(policy, scenario.seed, scenario.clients)
    steps = 0
    summary.samples.append(_sample(world))
    while world.ended_s is None:
        steps += 1
        world.run(steps * SAMPLE_S)
        summary.samples.append(_sample(world))
        if watch is not None and not watch(world):
            break
    _sum_up(world, summary)
    return summary


def _sample(world: World) -> WorldSample:
    connected_count = done_count = 0
    publishers = [p.publishers for p in world.populations if p.publishers is not None]
    for population in world.populations:
        connected_count += population.connected_count
        if not publishers:
            done_count += population.first_connected_count
    done_count += sum(p.in_time_count for p in publishers)
    nodes = []
    for machine in world.machines:
        broker = machine.broker
        if broker is None:
            nodes.append(NodeSample(0.0, 0.0, 0, False))
        else:
            grant = broker.guard.grant
            pressure = grant.pressure.value
            nodes.append(NodeSample(pressure, grant.window, broker.memory_bytes, True))
    return WorldSample(world.engine.now_s, connected_count, done_count, tuple(nodes))


def _sum_up(world: World, summary: Summary) -> None:
    populations, scenario = world.populations, world.scenario
    summary.ended_s = world.engine.now_s
    summary.ended_by = world.ended_by
    summary.violation = None if world.violation is None else str(world.violation)
    times_s = sorted(t for p in populations for t in p.first_connected_s if t != NEVER_S)
    summary.connected_share = len(times_s) / summary.clients
    summary.connected_50_s = _reached(times_s, summary.clients, 0.5)
    summary.connected_99_s = _reached(times_s, summary.clients, 0.99)
    summary.connected_100_s = _reached(times_s, summary.clients, 1.0)
    if all(p.plan.stay_s is None for p in populations):
        summary.back_s = _back_s(summary.samples, scenario.trigger_s[0])
    summary.goodput_after_share = _goodput_after(summary.samples, *scenario.trigger_s)
    summary.attempts_per_client = sum(sum(p.attempts) for p in populations) / summary.clients
    outcomes = [sum(p.outcomes[outcome] for p in populations) for outcome in Outcome]
    summary.declined_count = sum(outcomes) - outcomes[Outcome.CONNECTED]
    summary.given_up_count = sum(p.given_up_count for p in populations)
    summary.wasted_count = sum(p.wasted_count for p in populations)
    publishers = [p.publishers for p in populations if p.publishers is not None]
    summary.due_count = sum(p.due_count for p in publishers)
    summary.acknowledged_count = sum(p.acknowledged_count for p in publishers)
    if summary.due_count:
        summary.in_time_share = sum(p.in_time_count for p in publishers) / summary.due_count
        summary.in_time_counts = {
            p.name: p.publishers.in_time_count for p in populations if p.publishers is not None
        }
        summary.in_time_shares = {
            p.name: p.publishers.in_time_count / p.publishers.due_count
            for p in populations
            if p.publishers is not None and p.publishers.due_count
        }
    summary.replayed_count = sum(p.replayed_count for p in populations)
    if summary.replayed_count:
        summary.replayed_last_s = max(p.replayed_last_s for p in populations)
    summary.acknowledged_p99_s = world.acknowledgements.percentile(0.99)
    summary.delivered_p99_s = world.deliveries.percentile(0.99)
    summary.memory_peak_bytes = max(n.memory_bytes for s in summary.samples for n in s.nodes)
    summary.deaths_count = sum(machine.deaths_count for machine in world.machines)
    summary.events_count = world.engine.events_count


def _reached(times_s: list[float], clients: int, share: float) -> float | None:
    count = ceil(share * clients)
    return times_s[count - 1] if count <= len(times_s) else None


def _back_s(samples: list[WorldSample], trigger_s: float | None) -> float | None:
    """Return the time until as many clients are connected as before, or 0 if none was lost."""
    before = [s.connected_count for s in samples if trigger_s is not None and s.t_s < trigger_s]
    if trigger_s is None or not before:
        return None
    wanted = BACK * before[-1]
    missing_s = [s.t_s for s in samples if s.t_s >= trigger_s and s.connected_count < wanted]
    if not missing_s:
        return 0.0
    return missing_s[-1] - trigger_s if missing_s[-1] < samples[-1].t_s else None


def _goodput_after(
    samples: list[WorldSample], begin_s: float | None, end_s: float | None
) -> float | None:
    """Return the goodput after by that before, without the first third, in which clients still
    arrive."""
    if begin_s is None or end_s is None or end_s >= samples[-1].t_s:
        return None
    before = _rate(samples, begin_s / 3.0, begin_s)
    after = _rate(samples, samples[-1].t_s - (samples[-1].t_s - end_s) / 3.0, samples[-1].t_s)
    return after / before if before and after is not None else None


def _rate(samples: list[WorldSample], from_s: float, to_s: float) -> float | None:
    within = [sample for sample in samples if from_s <= sample.t_s <= to_s]
    if len(within) < 2:
        return None
    first, last = within[0], within[-1]
    return (last.done_count - first.done_count) / (last.t_s - first.t_s)
