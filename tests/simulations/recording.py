"""A simulated run, written as a broker would have recorded it, so that the truth is known."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowguard.telemetry.recording import Recording
from flowguard.telemetry.rows import Growth
from flowguard.telemetry.schema import (
    ATTEMPTS,
    CONNECTIONS,
    GOODPUT,
    LATENCIES,
    RUN,
    SAMPLES,
    AttemptRow,
    ConnectionRow,
    EndRow,
    GoodputRow,
    LatencyRow,
    RunRow,
)
from simulations.crowd.connection import CONNECTED, Attempt
from simulations.results.samples import Samples
from simulations.scenario import Scenario
from simulations.world import World

RUN_ID = "live-20260101T000000Z-abcdef"
CONNECT_BYTES = 40
STEP_S = 0.1


def _described(scenario: Scenario, source: str) -> RunRow:
    known: dict[str, Any] = dict.fromkeys(RunRow._fields)
    limits = scenario.flow.model_dump(exclude_defaults=True)
    return RunRow(
        **known
        | {
            "schema_version": 1,
            "source": source,
            "flowguard_version": "0",
            "scenario": "live",
            "policy": "flowguard",
            "nodes_count": 1,
            "parameters": [(f"flow.{key}", str(value)) for key, value in limits.items()],
            "limits": [],
            "command": "",
        }
    )


def _attempt(attempt: Attempt, names: list[str]) -> AttemptRow:
    client = names.index(attempt.population) * 1_000_000 + attempt.client
    outcome = attempt.outcome.name.lower().replace("timed_out", "closed")
    return AttemptRow("all", client, None, 0, attempt.started_s, attempt.ended_s, outcome)


def _looks(world: World, names: list[str], t_s: float) -> Iterator[ConnectionRow]:
    """All connected clients, as if each had been next."""
    for population in world.populations:
        plan, publishers = population.plan, population.publishers
        for connection in population.connections:
            if connection is None or connection.state != CONNECTED:
                continue
            sent = publishers.acknowledged_counts[connection.client] if publishers else 0
            inbound = connection.inbound
            yield ConnectionRow(
                client=names.index(population.name) * 1_000_000 + connection.client,
                node=0,
                t_s=t_s,
                age_s=t_s - connection.started_s,
                keep_alive_s=plan.keep_alive_s,
                is_durable=plan.durable,
                subscriptions_count=int(plan.subscribes),
                received_bytes=CONNECT_BYTES + 80 * sent,
                in_process_count=0 if inbound is None else inbound.window.in_process,
                is_paused=False,
            )


def record(scenario: Scenario, folder: Path, *, source: str = "broker", ends: bool = True) -> Path:
    """Simulate, and return the directory of the run."""
    attempts: list[Attempt] = []
    world = World(scenario, "flowguard", on_attempt=attempts.append)
    names = [population.name for population in world.populations]
    recording = Recording(folder / RUN_ID, RUN_ID)
    recording.add(RUN, _described(scenario, source))
    broker = world.machines[0].broker
    assert broker is not None
    samples, growth = Samples(world.machines[0]), Growth()
    histograms = {
        "acknowledgement": broker.packets.acknowledgements,
        "commit": broker.journal.written.latency,
    }
    told = {kind: histogram.counts.copy() for kind, histogram in histograms.items()}
    payload_bytes = 64
    for number in range(1, 1 + round(scenario.duration_s / STEP_S)):
        t_s = number * STEP_S
        world.run(t_s)
        row = samples.row(t_s)
        written = broker.journal.written
        counts = {
            "commits_count": written.commits_count,
            "stored_count": written.ops_count,
            "committing_s": written.latency.total,
        }
        grown = growth.since(counts)
        size_bytes = payload_bytes * row.published_count
        recording.add(SAMPLES, row._replace(**grown, payload_bytes=size_bytes, running_ratio=1.0))
        connected = sum(population.connected_count for population in world.populations)
        recording.add(
            GOODPUT, GoodputRow("all", t_s, None, connected, None, 0, 0, None, None, 0, None, 0)
        )
        if number % 10 == 0:
            for kind, histogram in histograms.items():
                for bound_s, count in histogram.grown(told[kind]):
                    recording.add(LATENCIES, LatencyRow("all", kind, t_s, bound_s, count))
            recording.extend(CONNECTIONS, _looks(world, names, t_s))
    attempts.sort(key=lambda attempt: attempt.ended_s)
    recording.extend(ATTEMPTS, [_attempt(attempt, names) for attempt in attempts])
    if ends:
        recording.finish(EndRow(scenario.duration_s, "stopped", None, 0))
    else:
        recording.rotate()
    return folder / RUN_ID
