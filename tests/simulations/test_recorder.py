import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flowguard.config import PolicyName
from flowguard.flow.gate.connect_gate import ConnectGate
from flowguard.telemetry.recording import Recording
from flowguard.telemetry.schema import TABLES
from simulations.crowd.connection import Attempt, Outcome
from simulations.invariants import Invariants
from simulations.results.recorder import RunDescription, WorldRecorder
from simulations.scenario import (
    Fault,
    NetworkPlan,
    NodePlan,
    PopulationPlan,
    PublishPlan,
    RetryPlan,
    Scenario,
)
from simulations.world import World

Rows = list[dict[str, Any]]

SCENARIO = Scenario(
    nodes=3,
    duration_s=6.0,
    node=NodePlan(connect_s=0.01, listen_backlog=64, noise=0.1),
    network=NetworkPlan(replicas=2),
    populations={
        "readers": PopulationPlan(clients=30, node="round-robin", subscribes=True),
        "crowd": PopulationPlan(
            clients=300,
            start_s=1.0,
            timeout_s=1.0,
            node="random",
            retry=RetryPlan(max_s=2.0),
            publish=PublishPlan(rate_per_s=1.0, to="readers", spread="one"),
        ),
        "greedy": PopulationPlan(clients=9, publish=PublishPlan(outstanding=20)),
    },
    faults=(
        Fault(kind="node_down", node=1, at_s=2.05, until_s=4.03),
        Fault(kind="slow_cpu", node=2, at_s=2.5, until_s=3.5, factor=20.0),
    ),
)
DESCRIPTION = RunDescription("mixture", "run mixture", {"nodes": "3"}, 2.05, 4.03, 0.5)


def recorded(
    path: Path, scenario: Scenario = SCENARIO, policy: PolicyName = "flowguard"
) -> tuple[World, list[Attempt]]:
    """Its tables are in `path` then."""
    attempts: list[Attempt] = []
    world = World(scenario, policy, on_attempt=attempts.append, traced=True)
    recorder = WorldRecorder(world, Recording(path, "run-1"), DESCRIPTION)
    world.run()
    recorder.finish(world.ended_by)
    return world, attempts


def read(path: Path, name: str) -> Rows:
    """A table's rows, without `run_id`."""
    rows: Rows = []
    for file in sorted(path.glob(f"{name}-*.parquet")):
        rows += pq.read_table(file).to_pylist()
    assert all(row.pop("run_id") == "run-1" for row in rows)
    return rows


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, World, list[Attempt]]:
    path = tmp_path_factory.mktemp("mixture")
    return (path, *recorded(path))


Mixture = tuple[Path, World, list[Attempt]]


def test_a_recorded_run_is_the_same_event_for_event_as_one_that_is_not(mixture: Mixture) -> None:
    _, world, attempts = mixture
    unseen_attempts: list[Attempt] = []
    unseen = World(SCENARIO, "flowguard", on_attempt=unseen_attempts.append, traced=True)
    unseen.run()
    assert attempts == unseen_attempts
    assert world.engine.trace == unseen.engine.trace
    assert world.engine.events_count == unseen.engine.events_count
    assert [p.outcomes for p in world.populations] == [p.outcomes for p in unseen.populations]


def test_every_table_has_rows_that_are_told_apart_by_their_key_and_in_its_order(
    mixture: Mixture,
) -> None:
    path, _, _ = mixture
    for name, table in TABLES.items():
        rows = read(path, name)
        assert bool(rows) == (name not in ("violations", "connections", "reasons")), name
        keys = [tuple(row[column] for column in table.key[1:]) for row in rows]
        assert all(one <= other for one, other in pairwise(keys)), name
        if name not in ("run", "end"):
            assert len(set(keys)) == len(keys), name


def test_the_run_says_what_it_is_and_its_end_how_it_ended(mixture: Mixture) -> None:
    path, world, _ = mixture
    (run,) = read(path, "run")
    assert (run["scenario"], run["policy"], run["source"]) == ("mixture", "flowguard", "simulation")
    assert (run["seed"], run["nodes_count"], run["clients_count"]) == (1, 3, 339)
    assert run["connect_deadline_s"] is None  # The two populations differ.
    assert run["acknowledge_deadline_s"] == 3.0
    assert dict(run["parameters"]) == {"nodes": "3"}
    assert dict(run["limits"])["window_max"] == "100"
    assert read(path, "end") == [
        {
            "ended_s": 6.0,
            "ended_by": "duration",
            "events_count": world.engine.events_count,
            "deaths_count": 0,
        }
    ]


