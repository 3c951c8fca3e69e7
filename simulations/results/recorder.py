"""Recorder: a world's run as the tables of docs/reference/parquet-schema.md.

It looks on ten times a virtual second, between events, and changes nothing: a recorded run is
the same, event for event, as one that is not. Rows of a table come in the order of their time;
so rows of events that a busy process does ahead of the engine's clock wait here until that time
has come.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, final

from flowguard import __version__
from flowguard.flow.load.histogram import Histogram
from flowguard.telemetry.recording import BATCH_ROWS, Columns, Recording
from flowguard.telemetry.rows import Growth
from flowguard.telemetry.schema import (
    ATTEMPTS,
    CLIENTS,
    DECISIONS,
    GOODPUT,
    LATENCIES,
    RUN,
    SAMPLES,
    VERSION,
    VIOLATIONS,
    DecisionRow,
    EndRow,
    GoodputRow,
    LatencyRow,
    RunRow,
    ViolationRow,
)
from simulations.crowd.clients import NEVER_S, Population
from simulations.crowd.connection import Attempt, Outcome
from simulations.results.samples import Samples

if TYPE_CHECKING:
    from simulations.world import World

SAMPLES_PER_S: Final = 10
OUTCOMES: Final = tuple(outcome.name.lower() for outcome in Outcome)


@dataclass(frozen=True, slots=True)
class RunDescription:
    """The part of table `run` that the world does not know."""

    scenario: str
    command: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Differences from the scenario's file, by dotted key."""
    trigger_at_s: float | None = None
    trigger_until_s: float | None = None
    load_ratio: float | None = None


@final
class WorldRecorder:
    """Return the recorder of a world that has not begun. Call `finish` at the end of its run."""

    def __init__(self, world: "World", recording: Recording, description: RunDescription) -> None:
        assert not world.engine.now_s
        self._world = world
        self._recording = recording
        self._samples = [Samples(machine) for machine in world.machines]
        self._crowds = [_Crowd(p) for p in sorted(world.populations, key=lambda p: p.name)]
        self._attempts: list[Attempt] = []
        """Attempts that have ended, but not necessarily by now."""
        self._decisions: list[DecisionRow] = []
        """Decisions made, but not necessarily by now."""
        self._sampled_s = 0.0
        recording.add(RUN, _run_row(world, description))
        self._listen()
        self._watch(1)

    def _listen(self) -> None:
        keep, tell = self._attempts.append, self._world.on_attempt
        if tell is None:
            self._world.on_attempt = keep
            return

        def hear(attempt: Attempt) -> None:
            keep(attempt)
            tell(attempt)

        self._world.on_attempt = hear

    def _watch(self, number: int) -> None:
        self._world.engine.watch(number / SAMPLES_PER_S, self._on_time, number)

    def _on_time(self, number: int) -> None:
        now_s = self._world.engine.now_s
        self._sample(now_s)
        if number % SAMPLES_PER_S == 0:
            self._tell_latencies(now_s)
        self._watch(number + 1)

    def _sample(self, now_s: float) -> None:
        recording, decisions = self._recording, self._decisions
        self._sampled_s = now_s
        recording.extend(SAMPLES, [samples.row(now_s) for samples in self._samples])
        recording.extend(GOODPUT, [crowd.row(now_s) for crowd in self._crowds])
        for samples in self._samples:
            decisions += samples.decisions(now_s)
        self._tell_decisions(now_s)
        if len(self._attempts) >= BATCH_ROWS:
            self._tell_attempts(now_s)

    def _tell_attempts(self, until_s: float) -> None:
        attempts = self._attempts
        attempts.sort(key=_ended)
        count = bisect_right(attempts, until_s, key=_ended_s)
        if count:
            columns = zip(*attempts[:count], strict=True)
            by_name: dict[str, Any] = dict(zip(Attempt._fields, columns, strict=True))
            by_name["outcome"] = [OUTCOMES[outcome] for outcome in by_name["outcome"]]
            self._recording.add_columns(ATTEMPTS, by_name)
            del attempts[:count]

    def _tell_decisions(self, until_s: float) -> None:
        decisions = self._decisions
        if decisions:
            decisions.sort(key=_decided)
            count = bisect_right(decisions, until_s, key=_decided_s)
            self._recording.extend(DECISIONS, decisions[:count])
            del decisions[:count]

    def _tell_latencies(self, t_s: float) -> None:
        for crowd in self._crowds:
            self._recording.extend(LATENCIES, crowd.latencies(t_s))

    def finish(self, ended_by: str) -> None:
        """Write the remaining rows and close all files; `ended_by` as table `end` has it."""
        world, recording = self._world, self._recording
        now_s = world.engine.now_s
        if now_s > self._sampled_s:
            self._sample(now_s)
        self._tell_latencies(float(ceil(now_s)))
        self._tell_attempts(inf)
        self._tell_decisions(inf)
        for crowd in self._crowds:
            recording.add_columns(CLIENTS, crowd.clients())
        violation = world.violation
        if violation is not None:
            row = ViolationRow(
                node=violation.node,
                t_s=violation.t_s,
                invariant=violation.invariant,
                detail=violation.detail,
            )
            recording.add(VIOLATIONS, row)
        deaths_count = sum(machine.deaths_count for machine in world.machines)
        ended_s = now_s if world.ended_s is None else world.ended_s
        recording.finish(EndRow(ended_s, ended_by, world.engine.events_count, deaths_count))


