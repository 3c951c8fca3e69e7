"""Check: small scenarios on the real broker and in the simulator, with the costs measured before.

A storm asks how long it takes until half and until 99 % of its clients are connected; a flood how
many messages are acknowledged per second, and how late all but one in a hundred of them are in most
tenths of a second. Both sides have the same arrivals, retries and windows. A machine that does
something else at the same time makes the real broker late, or its work dear, and the simulated one
not: of several real runs that one counts in which the same work took least of a core, with the time
that the broker waited for one, which is said; and it is as late as the least late of them. Costs
are measured so, too (`estimates`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from flowguard.config import FlowSettings
from flowguard.flow.histogram import Histogram
from simulations.calibration.costs import Costs, with_costs
from simulations.calibration.crowd import RealCrowd
from simulations.calibration.load import Load
from simulations.calibration.process import BrokerProcess, StoreKind, Usage, broker_process
from simulations.calibration.traffic import (
    RealPublisher,
    RealSubscriber,
    publish_by_chance,
    subscribe_all,
    topic_of,
)
from simulations.clients import Population
from simulations.connection import Outcome
from simulations.publishers import FINE_BOUNDS_S
from simulations.scenario import PopulationPlan, PublishPlan, RetryPlan, Scenario
from simulations.world import World

TOLERANCE: Final = 0.15
"""Deviation that still counts as agreement, as a share of the real value."""
FLOOD_START_S: Final = 1.0
"""Virtual time of a flood's start; by then the subscribers are there."""
WARM_S: Final = 1.0
"""Time of a flood before it is measured."""
STORM_MAX_S: Final = 120.0
ARRIVALS_PER_S: Final = 10_000
"""Arrivals as fast as one process can make them, with some reserve."""
OVERLOAD: Final = 2.0
"""Offered load of a flood, as a multiple of the broker's capacity."""
PUBLISHERS: Final = 100
OUTSTANDING: Final = 20
GOODPUT: Final = "acknowledged, 1/s"
CONNECTED: Final = "99 % connected, s"
MOMENT_S: Final = 0.1
LATE: Final = f"p99 of {MOMENT_S:g} s, s"
"""The median of what it is in each `MOMENT_S`. That of all messages is that of the one moment in
ten in which RocksDB flushes, on a core that others need: it is shown, and nothing simulates it."""
JUDGED: Final = (GOODPUT, CONNECTED, LATE)
"""The figures that have to agree."""
ENDLESS: Final = 1 << 60
FIRST: Final = PopulationPlan(clients=50, start_over_s=0.25, retry=RetryPlan(kind="none"))
"""Clients that come before measuring: a process is slow at first."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, real and simulated."""

    name: str
    real: float
    simulated: float
    is_judged: bool = False

    @property
    def deviation(self) -> float:
        """The deviation of the simulated value from the real one, as a share of the latter."""
        return self.simulated / self.real - 1.0 if self.real else 0.0

    @property
    def agrees(self) -> bool:
        """Whether the deviation is small enough, or the figure does not matter."""
        return not self.is_judged or abs(self.deviation) <= TOLERANCE


@dataclass(frozen=True, slots=True)
class Comparison:
    """One scenario on both sides."""

    name: str
    figures: list[Figure]
    waited_share: float
    """Share of the real run's time in which the broker was ready and had no core."""
    load_share: float
    """CPU time of the real run's clients by its duration: near 1 the load was the bottleneck, not
    the broker."""

    def figure(self, name: str) -> Figure:
        return next(figure for figure in self.figures if figure.name == name)


Values = dict[str, float]


class Ran(NamedTuple):
    """A run on the real broker."""

    values: Values
    used: Usage
    load_s: float
    """CPU time of its clients."""
    done_count: int
    """Clients that were connected, or messages that were acknowledged."""

    @property
    def price_s(self) -> float:
        """CPU time of the broker for each of them, and the time until it had a core for it."""
        return (self.used.process_s + self.used.waited_s) / max(1, self.done_count)

    @property
    def waited_share(self) -> float:
        return self.used.waited_s / self.used.at_s


