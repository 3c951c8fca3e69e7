"""The runs of a plan, and the order in which they begin."""

from pathlib import Path

import pytest

from flowguard.errors import ConfigError
from simulations.results.run import run as run_simulation
from simulations.scenario_files.loading import change, load
from spark_sweep.grid import load_grid
from spark_sweep.plan import SweepPlan, make_plan


def planned(folder: Path, text: str) -> SweepPlan:
    path = folder / "grid.toml"
    path.write_text(text)
    return make_plan(load_grid(path), path)


def scenario(folder: Path, name: str, text: str = "") -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_every_set_of_limits_meets_every_scenario_policy_and_seed(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        "policies = ['flowguard', 'static-10']\nseeds = [3, 4]\n"
        "[[scenarios]]\nname = 'flash_crowd'\nset = { clients = 50 }\ngrid.nodes = [1, 2]\n"
        "[limits]\nflow.window_max = [50, 80]\nflow.refusal_share = [0.2]\n",
    )
    assert (plan.limits_count, plan.scenarios_count) == (3, 2)
    assert len(plan.runs) == 3 * 2 * 2 * 2
    keys = {
        (
            run.policy,
            run.loaded.scenario.seed,
            run.loaded.scenario.nodes,
            run.loaded.changes.get("flow.window_max"),
            run.loaded.changes.get("flow.refusal_share"),
        )
        for run in plan.runs
    }
    assert len(keys) == len(plan.runs)
    assert {key[3:] for key in keys} == {(None, None), (50, 0.2), (80, 0.2)}


def test_a_limit_that_is_what_it_is_anyway_is_the_defaults(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        "scenarios = ['flash_crowd']\nseeds = 1\n[limits]\nflow.queue_objective_s = [0.025, 0.05]",
    )
    assert [run.loaded.changes for run in plan.runs] == [
        {"seed": 1},
        {"flow.queue_objective_s": 0.05, "seed": 1},
    ]


def test_a_limit_that_one_scenario_sets_is_no_default(tmp_path: Path) -> None:
    scenario(tmp_path, "mine.toml", "flow.queue_objective_s = 0.05")
    plan = planned(
        tmp_path,
        "scenarios = ['mine.toml', 'flash_crowd']\n[limits]\nflow.queue_objective_s = [0.025]",
    )
    assert plan.limits_count == 2


def test_long_runs_begin_before_short_ones(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        "seeds = 2\n[[scenarios]]\nname = 'flash_crowd'\ngrid.clients = [10, 1000, 100]\n",
    )
    assert [(run.loaded.scenario.clients, run.loaded.scenario.seed) for run in plan.runs] == [
        (1000, 1),
        (1000, 2),
        (100, 1),
        (100, 2),
        (10, 1),
        (10, 2),
    ]


def test_files_are_as_seen_from_the_grid_and_their_command_works_everywhere(
    tmp_path: Path,
) -> None:
    scenario(tmp_path, "mine.toml", "nodes = 2")
    scenario(tmp_path, "costs.toml", "[node]\nping_s = 3e-06")
    (run,) = planned(tmp_path, "scenarios = ['mine.toml']\ncosts = 'costs.toml'\nseeds = [5]").runs
    _, _, source, *words = run.command.split()
    changes = dict(change(word) for word in words if "=" in word) | {"seed": 5}
    assert source == str(tmp_path / "mine.toml")
    assert load(source, changes) == run.loaded


def test_what_would_be_the_same_run_runs_once(tmp_path: Path) -> None:
    assert len(planned(tmp_path, "scenarios = ['resume', 'resume']\nseeds = [1, 1]").runs) == 1


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    scenario(tmp_path, "a/mine.toml")
    scenario(tmp_path, "b/mine.toml")
    with pytest.raises(ConfigError, match="would have one description; rename"):
        planned(tmp_path, "scenarios = ['a/mine.toml', 'b/mine.toml']")


def test_the_grid_of_the_documentation_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operate" / "sweep.md").read_text()
    text, sample, *_ = (part.partition("```")[0] for part in page.split("```toml")[1:])
    scenario(tmp_path, "costs.toml", "[node]\nping_s = 3e-06")
    assert "makes 7 scenarios x 9 sets of limits x 6 seeds" in page
    plan = planned(tmp_path, text)
    assert (plan.scenarios_count, plan.limits_count, len(plan.runs)) == (7, 9, 7 * 9 * 6)
    drawn = planned(tmp_path, "scenarios = ['fan_out']\n" + sample)
    assert drawn.limits_count == 31
    assert drawn == planned(tmp_path, "scenarios = ['fan_out']\n" + sample)


def test_the_small_grid_of_the_documentation_has_a_limit_to_be_found(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operate" / "sweep.md").read_text()
    disk, grid = (
        page.partition(f"cat > {name} <<'END'\n")[2].partition("END\n")[0]
        for name in ("disk.toml", "grid.toml")
    )
    scenario(tmp_path, "disk.toml", disk)
    plan = planned(tmp_path, grid)
    assert (plan.limits_count, len(plan.runs)) == (4, 4 * 12)
    done = {
        run.loaded.changes.get("flow.queue_objective_s"): run_simulation(
            run.loaded.scenario, "flowguard"
        )
        for run in plan.runs
        if run.loaded.scenario.seed == 1 and "flow.store_objective_s" not in run.loaded.changes
    }
    assert done[0.17].acknowledged_count > 1.2 * done[None].acknowledged_count
    assert (done[0.17].acknowledged_p99_s or 1.0) < (done[None].acknowledged_p99_s or 0.0)


def test_whatever_changes_a_scenario_changes_its_digest(tmp_path: Path) -> None:
    digests = set()
    for text in ("", "nodes = 2", "node.connect_s = 0.002"):
        scenario(tmp_path, "mine.toml", text)
        digests |= {run.digest for run in planned(tmp_path, "scenarios = ['mine.toml']").runs}
    assert len(digests) == 3 * 3


def test_what_is_assumed_of_clients_is_said_once_for_all_scenarios(tmp_path: Path) -> None:
    scenario(tmp_path, "a.toml", "[populations.a]\nretry = { kind = 'none' }\n[populations.b]\n")
    scenario(
        tmp_path,
        "c.toml",
        "[populations.c]\ntimeout_s = 5\nretry = { kind = 'fixed', first_s = 0.5, obedient = 0.2 }",
    )
    assert planned(tmp_path, "scenarios = ['a.toml', 'c.toml']").assumptions == (
        "Simulated clients wait 5 to 10 s for CONNACK. After a failure they give up, or retry "
        "after 0.5 s each time (20% obey retry-after-ms), or retry after 1 s, doubled up to 60 s. "
        "No packet is lost, except by faults of a scenario."
    )