@final
class _Crowd:
    """One population."""

    def __init__(self, population: Population) -> None:
        self._population = population
        self._growth = Growth[str]()
        self._latencies: list[tuple[str, Histogram, list[int]]] = []
        """Latencies by kind, in the order of rows: all observations, and those already written."""
        publishers, topic = population.publishers, population.topic
        if publishers is not None:
            self._follow("acknowledgement", publishers.acknowledgements)
        self._follow("connect", population.connects)
        if topic is not None:
            self._follow("delivery", topic.deliveries)

    def _follow(self, kind: str, latencies: Histogram) -> None:
        self._latencies.append((kind, latencies, latencies.counts.copy()))

    def row(self, t_s: float) -> GoodputRow:
        """A row of table `goodput`."""
        population = self._population
        return GoodputRow(
            population=population.name,
            t_s=t_s,
            clients_count=population.arrived_count,
            connected_count=population.connected_count,
            first_connected_count=population.first_connected_count,
            **self._growth.since(self._counts()),
        )

    def _counts(self) -> dict[str, int]:
        population = self._population
        publishers, topic = population.publishers, population.topic
        declined_count = sum(population.outcomes) - population.outcomes[Outcome.CONNECTED]
        return {
            "attempts_count": population.attempts_count,
            "declined_count": declined_count,
            "wasted_count": population.wasted_count,
            "due_count": 0 if publishers is None else publishers.due_count,
            "acknowledged_count": 0 if publishers is None else publishers.acknowledged_count,
            "in_time_count": 0 if publishers is None else publishers.in_time_count,
            "delivered_count": 0 if topic is None else topic.delivered_count,
        }

    def latencies(self, t_s: float) -> Iterator[LatencyRow]:
        """Rows of latencies observed since the last call, in the second that ends at `t_s`."""
        name = self._population.name
        for kind, latencies, told in self._latencies:
            for bound_s, count in latencies.grown(told):
                yield LatencyRow(name, kind, t_s, bound_s, count)

    def clients(self) -> Columns:
        """The columns of table `clients`, a row for each client."""
        population = self._population
        publishers = population.publishers
        none = [0] * population.clients
        first_s = population.first_connected_s
        return {
            "population": [population.name] * population.clients,
            "client": range(population.clients),
            "attempts_count": population.attempts,
            "first_connected_s": [None if s == NEVER_S else s for s in first_s],
            "acknowledged_count": none if publishers is None else publishers.acknowledged_counts,
            "in_time_count": none if publishers is None else publishers.in_time_counts,
            "cost_units": none if publishers is None else publishers.cost_units,
        }


def _run_row(world: "World", description: RunDescription) -> RunRow:
    scenario = world.scenario
    plans = scenario.populations.values()
    limits = [
        (key, "" if value is None else str(value))
        for key, value in world.settings.model_dump().items()
    ]
    return RunRow(
        schema_version=VERSION,
        source="simulation",
        flowguard_version=__version__,
        scenario=description.scenario,
        policy=world.settings.policy,
        seed=scenario.seed,
        nodes_count=scenario.nodes,
        clients_count=scenario.clients,
        duration_s=scenario.duration_s,
        started_unix_s=None,
        trigger_at_s=description.trigger_at_s,
        trigger_until_s=description.trigger_until_s,
        load_ratio=description.load_ratio,
        connect_deadline_s=_common({plan.timeout_s for plan in plans}),
        acknowledge_deadline_s=_common(
            {plan.publish.deadline_s for plan in plans if plan.publish is not None}
        ),
        parameters=list(description.parameters.items()),
        limits=limits,
        command=description.command,
    )


def _common(values: set[float]) -> float | None:
    """Return the only value, or None if the values differ or there is none."""
    return values.pop() if len(values) == 1 else None


_decided: Final = attrgetter("t_s", "node", "kind")
_decided_s: Final = attrgetter("t_s")
_ended: Final = attrgetter("ended_s", "population", "client", "number")
_ended_s: Final = attrgetter("ended_s")