@dataclass(frozen=True, slots=True)
class Check:
    store: StoreKind
    costs: Costs
    clients: int = 2_000
    """Clients of a storm."""
    seed: int = 1
    runs: int = 3
    """Runs on the real broker."""
    flood_s: float = 3.0
    """Measured duration of a flood, after `WARM_S`."""

    def run(self, on_step: Callable[[str], None]) -> list[Comparison]:
        """Compare all scenarios, one after the other; `on_step` is told of each.

        Raises CalibrationError where the real side breaks.
        """
        comparisons = []
        for name, scenario in storms(self.store, self.clients, self.seed).items():
            on_step(name)
            comparisons.append(self._compared(name, scenario, _real_storm, _simulated_storm))
        rate_per_s = None
        for name in ("flood, closed loop", f"flood, {OVERLOAD:g} times the capacity"):
            on_step(name)
            scenario = flood(rate_per_s, self.seed, self.flood_s)
            comparisons.append(self._compared(name, scenario, _real_flood, _simulated_flood))
            rate_per_s = OVERLOAD * comparisons[-1].figure(GOODPUT).simulated
        return comparisons

    def _compared(
        self,
        name: str,
        scenario: Scenario,
        run: Callable[[StoreKind, Scenario], Ran],
        simulate: Callable[[Scenario], Values],
    ) -> Comparison:
        """The cheapest of several real runs beside a simulated one."""
        runs = [run(self.store, scenario) for _ in range(self.runs)]
        real = least_disturbed(runs)
        simulated = simulate(with_costs(scenario, self.costs))
        figures = [
            Figure(key, value, simulated[key], is_judged=key in JUDGED)
            for key, value in real.values.items()
        ]
        return Comparison(name, figures, real.waited_share, real.load_s / real.used.at_s)


def least_disturbed(runs: Sequence[Ran]) -> Ran:
    """The run in which the same work took least; as late as the one that was least late, as what
    disturbs one makes it later, though not always dearer."""
    best = min(runs, key=lambda ran: ran.price_s)
    late = [ran.values[LATE] for ran in runs if LATE in ran.values]
    return best._replace(values=best.values | {LATE: min(late)}) if late else best


STEPS: Final = 4
"""How often `Check.run` calls `on_step`, at most."""