def test_every_node_is_sampled_ten_times_a_second_and_is_all_zeros_while_it_is_dead(
    mixture: Mixture,
) -> None:
    path, _, _ = mixture
    samples = read(path, "samples")
    assert [(s["t_s"], s["node"]) for s in samples] == [
        (number / 10, node) for number in range(1, 61) for node in range(3)
    ]
    dead = [s for s in samples if not s["is_alive"]]
    assert [(s["node"], s["t_s"]) for s in dead] == [(1, n / 10) for n in range(21, 41)]
    for sample in dead:
        numbers = {k: v for k, v in sample.items() if k not in ("node", "t_s", "is_alive", "rung")}
        assert not any(numbers.values())
    slow = [s for s in samples if s["node"] == 2 and 2.6 < s["t_s"] < 3.5]
    assert max(s["pressure_ratio"] for s in slow) > 1.0
    assert all(0.0 <= s["busy_s"] <= 0.1 + 1e-9 for s in samples if s["t_s"] != 4.1)


def test_the_sums_of_samples_are_what_the_machines_counted(mixture: Mixture) -> None:
    path, world, attempts = mixture
    samples = read(path, "samples")
    for machine in world.machines:
        own = [s for s in samples if s["node"] == machine.index]
        counters = machine.counters
        for name in ("accepted", "refused", "discarded", "closed", "published", "delivered"):
            assert sum(s[f"{name}_count"] for s in own) == getattr(counters, f"{name}_count")
    outcomes = Counter(attempt.outcome for attempt in attempts)
    wasted = sum(population.wasted_count for population in world.populations)
    accepted = sum(s["accepted_count"] for s in samples)
    assert 0 <= accepted - outcomes[Outcome.CONNECTED] <= wasted  # Who was gone got no CONNACK.
    assert sum(s["published_count"] for s in samples) >= sum(
        p.publishers.acknowledged_count for p in world.populations if p.publishers
    )


def test_attempts_clients_goodput_and_latencies_tell_the_same(mixture: Mixture) -> None:
    path, world, attempts = mixture
    rows = read(path, "attempts")
    heard = sorted(attempts, key=lambda attempt: (attempt.ended_s, *attempt[:3]))
    assert [tuple(row.values()) for row in rows] == [
        (*attempt[:-1], attempt.outcome.name.lower()) for attempt in heard
    ]
    goodput, clients, latencies = (read(path, n) for n in ("goodput", "clients", "latencies"))
    for population in world.populations:
        own = [row for row in goodput if row["population"] == population.name]
        listed = [row for row in clients if row["population"] == population.name]
        observed: Counter[str] = Counter()
        for row in latencies:
            if row["population"] == population.name:
                observed[row["kind"]] += row["count"]
        assert [row["client"] for row in listed] == list(range(population.clients))
        assert own[-1]["clients_count"] == population.clients
        assert own[-1]["connected_count"] == population.connected_count
        firsts = sum(row["first_connected_s"] is not None for row in listed)
        assert own[-1]["first_connected_count"] == firsts == observed["connect"]
        begun = sum(row["attempts_count"] for row in listed)
        assert sum(row["attempts_count"] for row in own) == begun
        acknowledged = sum(row["acknowledged_count"] for row in listed)
        assert sum(row["acknowledged_count"] for row in own) == acknowledged
        assert observed["acknowledgement"] == acknowledged
        assert sum(row["in_time_count"] for row in own) == sum(r["in_time_count"] for r in listed)
        assert sum(row["delivered_count"] for row in own) == observed["delivery"]
        assert sum(row["cost_units"] for row in listed) >= acknowledged


def test_decisions_of_a_node_are_a_chain_from_its_first_to_its_last_value(mixture: Mixture) -> None:
    path, world, _ = mixture
    decisions = read(path, "decisions")
    for machine in world.machines:
        assert machine.broker is not None
        gate, grant = machine.broker.guard.gate, machine.broker.guard.grant
        last = {"window": grant.window, "connect_limit": gate.limit, "rung": float(gate.rung)}
        for kind, value in last.items():
            own = [d for d in decisions if (d["node"], d["kind"]) == (machine.index, kind)]
            if machine.index == 1:
                own = [d for d in own if d["t_s"] > 4.03]  # Of its second life.
            assert all(one["after"] == other["before"] for one, other in pairwise(own))
            assert all(d["before"] != d["after"] and d["why"] for d in own)
            assert not own or own[-1]["after"] == value
    cuts = [d for d in decisions if d["kind"] == "window" and d["why"].startswith("cut to")]
    assert cuts
    assert all(d["cause"] in d["why"] and d["after"] < d["before"] for d in cuts)


