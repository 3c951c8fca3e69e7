"""Costs of the real broker: lines, their file, the overlay, and one small measurement."""

import re
from pathlib import Path
from socket import create_connection

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from flowguard.errors import ConfigError
from simulations.calibration.check import Check, Comparison, Figure
from simulations.calibration.command import calibrate, comparison_table, costs_of
from simulations.calibration.costs import costs_toml, load_costs, with_costs
from simulations.calibration.estimates import Estimate, fit, least, median
from simulations.calibration.process import CalibrationError, broker_process
from simulations.scenario import NodePlan, Scenario, StorePlan

COSTS = {
    "node": {"connect_s": 4.2e-05, "connection_bytes": 2_500},
    "store": {"commit_s": 0.0, "immediate": True},
}


def test_a_line_through_points_on_a_line_is_that_line() -> None:
    assert fit([(1, 5.0), (2, 7.0), (10, 23.0)]) == pytest.approx((2.0, 3.0))


def test_what_lies_as_far_above_as_below_does_not_move_the_line() -> None:
    line = fit([(0, 1.0), (0, -1.0), (4, 9.0), (4, 7.0)])
    assert line == pytest.approx((2.0, 0.0))


def test_work_that_is_always_done_is_no_part_of_the_slope() -> None:
    points = [(10, 1.0), (20, 2.5), (40, 4.0)]
    moved = [(size, took + 100.0) for size, took in points]
    assert fit(moved).slope == pytest.approx(fit(points).slope)


def test_of_several_measurements_the_least_disturbed_counts() -> None:
    runs = [[(1, 5.0), (2, 9.0)], [(1, 3.0), (2, 90.0)], [(1, 4.0), (2, 10.0)]]
    assert least(runs) == [(1, 3.0), (2, 9.0)]
    assert median(runs) == [(1, 4.0), (2, 10.0)]


def test_a_measurement_that_covered_less_is_not_the_cheaper_one() -> None:
    assert least([[(10, 20.0)], [(5, 15.0)]]) == [(10, 20.0)]


def test_costs_come_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.toml"
    path.write_text(costs_toml(COSTS, ["of a machine", "that is not mine"]))
    assert path.read_text().startswith("# of a machine\n# that is not mine\n\n[node]\n")
    assert load_costs(path) == COSTS


def test_costs_overlay_a_scenario_and_leave_the_rest() -> None:
    scenario = Scenario(
        node=NodePlan(connect_s=1.0, publish_s=0.5), store=StorePlan(commit_s=2.0, op_s=3.0)
    )
    overlaid = with_costs(scenario, COSTS)
    assert overlaid.node == NodePlan(connect_s=4.2e-05, publish_s=0.5, connection_bytes=2_500)
    assert overlaid.store == StorePlan(commit_s=0.0, op_s=3.0, immediate=True)
    assert overlaid.network == scenario.network
    assert overlaid.populations == scenario.populations


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[node]\nconnect = 1.0", "node.connect: unknown key; did you mean connect_s"),
        ("[node]\nconnect_s = -1.0", "node.connect_s: -1.0 is not more than 0"),
        ("[store]\ncommit_s = 'slow'", "store.commit_s: 'slow' is no number"),
        ("[flow]\nwindow_max = 1", "flow: costs have the tables node, store, network"),
        ("node = 3", "node: 3 is no table"),
        ("[node", "is not valid TOML"),
    ],
)
def test_a_wrong_costs_file_is_refused_by_its_key(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "costs.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(str(path))) as refused:
        load_costs(path)
    assert why in str(refused.value)


def test_a_missing_costs_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_costs(tmp_path / "none.toml")


def test_only_what_is_judged_has_to_agree() -> None:
    assert Figure("goodput", 100.0, 119.0, is_judged=True).agrees
    assert not Figure("goodput", 100.0, 79.0, is_judged=True).agrees
    assert Figure("p99", 1.0, 2.0).agrees
    assert Figure("p99", 2.0, 1.0).deviation == pytest.approx(-0.5)


def test_a_busy_machine_is_no_witness() -> None:
    quiet = comparison_table(Comparison("storm", [], 0.01, 0.5))
    assert "too busy" not in str(quiet.caption)
    for waited_share, load_share in ((0.5, 0.5), (0.01, 0.99)):
        busy = comparison_table(Comparison("storm", [], waited_share, load_share))
        assert "too busy" in str(busy.caption)


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(calibrate)
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--store", "paper"), "there are rocks, memory, slow"),
        (("--out", "nowhere/costs.toml"), "there is no such directory"),
        (("--costs", "nowhere.toml", "--check"), "nowhere.toml: cannot be read"),
        (("--costs", "costs.toml"), "it needs --check"),
        (("--clients", "100000000"), "ulimit"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_starts(
    arguments: tuple[str, ...], why: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert why in result.stderr


def test_a_cost_that_must_be_positive_is_not_made_up() -> None:
    with pytest.raises(CalibrationError, match="publish_s"):
        costs_of({"node.publish_s": Estimate(0.0, -1e-6, 1e-6)}, "memory")


@pytest.mark.slow
def test_a_broker_that_dies_is_no_stack_trace() -> None:
    def speak_to_the_dead() -> None:
        with broker_process("memory", {}) as broker:
            broker.stop()
            create_connection(broker.address)

    with pytest.raises(CalibrationError, match="does not answer any more"):
        speak_to_the_dead()


@pytest.mark.slow
def test_a_real_broker_has_costs_that_a_scenario_takes(tmp_path: Path) -> None:
    path = tmp_path / "costs.toml"
    result = run("--out", str(path), "--clients", "200", "--repeats", "1")
    assert result.exit_code == 0, result.stderr
    assert "node.connect_s" in result.stdout
    costs = load_costs(path)
    overlaid = with_costs(Scenario(), costs)
    assert 0.0 < overlaid.node.connect_s != NodePlan().connect_s
    assert 0.0 < overlaid.node.publish_s != NodePlan().publish_s
    assert overlaid.node.process_bytes > 1024 * 1024
    assert costs["store"]["immediate"] is False


@pytest.mark.slow
def test_both_sides_of_a_check_have_the_same_figures() -> None:
    """Small, and with costs of no machine: what they are is not the question here."""
    steps: list[str] = []
    check = Check("memory", COSTS, clients=50, seed=1, runs=1, flood_s=0.3)
    comparisons = check.run(steps.append)
    assert steps == [comparison.name for comparison in comparisons]
    for comparison in comparisons:
        for figure in comparison.figures:
            assert figure.name == "refused" or (figure.real > 0.0 and figure.simulated > 0.0)
