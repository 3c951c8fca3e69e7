"""A scenario that is fitted to a run has the clients, messages and costs that made the run."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flowguard.cli import app
from flowguard.errors import ConfigError
from simulations.fitting.costs import least_squares
from simulations.fitting.fit import Fit, fit
from simulations.fitting.groups import retries_of
from simulations.fitting.measured import of_recording, simulated
from simulations.fitting.recorded import RecordedRun, read_run
from simulations.fitting.writing import scenario_toml
from simulations.proportions import among_others
from simulations.scenario import NodePlan, PopulationPlan, PublishPlan, Scenario, StorePlan
from simulations.scenario_files.loading import load
from tests.simulations.recording import RUN_ID, record

NODE, STORE = among_others(NodePlan(), StorePlan(commit_s=0.002))


def pairs(publish: PublishPlan, clients: int = 20) -> Scenario:
    subscribers = PopulationPlan(clients=clients, subscribes=True, durable=publish.stored)
    publishers = PopulationPlan(clients=clients, start_s=1.0, durable=False, publish=publish)
    return Scenario(
        duration_s=12.0,
        node=NODE,
        store=STORE,
        flow={"window_max": 50},
        populations={"subscribers": subscribers, "publishers": publishers},
    )


def fitted(scenario: Scenario, folder: Path) -> Fit:
    return fit(read_run(record(scenario, folder)))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run of pairs."""
    publish = PublishPlan(rate_per_s=10.0, to="subscribers", spread="one", v5=False)
    return record(pairs(publish), tmp_path_factory.mktemp("fitting"))


def test_pairs_are_found_with_their_clients_rates_and_limits(one: Path) -> None:
    scenario = fit(read_run(one)).scenario
    assert set(scenario.populations) == {"publishers-clean", "subscribers"}
    publishers, subscribers = (scenario.populations[name] for name in sorted(scenario.populations))
    assert (publishers.clients, publishers.durable, publishers.subscribes) == (20, False, False)
    assert (subscribers.clients, subscribers.durable, subscribers.subscribes) == (20, True, True)
    publish = publishers.publish
    assert publish is not None
    assert publish.trace is not None
    assert (publish.to, publish.spread, publish.stored) == ("subscribers", "one", True)
    assert publish.payload_bytes == 64
    assert not publish.even
    assert scenario.flow.window_max == 50


def test_the_simulated_run_is_like_the_recorded_one(one: Path) -> None:
    run = read_run(one)
    recorded, model = of_recording(run), simulated(fit(run).scenario)
    seconds = range(4, 10)
    for share in (0.5, 0.99):
        latency_s = recorded.latency_s(share, seconds)
        assert latency_s is not None
        assert model.latency_s(share, seconds) == pytest.approx(latency_s, rel=0.2)
    rate_per_s = recorded.goodput_per_s(seconds)
    assert model.goodput_per_s(seconds) == pytest.approx(rate_per_s, rel=0.1)
    assert model.connected_99_s == pytest.approx(recorded.connected_99_s, rel=0.1)
    assert model.busy_s == pytest.approx(recorded.busy_s, rel=0.2)


