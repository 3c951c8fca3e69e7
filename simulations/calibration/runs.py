"""Runs: a scenario on the real broker or in the simulator, with the same record of both.

Both sides have the same arrivals, retries, messages and faults. Populations that subscribe are
connected before the others on the real side, so these others should start at `START_S` or later.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

from flowguard.flow.load.histogram import Histogram
from loadgen.storm.loop import Wire
from simulations.calibration.crowd import RealCrowd
from simulations.calibration.load import Load
from simulations.calibration.process import (
    PYTHON,
    BrokerProcess,
    CalibrationError,
    StoreKind,
    broker_process,
)
from simulations.calibration.traffic import (
    RealPublisher,
    RealSubscriber,
    instants,
    subscribe_all,
    topic_of,
)
from simulations.crowd.connection import Outcome
from simulations.crowd.publishers import FINE_BOUNDS_S
from simulations.scenario import Fault, PopulationPlan, PublishPlan, RetryPlan, Scenario
from simulations.world import World

START_S: Final = 1.0
"""Time for subscribers to connect, seconds."""
MOMENT_S: Final = 0.1
SETUP_MAX_S: Final = 120.0
ENDLESS: Final = 1 << 60
FIRST: Final = PopulationPlan(clients=50, start_over_s=0.25, retry=RetryPlan(kind="none"))
"""Clients that come before measuring, because a process is slow at first."""


@dataclass(frozen=True, slots=True)
class CheckRun:
    """The record of one run; times of the scenario, seconds."""

    connected_s: Mapping[str, list[float]]
    """Times from a population's start to the first CONNACK of each client, in order."""
    rejected: int
    """CONNECTs rejected."""
    moments: Mapping[str, list[Histogram]]
    """By population that publishes: latencies of what was acknowledged in each `MOMENT_S`."""
    cpu_s: float
    """CPU time of the broker."""
    slowness: float = 1.0
    """CPU time of the loop and its time without a core, by that CPU time."""
    load_share: float = 0.0
    """CPU time of the clients by the duration; near 1 the load was the bottleneck."""

    def connected(self, name: str, clients: int, share: float = 0.99) -> float:
        """Time until this share of the clients is connected, or infinity."""
        times_s, number = self.connected_s[name], -int(-share * clients // 1)
        return times_s[number - 1] if number <= len(times_s) else float("inf")

    def between(self, name: str, begin_s: float, end_s: float) -> list[Histogram]:
        return self.moments[name][round(begin_s / MOMENT_S) : round(end_s / MOMENT_S)]


def count_of(moments: Sequence[Histogram]) -> int:
    return sum(sum(moment.counts) for moment in moments)


def p99_of(moments: Sequence[Histogram]) -> float:
    """The p99 of all latencies, or infinity without any."""
    return _joined(moments).percentile(0.99) or float("inf")


def unevenness_of(moments: Sequence[Histogram]) -> float:
    """Median over all moments of the p99 by the mean latency.

    The p99 of all messages is that of the moment in which RocksDB flushes, which nothing simulates.
    By Little's law the mean is the number of messages in process by their throughput.
    """
    shares = [
        late_s * sum(moment.counts) / moment.total
        for moment in moments
        if (late_s := moment.percentile(0.99)) is not None
    ]
    return median(shares) if shares else float("inf")


def _joined(moments: Sequence[Histogram]) -> Histogram:
    joined = Histogram(FINE_BOUNDS_S)
    for moment in moments:
        joined.add(moment)
    return joined


# --- simulated ---------------------------------------------------------------------------------


def simulated_run(scenario: Scenario, least_s: float, slowness: float = 1.0) -> CheckRun:
    """Run the scenario on a node that is slower by this factor, as long as `real_run` does."""
    slow = Fault(kind="slow_cpu", at_s=0.0, factor=slowness)
    world = World(scenario.model_copy(update={"faults": (*scenario.faults, slow)}), "flowguard")
    publishing = {each.name: each.publishers for each in world.populations if each.publishers}
    moments: dict[str, list[Histogram]] = {name: [] for name in publishing}
    for number in range(1, 1 + round(scenario.duration_s / MOMENT_S)):
        for name, publishers in publishing.items():
            publishers.acknowledgements = Histogram(FINE_BOUNDS_S)
            moments[name].append(publishers.acknowledgements)
        world.run(number * MOMENT_S)
        decided_count = sum(p.first_connected_count + p.given_up_count for p in world.populations)
        if number * MOMENT_S >= least_s and decided_count >= scenario.clients:
            break
    broker = world.machines[0].broker
    assert broker is not None
    return CheckRun(
        {each.name: _since_start(each.first_connected_s, each.plan) for each in world.populations},
        sum(each.outcomes[Outcome.REFUSED] for each in world.populations),
        moments,
        broker.loop.busy_s / slowness,
    )


def _since_start(connected_s: Sequence[float], plan: PopulationPlan) -> list[float]:
    return sorted(at_s - plan.start_s for at_s in connected_s if at_s >= 0.0)


# --- real --------------------------------------------------------------------------------------


def real_run(
    store: StoreKind, scenario: Scenario, least_s: float, python: Sequence[str] = PYTHON
) -> CheckRun:
    """Run the scenario on a real broker, which the command `python` starts.

    The run ends after `least_s` when each client is connected or has given up.
    Raises CalibrationError if the broker fails.
    """
    with _broker(store, scenario, python) as broker:
        return driven(broker, scenario, least_s)


def driven(broker: BrokerProcess, scenario: Scenario, least_s: float) -> CheckRun:
    """Run the scenario on a broker that runs already."""
    load = Load(broker.address)
    crowds: dict[str, RealCrowd] = {}
    moments: dict[str, list[Histogram]] = {}
    latencies: dict[str, Histogram] = {}
    for name, plan in scenario.populations.items():
        crowd = crowds[name] = RealCrowd(load, name, plan, scenario.seed)
        if plan.publish is not None:
            latencies[name], moments[name] = Histogram(FINE_BOUNDS_S), []
            crowd.on_connected = _publishing(crowd, plan.publish, scenario, latencies[name])
    audiences = [name for name, plan in scenario.populations.items() if plan.subscribes]
    for name in audiences:
        crowds[name].come(SETUP_MAX_S)
        _subscribe(crowds[name], scenario)
    before, load_s = broker.settled(), load.cpu_s
    start_s = load.now_s
    for name, crowd in crowds.items():
        if name not in audiences:
            crowd.begin(start_s)
    _schedule_faults(scenario, broker, load, start_s)
    for number in range(1, 1 + round(scenario.duration_s / MOMENT_S)):
        load.run_until(start_s + number * MOMENT_S)
        for name, histogram in latencies.items():
            moments[name].append(_taken(histogram))
        is_decided = all(crowd.is_decided for crowd in crowds.values())
        if number * MOMENT_S >= least_s and is_decided:
            break
    used, load_s = broker.usage().since(before), load.cpu_s - load_s
    load.loop.close_all()
    return CheckRun(
        {name: _since_start(each.first_connected_s, each.plan) for name, each in crowds.items()},
        sum(each.outcomes[Outcome.REFUSED] for each in crowds.values()),
        moments,
        used.process_s,
        (used.loop_s + used.waited_s) / used.loop_s,
        load_s / used.at_s,
    )


@contextmanager
def _broker(store: StoreKind, scenario: Scenario, python: Sequence[str]) -> Iterator[BrokerProcess]:
    """A real broker with the settings of a scenario, warmed up."""
    flow = scenario.flow.model_dump(exclude_defaults=True)
    can_stop = bool(scenario.faults)
    with broker_process(store, {"flow": flow}, can_stop_store=can_stop, python=python) as broker:
        load = Load(broker.address)
        RealCrowd(load, "first", FIRST, scenario.seed).come(SETUP_MAX_S)
        load.loop.close_all()
        broker.settled()
        yield broker


def _subscribe(crowd: RealCrowd, scenario: Scenario) -> None:
    """Subscribe each client to its topic, and acknowledge what comes from then on."""
    publish = next(
        plan.publish
        for plan in scenario.populations.values()
        if plan.publish is not None and plan.publish.to == crowd.name
    )
    wires = crowd.connected()
    topics = [_topic(publish, crowd.plan, client) for client in range(len(wires))]
    subscribe_all(crowd.load, wires, topics, SETUP_MAX_S)
    for wire, topic in zip(wires, topics, strict=True):
        RealSubscriber(wire, topic, publish.payload_bytes)


def _topic(publish: PublishPlan, audience: PopulationPlan, client: int) -> str:
    assert publish.to is not None
    return topic_of(0 if publish.spread == "all" else client % audience.clients, publish.to)


def _publishing(
    crowd: RealCrowd, publish: PublishPlan, scenario: Scenario, latencies: Histogram
) -> Callable[[int, Wire, int, float], None]:
    """A callback that lets a client publish from when it is connected."""
    plan, loop = crowd.plan, crowd.load.loop
    assert publish.to is not None
    audience = scenario.populations[publish.to]
    until_s = scenario.duration_s - plan.start_s
    due_s: list[list[float]] = []
    if publish.rate_per_s is not None:
        arguments = publish, crowd.name, scenario.seed
        due_s = [instants(*arguments, client, until_s) for client in range(plan.clients)]

    def begin(client: int, wire: Wire, receive_maximum: int, now_s: float) -> None:
        outstanding = min(publish.outstanding, receive_maximum)
        topic = _topic(publish, audience, client)
        publisher = RealPublisher(wire, latencies, topic, publish.payload_bytes, outstanding)
        if due_s:
            publisher.follow((now_s + after_s for after_s in due_s[client]), loop)
        else:
            publisher.flood(ENDLESS, now_s)

    return begin


def _schedule_faults(scenario: Scenario, broker: BrokerProcess, load: Load, start_s: float) -> None:
    for fault in scenario.faults:
        if fault.kind != "store_stop" or fault.until_s is None:
            raise CalibrationError(f"a real broker cannot have the fault {fault.kind}")
        load.loop.call_at(start_s + fault.at_s, lambda _: broker.stop_store())
        load.loop.call_at(start_s + fault.until_s, lambda _: broker.start_store())


def _taken(latencies: Histogram) -> Histogram:
    """A copy; the original is empty afterwards."""
    copy = Histogram(latencies.bounds)
    copy.add(latencies)
    latencies.counts, latencies.total = [0] * len(latencies.counts), 0.0
    return copy