def storms(store: StoreKind, clients: int, seed: int) -> dict[str, Scenario]:
    """A crowd with the gate wide open, and one with a gate so narrow that most are refused at
    first.

    The narrow gate serves one at a time, so that it waits for the store. A store in memory makes
    nobody wait: its gate would be as wide as the other."""
    plan = PopulationPlan(
        clients=clients,
        start_over_s=clients / ARRIVALS_PER_S,
        retry=RetryPlan(first_s=0.2, max_s=2.0),
    )
    opened = Scenario(
        seed=seed, duration_s=STORM_MAX_S, ends_when_connected=True, populations={"storm": plan}
    )
    named = {f"storm of {clients:,}": opened}
    if store != "memory":
        flow = FlowSettings(connects_in_process_max=1, connect_buffer_max=clients // 10)
        narrow = opened.model_copy(update={"flow": flow})
        named[f"storm of {clients:,}, one at a time"] = narrow
    return named


def flood(rate_per_s: float | None, seed: int, flood_s: float) -> Scenario:
    """All clients publish, each to a subscriber of its own; at this total rate, or as fast as they
    can. Windows are full from the first moment on: what a ramp has torn apart stays so in the
    simulator, and does not where sockets are slow."""
    publish = PublishPlan(
        rate_per_s=None if rate_per_s is None else rate_per_s / PUBLISHERS,
        collected=0 if rate_per_s is None else OUTSTANDING,
        outstanding=OUTSTANDING,
        to="subscribers",
        spread="one",
    )
    subscribers = PopulationPlan(clients=PUBLISHERS, start_over_s=0.1, subscribes=True)
    publishers = PopulationPlan(
        clients=PUBLISHERS, start_s=FLOOD_START_S, start_over_s=0.0, durable=False, publish=publish
    )
    return Scenario(
        seed=seed,
        duration_s=FLOOD_START_S + WARM_S + flood_s,
        populations={"subscribers": subscribers, "publishers": publishers},
    )


# --- storms ------------------------------------------------------------------------------------


def _real_storm(store: StoreKind, scenario: Scenario) -> Ran:
    with _broker(store, scenario) as broker:
        load = Load(broker.address)
        crowd = RealCrowd(load, "storm", scenario.populations["storm"], scenario.seed)
        before, load_s = broker.settled(), load.cpu_s
        crowd.come(STORM_MAX_S)
        used, load_s = broker.usage().since(before), load.cpu_s - load_s
        load.loop.close_all()
    return Ran(_storm_values(crowd, used.loop_s), used, load_s, crowd.plan.clients)


def _simulated_storm(scenario: Scenario) -> Values:
    world = World(scenario, "flowguard")
    world.run()
    return _storm_values(world.populations[0], _busy_s(world))


def _storm_values(crowd: RealCrowd | Population, cpu_s: float) -> Values:
    times_s = sorted(time_s for time_s in crowd.first_connected_s if time_s >= 0.0)
    count = crowd.plan.clients
    return {
        "50 % connected, s": times_s[count // 2 - 1],
        CONNECTED: times_s[-(-99 * count // 100) - 1],
        "refused": float(crowd.outcomes[Outcome.REFUSED]),
        "CPU of the loop, s": cpu_s,
    }


# --- floods ------------------------------------------------------------------------------------


def _real_flood(store: StoreKind, scenario: Scenario) -> Ran:
    with _broker(store, scenario) as broker:
        load = Load(broker.address)
        wires = {}
        for name, plan in scenario.populations.items():
            crowd = RealCrowd(load, name, plan.model_copy(update={"start_s": 0.0}), scenario.seed)
            crowd.come(STORM_MAX_S)
            wires[name] = crowd.connected()
        plan = scenario.populations["publishers"]
        publish = plan.publish
        assert publish is not None
        topics = [topic_of(number) for number in range(plan.clients)]
        subscribe_all(load, wires["subscribers"], topics, STORM_MAX_S)
        for wire, topic in zip(wires["subscribers"], topics, strict=True):
            RealSubscriber(wire, topic, publish.payload_bytes)
        latencies = Histogram(FINE_BOUNDS_S)
        publishers = [
            RealPublisher(wire, latencies, topic, publish.payload_bytes, publish.outstanding)
            for wire, topic in zip(wires["publishers"], topics, strict=True)
        ]
        ran = _run_flood(broker, load, publishers, latencies, scenario)
        load.loop.close_all()
    return ran


def _run_flood(
    broker: BrokerProcess,
    load: Load,
    publishers: list[RealPublisher],
    latencies: Histogram,
    scenario: Scenario,
) -> Ran:
    publish = scenario.populations["publishers"].publish
    assert publish is not None
    counts_s = scenario.duration_s - FLOOD_START_S - WARM_S
    if publish.rate_per_s is None:
        for publisher in publishers:
            publisher.flood(ENDLESS, load.now_s)
    else:
        publish_by_chance(
            load,
            publishers,
            name="publishers",
            seed=scenario.seed,
            publish=publish,
            duration_s=WARM_S + counts_s,
        )
    load.run_for(WARM_S)
    before, load_s = broker.usage(), load.cpu_s
    moments = []
    for _ in range(round(counts_s / MOMENT_S)):
        latencies.counts = [0] * len(latencies.counts)
        load.run_for(MOMENT_S)
        moments.append(_copy(latencies))
    used = broker.usage().since(before)
    values = flood_values(moments, used.at_s, used.process_s)
    return Ran(values, used, load.cpu_s - load_s, round(values[GOODPUT] * used.at_s))


def _simulated_flood(scenario: Scenario) -> Values:
    world = World(scenario, "flowguard")
    publishers = world.populations[1].publishers
    assert publishers is not None
    begin_s = FLOOD_START_S + WARM_S
    world.engine.run(begin_s)
    before_s = _busy_s(world)
    moments = []
    for number in range(1, 1 + round((scenario.duration_s - begin_s) / MOMENT_S)):
        moment = publishers.acknowledgements = Histogram(FINE_BOUNDS_S)
        world.engine.run(begin_s + number * MOMENT_S)
        moments.append(moment)
    cpu_s = _busy_s(world) - before_s
    return flood_values(moments, len(moments) * MOMENT_S, cpu_s)


def _copy(latencies: Histogram) -> Histogram:
    copy = Histogram(latencies.bounds)
    copy.add(latencies)
    return copy


def flood_values(moments: list[Histogram], seconds: float, cpu_s: float) -> Values:
    """Figures of a flood that took so long; `moments` have the latencies of `MOMENT_S` each, or
    none, where a commit takes longer."""
    latencies = Histogram(FINE_BOUNDS_S)
    for moment in moments:
        latencies.add(moment)
    count = sum(latencies.counts)
    late = [late_s for moment in moments if (late_s := moment.percentile(0.99)) is not None]
    return {
        GOODPUT: count / seconds,
        "p50, s": latencies.percentile(0.5) or 0.0,
        LATE: median(late) if late else 0.0,
        "p99, s": latencies.percentile(0.99) or 0.0,
        "CPU of a message, s": cpu_s / max(1, count),
    }


# --- both --------------------------------------------------------------------------------------


@contextmanager
def _broker(store: StoreKind, scenario: Scenario) -> Iterator[BrokerProcess]:
    """A real broker with the settings of a scenario, warmed up."""
    flow = scenario.flow.model_dump(exclude_defaults=True)
    with broker_process(store, {"flow": flow}) as broker:
        load = Load(broker.address)
        RealCrowd(load, "first", FIRST, scenario.seed).come(STORM_MAX_S)
        load.loop.close_all()
        broker.settled()
        yield broker


def _busy_s(world: World) -> float:
    broker = world.machines[0].broker
    assert broker is not None
    return broker.loop.busy_s