def test_the_command_writes_a_scenario_that_can_be_checked(one: Path, tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    written = CliRunner().invoke(app, ["scenario", "from", str(one.parent), "-o", str(file)])
    assert written.exit_code == 0, written.output
    assert "network is not in the recording" in written.output
    text = file.read_text()
    assert RUN_ID in text.splitlines()[0]
    assert "network is not in the recording" in text.replace("\n# ", " ")
    assert load(str(file)).scenario.title.endswith(RUN_ID)
    checked = CliRunner().invoke(app, ["scenario", "check", str(one), str(file)])
    assert checked.exit_code == 0, checked.output
    for figure in ("99 % connected", "acknowledged", "p50", "p99"):
        assert figure in checked.output
    file.write_text(re.sub(r"(?m)^duration_s = .*", "duration_s = 3.0", text))
    short = CliRunner().invoke(app, ["scenario", "check", str(one), str(file)])
    assert short.exit_code == 2
    assert "the scenario ends after 3 s" in short.output
    faster = text.replace("commit_times", "# commit_times").replace("commit_s", "# commit_s")
    file.write_text(faster.replace("[store]", "[store]\ncommit_s = 0.05"))
    assert CliRunner().invoke(app, ["scenario", "check", str(one), str(file)]).exit_code == 1


@pytest.mark.parametrize(
    ("publish", "expected"),
    [
        (PublishPlan(rate_per_s=5.0, to="subscribers", spread="all"), {"spread": "all"}),
        (
            PublishPlan(rate_per_s=5.0, to="subscribers", spread="one", stored=False),
            {"stored": False},
        ),
        (PublishPlan(rate_per_s=30.0, to="subscribers", spread="one", even=True), {"even": True}),
        (PublishPlan(outstanding=100, to="subscribers", spread="one", v5=False), {}),
    ],
    ids=["to all", "not stored", "even", "closed loop"],
)
def test_what_publishers_do_is_found(
    publish: PublishPlan, expected: Mapping[str, object], tmp_path: Path
) -> None:
    scenario = pairs(publish, clients=4).model_copy(update={"duration_s": 5.0})
    table = fitted(scenario, tmp_path).table
    found = table["populations"]["publishers-clean"]["publish"]
    assert found | expected == found
    assert (table["node"]["queue_s"] > 0.0) == (publish.spread == "all")
    assert ("trace" in found) == (publish.rate_per_s is not None)
    assert (found["outstanding"] <= 100) == (publish.rate_per_s is None)


def test_a_crowd_that_is_rejected_has_its_first_arrivals_and_its_retries(tmp_path: Path) -> None:
    """Each client counts once, however often it tries."""
    crowd = PopulationPlan(clients=300, start_over_s=0.2, timeout_s=2.0)
    limits = {"connects_in_process_max": 1, "connect_buffer_max": 5}
    scenario = Scenario(
        duration_s=20.0, node=NodePlan(connect_s=0.01), flow=limits, populations={"crowd": crowd}
    )
    table = fitted(scenario, tmp_path).table
    (found,) = table["populations"].values()
    assert found["clients"] == 300
    assert found["retry"]["kind"] == "backoff"
    assert found["retry"]["first_s"] == pytest.approx(1.0, rel=0.2)
    assert sum(count for _, count in found["arrivals"]["points"]) == 300
    assert found["arrivals"]["points"][-1][0] < 1.5
    assert table["flow"] == limits


def run_of(attempts: list[tuple[int, float, float, str]]) -> RecordedRun:
    names = ("client", "started_s", "ended_s", "outcome")
    columns = dict(zip(names, map(list, zip(*attempts, strict=True)), strict=True))
    return RecordedRun("r", {}, {"attempts": columns}, 0.0, 10.0)


def test_clients_that_wait_equally_long_and_time_out_are_found() -> None:
    attempts = [
        (client, 3.0 * number, 3.0 * number + 2.0, "closed")
        for client in range(10)
        for number in range(3)
    ]
    found = retries_of(run_of(attempts), [])
    assert found == {"timeout_s": 2.0, "retry": {"kind": "fixed", "first_s": 1.0}}


def test_clients_that_never_try_again_are_found() -> None:
    attempts = [(client, 0.0, 0.1, "refused") for client in range(10)]
    notes: list[str] = []
    assert retries_of(run_of(attempts), notes) == {"retry": {"kind": "none"}}
    assert any("timeout" in note for note in notes)


def test_costs_that_always_come_together_are_divided_as_usual() -> None:
    together = [(float(n), float(n)) for n in range(1, 20)]
    first, second = least_squares(together, [n * 3e-4 for n, _ in together], (2.0, 1.0))
    assert first == pytest.approx(2e-4, rel=0.01)
    assert second == pytest.approx(1e-4, rel=0.01)


def test_costs_that_can_be_told_apart_are_not() -> None:
    rows = [(float(n % 5), float(n % 7)) for n in range(60)]
    taken = [1e-4 * a + 5e-4 * b for a, b in rows]
    first, second = least_squares(rows, taken, (2.0, 1.0))
    assert first == pytest.approx(1e-4, rel=0.1)
    assert second == pytest.approx(5e-4, rel=0.1)


def test_a_simulation_and_an_unfinished_run_are_rejected(tmp_path: Path) -> None:
    scenario = Scenario(duration_s=1.0, populations={"a": PopulationPlan(clients=1)})
    with pytest.raises(ConfigError, match="is a simulation"):
        read_run(record(scenario, tmp_path / "a", source="simulation"))
    with pytest.raises(ConfigError, match="no end record"):
        read_run(record(scenario, tmp_path / "b", ends=False))
    with pytest.raises(ConfigError, match="there are: none"):
        read_run(tmp_path)
    told = CliRunner().invoke(app, ["scenario", "from", str(tmp_path), "-o", "x.toml"])
    assert told.exit_code == 2


@pytest.mark.parametrize("table", ["run", "end", "samples"])
def test_a_damaged_file_is_named(tmp_path: Path, table: str) -> None:
    scenario = Scenario(duration_s=1.0, populations={"a": PopulationPlan(clients=1)})
    folder = record(scenario, tmp_path)
    (part,) = folder.rglob(f"{table}-*.parquet")
    part.write_bytes(part.read_bytes()[:-8])
    with pytest.raises(ConfigError, match=f"{part}: cannot be read"):
        read_run(folder)


def test_tables_are_written_as_toml() -> None:
    table = {"a": 1, "b": {"c": 1e-05, "d e": {"f": [[1.0, 2]]}}, "g": [{"h": True}, {"h": False}]}
    assert tomllib.loads(scenario_toml(table, ["words " * 40])) == table