def test_deliveries_to_a_node_that_is_cut_off_are_lost_at_who_acknowledged_them(
    tmp_path: Path,
) -> None:
    scenario = Scenario(
        nodes=2,
        duration_s=3.0,
        populations={
            "readers": PopulationPlan(clients=2, node="round-robin", subscribes=True),
            "writers": PopulationPlan(
                clients=2,
                node="round-robin",
                start_s=1.0,
                publish=PublishPlan(rate_per_s=5.0, to="readers"),
            ),
        },
        faults=(Fault(kind="link_cut", node=0, at_s=2.05),),
    )
    recorded(tmp_path, scenario)
    samples = read(tmp_path, "samples")
    lost = [s for s in samples if s["lost_count"]]
    assert lost
    assert {s["node"] for s in lost} == {0, 1}
    assert min(s["t_s"] for s in lost) > 2.05
    published = sum(s["published_count"] for s in samples)
    delivered = sum(s["delivered_count"] for s in samples)
    assert delivered + sum(s["lost_count"] for s in samples) == 2 * published


def test_a_run_that_ends_between_two_samples_is_sampled_to_its_end(tmp_path: Path) -> None:
    crowd = PopulationPlan(clients=20, start_over_s=0.33)
    scenario = Scenario(populations={"crowd": crowd}, ends_when_connected=True)
    world, _ = recorded(tmp_path, scenario)
    (end,) = read(tmp_path, "end")
    assert end["ended_by"] == "connected"
    assert end["ended_s"] == world.ended_s
    samples = read(tmp_path, "samples")
    assert samples[-1]["t_s"] == world.ended_s
    assert sum(s["accepted_count"] for s in samples) == 20
    assert {row["t_s"] for row in read(tmp_path, "latencies")} == {1.0}


TWO_POLICIES = """
import sys
from pathlib import Path

from tests.simulations.test_recorder import recorded

for policy in ("flowguard", "reject-at-limit"):
    recorded(Path(sys.argv[1]) / policy, policy=policy)
"""


@pytest.mark.slow
def test_the_same_seed_gives_the_same_files_byte_for_byte_and_two_policies_the_same_arrivals(
    tmp_path: Path,
) -> None:
    for hash_seed in ("0", "12345"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        command = [sys.executable, "-c", TWO_POLICIES, str(tmp_path / hash_seed)]
        subprocess.run(command, env=environment, check=True)
    files = [
        file.relative_to(tmp_path / "0") for file in sorted((tmp_path / "0").rglob("*.parquet"))
    ]
    # Nothing was violated, and no simulation writes `connections` or `reasons`.
    assert len(files) == 2 * (len(TABLES) - 3)
    for file in files:
        assert (tmp_path / "0" / file).read_bytes() == (tmp_path / "12345" / file).read_bytes()
    arrivals = []
    for policy in ("flowguard", "reject-at-limit"):
        rows = read(tmp_path / "0" / policy, "attempts")
        firsts = [row for row in rows if row["number"] == 0]
        arrivals.append(
            {(r["population"], r["client"]): (r["started_s"], r["node"]) for r in firsts}
        )
    both = arrivals[0].keys() & arrivals[1].keys()
    assert len(both) == SCENARIO.clients
    assert all(arrivals[0][client] == arrivals[1][client] for client in both)


def test_a_violation_is_written_and_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConnectGate, "may_accept", lambda self, now_s: False)
    world = World(SCENARIO, "flowguard")
    Invariants(world)
    recorder = WorldRecorder(world, Recording(tmp_path, "run-1"), DESCRIPTION)
    world.run()
    recorder.finish(world.ended_by)
    (row,) = read(tmp_path, "violations")
    (end,) = read(tmp_path, "end")
    assert row["invariant"] == "10 no refusal when idle"
    assert (end["ended_by"], end["ended_s"]) == ("violation", row["t_s"])
    assert read(tmp_path, "samples")[-1]["t_s"] <= row["t_s"]
