"""Costs of the real broker: lines, their file, the overlay, and one small measurement."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from socket import create_connection
from threading import Event, Thread, get_native_id
from time import thread_time
from types import SimpleNamespace
from typing import cast

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from flowguard.errors import ConfigError
from flowguard.flow.histogram import Histogram
from flowguard.storm.loop import ClientLoop, Wire
from simulations.calibration.check import (
    GOODPUT,
    Check,
    Comparison,
    Figure,
    Ran,
    flood_values,
    least_disturbed,
)
from simulations.calibration.command import calibrate, comparison_table, costs_of
from simulations.calibration.costs import costs_toml, load_costs, with_costs
from simulations.calibration.estimates import (
    Estimate,
    Series,
    estimates,
    fit,
    least,
    median,
)
from simulations.calibration.process import (
    BrokerProcess,
    CalibrationError,
    Usage,
    broker_process,
)
from simulations.calibration.traffic import RealPublisher
from simulations.machine import Disk
from simulations.publishers import FINE_BOUNDS_S
from simulations.scenario import NodePlan, PopulationPlan, PublishPlan, Scenario, StorePlan
from simulations.world import World

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


MEASURED: Series = {
    "decoded": [(1_000, 0.01)],
    "bare": [(100, 0.002), (200, 0.004)],
    "connected": [(100, 0.01), (200, 0.02)],
    "closed": [(100, 0.003), (200, 0.006)],
    "refused": [(100, 0.008), (200, 0.016)],
    "resident": [(100, 70e6), (200, 70.2e6)],
    "pings": [(100, 0.001), (200, 0.002)],
    "subscribed": [(100, 0.004), (200, 0.008)],
    "stored": [(1, 20e-6), (10, 56e-6)],
    "relayed": [(1, 36e-6), (10, 81e-6)],
    "lone_ping": [(1, 80e-6)],
    "lone_ping_cpu": [(1, 40e-6)],
    "lone_message": [(1, 900e-6)],
    "lone_message_cpu": [(1, 250e-6)],
    "wide": [(250, 1_150e-6), (500, 1_650e-6), (1_000, 2_650e-6)],
}
"""What the probes might bring home; a message for each further stored session takes 2 µs more."""


def test_a_lone_message_takes_in_the_simulator_what_it_took_here() -> None:
    measured = estimates([MEASURED], "rocks")
    publish = PublishPlan(outstanding=1)
    scenario = Scenario(
        duration_s=2.0, populations={"lone": PopulationPlan(clients=1, publish=publish)}
    )
    world = World(with_costs(scenario, costs_of(measured, "rocks")), "flowguard")
    publishers = world.populations[0].publishers
    assert publishers is not None
    publishers.acknowledgements = Histogram(FINE_BOUNDS_S)
    world.run()
    took_s = publishers.acknowledgements.percentile(0.5)
    assert took_s == pytest.approx(900e-6, rel=0.02)


def test_a_burst_costs_once_what_its_messages_do_not_cost_each() -> None:
    node = costs_of(estimates([MEASURED], "rocks"), "rocks")["node"]
    assert node["read_s"] == pytest.approx(16e-6)
    assert node["publish_s"] == pytest.approx(4e-6)
    assert node["send_s"] == pytest.approx(15e-6)
    assert node["delivery_s"] == pytest.approx(1e-6)


def test_what_a_further_session_adds_to_a_lone_message_an_operation_adds_to_a_commit() -> None:
    store = costs_of(estimates([MEASURED], "rocks"), "rocks")["store"]
    disk = Disk(StorePlan(**store))
    assert disk.commit_s(2_001) - disk.commit_s(1) == pytest.approx(2_000 * 2e-6)


def test_a_store_in_memory_makes_nobody_wait() -> None:
    store = costs_of(estimates([MEASURED], "memory"), "memory")["store"]
    assert store == {"commit_s": 0.0, "op_s": 0.0, "immediate": True}


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
    assert Figure("goodput", 100.0, 114.0, is_judged=True).agrees
    assert not Figure("goodput", 100.0, 84.0, is_judged=True).agrees
    assert Figure("p99", 1.0, 2.0).agrees
    assert Figure("p99", 2.0, 1.0).deviation == pytest.approx(-0.5)


def test_waiting_for_a_core_and_a_slow_one_make_a_run_dear_alike() -> None:
    undisturbed = Ran({}, Usage(2.0, 3.0, 0.0, 5.0), 1.0, 1_000)
    waited = Ran({}, Usage(2.0, 3.0, 1.0, 5.0), 1.0, 1_000)
    slow = Ran({}, Usage(2.7, 4.0, 0.0, 5.0), 1.0, 1_000)
    longer = Ran({}, Usage(4.0, 6.0, 0.0, 9.0), 2.0, 2_000)
    assert undisturbed.price_s == longer.price_s == pytest.approx(0.003)
    assert waited.price_s == slow.price_s == pytest.approx(0.004)


def test_of_several_runs_the_cheapest_counts_and_the_least_late() -> None:
    late = "p99 of 0.1 s, s"
    cheap = Ran({late: 0.012, "p50, s": 0.01}, Usage(2.0, 3.0, 0.0, 5.0), 1.0, 1_000)
    punctual = Ran({late: 0.011, "p50, s": 0.02}, Usage(2.0, 3.5, 0.0, 5.0), 1.0, 1_000)
    real = least_disturbed([punctual, cheap])
    assert real.values == {late: 0.011, "p50, s": 0.01}
    assert real.used == cheap.used
    storms = [Ran({"refused": 1.0}, Usage(2.0, 3.0, 0.0, 5.0), 1.0, 1_000)]
    assert least_disturbed(storms) == storms[0]


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
        (("--costs", "costs.toml"), "add --check"),
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


def test_what_rocksdb_does_in_its_own_threads_is_no_cost_of_the_loop() -> None:
    """Nothing waits for a flush, and a single one would make a burst half as dear again."""
    worked, may_end = Event(), Event()
    process = cast("subprocess.Popen[str]", SimpleNamespace(pid=os.getpid()))
    broker = BrokerProcess(process, ("127.0.0.1", 0))
    work_s = 0.2

    def flush() -> None:
        Path(f"/proc/self/task/{get_native_id()}/comm").write_text("rocksdb:high")
        while thread_time() < work_s:
            pass
        worked.set()
        may_end.wait()

    before = broker.usage()
    thread = Thread(target=flush)
    thread.start()
    worked.wait()
    used = broker.usage().since(before)
    may_end.set()
    thread.join()
    assert used.process_s < work_s / 2


def test_a_load_below_capacity_looks_at_the_clock_once_for_each_message() -> None:
    calls: list[tuple[float, Callable[[float], None]]] = []
    wire = SimpleNamespace(write=lambda _: None)
    loop = SimpleNamespace(clock=lambda: 0.0, call_at=lambda *call: calls.append(call))
    publisher = RealPublisher(cast("Wire", wire), Histogram(FINE_BOUNDS_S), "t", 64, 20)
    publisher.follow([0.001 * number for number in range(1, 101)], cast("ClientLoop", loop))
    for number in range(100):
        at_s, call = calls[number]
        call(at_s)
        wire.on_bytes(b"\x40\x02\x00\x01", at_s + 0.0005)
    assert len(calls) == 100
    assert publisher.is_idle


def test_one_bad_moment_is_not_the_p99_that_is_judged() -> None:
    moments = [Histogram(FINE_BOUNDS_S) for _ in range(5)]
    for moment in moments[:3]:
        moment.observe(0.01, 1_000)
    moments[3].observe(0.03, 1_000)  # In the last of them nobody was told anything.
    values = flood_values(moments, 0.5, 0.1)
    assert values["p99 of 0.1 s, s"] == pytest.approx(0.01, rel=0.01)
    assert values["p99, s"] == pytest.approx(0.03, rel=0.01)
    assert values["acknowledged, 1/s"] == pytest.approx(8_000)


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
    for flood_s in (0.3, 3.0, 30.0):  # A busy machine may do nothing in the first of them.
        steps: list[str] = []
        check = Check("memory", COSTS, clients=50, seed=1, runs=1, flood_s=flood_s)
        comparisons = check.run(steps.append)
        if all(each.figure(GOODPUT).real for each in comparisons if "flood" in each.name):
            break
    assert steps == [comparison.name for comparison in comparisons]
    for comparison in comparisons:
        for figure in comparison.figures:
            assert figure.name == "refused" or (figure.real > 0.0 and figure.simulated > 0.0)
