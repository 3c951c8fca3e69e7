"""Cases of the check: scenarios, and figures that are ratios within one run.

A slow or busy machine changes both parts of a ratio, so the ratio still means something there.
Other figures are only shown.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flowguard.config import FlowSettings
from simulations.calibration.costs import Costs, with_costs
from simulations.calibration.process import StoreKind
from simulations.calibration.runs import START_S, CheckRun, count_of, p99_of, unevenness_of
from simulations.scenario import Fault, PopulationPlan, PublishPlan, RetryPlan, Scenario

STORM_MAX_S: Final = 120.0
ARRIVALS_PER_S: Final = 10_000
"""Arrivals as fast as one process can make them, with some reserve."""
OVERLOAD: Final = 2.0
"""Offered load of a flood, as a multiple of the broker's capacity."""
WARM_S: Final = 1.0
"""Time of a flood before it is measured."""
PUBLISHERS: Final = 100
OUTSTANDING: Final = 20
ENDLESS_CLIENTS: Final = 5
ENDLESS_OUTSTANDING: Final = 100
WIDE_SUBSCRIBERS: Final = 500
POLITE_CLIENTS: Final = 20
POLITE_PER_S: Final = 25.0
ENDLESS_S, CALM_S = 3.0, 4.0
"""Start of the publishers, and of their measurement without a crowd."""
STOP_S: Final = 3.0
"""Time for which the store does not answer."""
CONNECTED: Final = "99 % connected, beside by alone"
WORK: Final = "work of endless publishers, beside by alone"
POLITE: Final = "p99 of polite publishers, beside by alone"
CONNECTED_S: Final = "99 % connected beside, s"
WORK_PER_S: Final = "acknowledged beside, 1/s"
POLITE_S: Final = "p99 of polite publishers beside, s"

Values = dict[str, float]
"""Figures by name."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    scenarios: tuple[Scenario, ...]
    """Each runs on a broker of its own, one after the other."""
    least_s: float
    """Least duration of each scenario, which then runs until each client is connected, seconds."""
    values: Callable[[Sequence[CheckRun]], Values]
    """The figures of a run of all scenarios."""
    tolerances: Mapping[str, float]
    """Largest deviation of the judged figures, as a share of the real value."""


def cases(
    store: StoreKind, costs: Costs, clients: int, seed: int, measured_s: float
) -> Iterator[Case]:
    yield storms(store, clients, seed)
    yield floods(costs, seed, measured_s)
    yield from crowds(store, clients, seed, measured_s)


def _crowd(clients: int, start_s: float) -> PopulationPlan:
    return PopulationPlan(
        clients=clients,
        start_s=start_s,
        start_over_s=clients / ARRIVALS_PER_S,
        retry=RetryPlan(first_s=0.2, max_s=2.0),
    )


# --- storms ------------------------------------------------------------------------------------


def storms(store: StoreKind, clients: int, seed: int) -> Case:
    """A crowd with the gate wide open, and with one CONNECT in process, so that most are rejected.

    With a store in memory no CONNECT waits, and both gates would be equally wide."""
    opened = Scenario(
        seed=seed,
        duration_s=STORM_MAX_S,
        populations={"storm": _crowd(clients, 0.0)},
    )
    flow = FlowSettings(connects_in_process_max=1, connect_buffer_max=clients // 10)
    narrow = opened.model_copy(update={"flow": flow})
    scenarios = (opened,) if store == "memory" else (opened, narrow)
    ratio = "99 % connected, one at a time by all at once"

    def values(runs: Sequence[CheckRun]) -> Values:
        times_s = [run.connected("storm", clients) for run in runs]
        found = {ratio: times_s[-1] / times_s[0]} if len(runs) > 1 else {}
        for name, run, time_s in zip(("all at once", "one at a time"), runs, times_s, strict=False):
            found |= {f"{name}: 99 % connected, s": time_s, f"{name}: CPU, s": run.cpu_s}
        return found | {"rejected": float(runs[-1].rejected)}

    return Case(f"storm of {clients:,}", scenarios, 0.0, values, {ratio: 0.15})


# --- floods ------------------------------------------------------------------------------------


def floods(costs: Costs, seed: int, measured_s: float) -> Case:
    """All clients publish, each to a subscriber of its own: as fast as they can, then at about
    twice that rate. Windows are full from the first moment on: what a ramp has torn apart stays so
    in the simulator, and does not where sockets are slow."""
    node = with_costs(Scenario(), costs).node
    message_s = node.publish_s + node.delivery_s + (node.read_s + node.send_s) / OUTSTANDING
    closed = PublishPlan(outstanding=OUTSTANDING, to="subscribers", spread="one")
    rate_per_s = OVERLOAD / message_s / PUBLISHERS
    opened = closed.model_copy(update={"rate_per_s": rate_per_s, "collected": OUTSTANDING})
    end_s = START_S + WARM_S + measured_s
    subscribers = PopulationPlan(clients=PUBLISHERS, start_over_s=0.1, subscribes=True)
    scenarios = tuple(
        Scenario(
            seed=seed,
            duration_s=end_s,
            populations={
                "subscribers": subscribers,
                "publishers": PopulationPlan(
                    clients=PUBLISHERS,
                    start_s=START_S,
                    start_over_s=0.0,
                    durable=False,
                    publish=publish,
                ),
            },
        )
        for publish in (closed, opened)
    )
    work = "acknowledged, open by closed loop"
    late = "{} loop: p99 of 0.1 s by its mean"

    def values(runs: Sequence[CheckRun]) -> Values:
        measured = START_S + WARM_S, end_s
        first, second = (run.between("publishers", *measured) for run in runs)
        return {
            work: count_of(second) / (count_of(first) or 1),
            late.format("closed"): unevenness_of(first),
            late.format("open"): unevenness_of(second),
            "closed loop: acknowledged, 1/s": count_of(first) / measured_s,
            "closed loop: p99, s": p99_of(first),
            "open loop: p99, s": p99_of(second),
            "closed loop: CPU, s": runs[0].cpu_s,
        }

    tolerances = {work: 0.15, late.format("closed"): 0.25, late.format("open"): 0.15}
    return Case("flood of 100", scenarios, end_s, values, tolerances)


# --- crowds ------------------------------------------------------------------------------------


def crowds(store: StoreKind, clients: int, seed: int, measured_s: float) -> Iterator[Case]:
    """A crowd beside publishers without end, beside a wide one, and while the store stops."""
    arguments = clients, seed, measured_s
    yield _beside(f"a crowd beside {ENDLESS_CLIENTS} endless publishers", *arguments)
    yield _beside(f"a crowd beside one publisher to {WIDE_SUBSCRIBERS}", *arguments, is_wide=True)
    if store != "memory":  # The loop commits itself, and would stop.
        yield _beside(f"a crowd while the store stops for {STOP_S:g} s", *arguments, stops=True)


def _beside(
    name: str,
    clients: int,
    seed: int,
    measured_s: float,
    *,
    is_wide: bool = False,
    stops: bool = False,
) -> Case:
    """The crowd alone, the publishers alone, and both together, on one broker."""
    seconds = 2.0 * STOP_S if stops else measured_s
    crowd_s = CALM_S + seconds
    endless = PublishPlan(
        outstanding=OUTSTANDING if is_wide else ENDLESS_OUTSTANDING,
        to="receivers",
        spread="all" if is_wide else "one",
    )
    polite = PublishPlan(rate_per_s=POLITE_PER_S, to="polite receivers", spread="one")
    receivers = PopulationPlan(
        clients=WIDE_SUBSCRIBERS if is_wide else ENDLESS_CLIENTS,
        start_over_s=0.1,
        subscribes=True,
    )
    publishers = PopulationPlan(start_s=ENDLESS_S, start_over_s=0.0, durable=False)
    scenario = Scenario(
        seed=seed,
        duration_s=crowd_s + seconds + STORM_MAX_S,
        populations={
            "receivers": receivers,
            "polite receivers": receivers.model_copy(update={"clients": POLITE_CLIENTS}),
            "alone": _crowd(clients, START_S),
            "endless": publishers.model_copy(
                update={"clients": 1 if is_wide else ENDLESS_CLIENTS, "publish": endless}
            ),
            "polite": publishers.model_copy(update={"clients": POLITE_CLIENTS, "publish": polite}),
            "crowd": _crowd(clients, crowd_s),
        },
        faults=(Fault(kind="store_stop", at_s=crowd_s, until_s=crowd_s + STOP_S),) if stops else (),
    )

    def values(runs: Sequence[CheckRun]) -> Values:
        (run,) = runs
        alone_s, beside_s = run.connected("alone", clients), run.connected("crowd", clients)
        calm, crowded = (CALM_S, crowd_s), (crowd_s, crowd_s + seconds)
        calm_s = p99_of(run.between("polite", *calm))
        polite_s = p99_of(run.between("polite", *crowded))
        work = count_of(run.between("endless", *crowded))
        return {
            CONNECTED: beside_s / (STOP_S if stops else alone_s),
            WORK: work / (count_of(run.between("endless", *calm)) or 1),
            POLITE: polite_s / (STOP_S if stops else calm_s),
            "99 % connected alone, s": alone_s,
            CONNECTED_S: beside_s,
            "acknowledged alone, 1/s": count_of(run.between("endless", *calm)) / seconds,
            WORK_PER_S: work / seconds,
            "p99 of polite publishers alone, s": calm_s,
            POLITE_S: polite_s,
            "CPU, s": run.cpu_s,
        }

    return Case(
        name, (scenario,), crowd_s + seconds, values, {CONNECTED: 0.25, WORK: 0.25, POLITE: 0.25}
    )
