"""Costs of the real broker: lines, their file, the overlay, and one small measurement."""

import math
import os
import re
import subprocess
from collections.abc import Callable
from math import inf
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
from flowguard.flow.load.histogram import Histogram
from flowguard.records import DropSession
from flowguard.stores import MemoryStore
from loadgen.storm.loop import ClientLoop, Wire
from simulations.calibration.cases import (
    CONNECTED,
    CONNECTED_S,
    POLITE,
    STOP_S,
    WORK,
    WORK_PER_S,
    Case,
    crowds,
)
from simulations.calibration.check import Check, Comparison, Figure, compared, simulated
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
    StoreKind,
    broker_process,
)
from simulations.calibration.runs import CheckRun, real_run, simulated_run, unevenness_of
from simulations.calibration.slow import StoppableStore
from simulations.calibration.traffic import RealPublisher
from simulations.crowd.publishers import FINE_BOUNDS_S
from simulations.draws import Draws
from simulations.process.disk import Disk
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
    "wide_cpu": [(250, 900e-6), (500, 1_650e-6), (1_000, 3_150e-6)],
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
    disk = Disk(StorePlan(**store), Draws(1, "commits"))
    assert disk.commit_s(2_001) - disk.commit_s(1) == pytest.approx(2_000 * 2e-6)


def test_cpu_of_a_further_session_is_that_of_a_further_subscriber() -> None:
    node = costs_of(estimates([MEASURED], "rocks"), "rocks")["node"]
    assert node["queue_s"] == pytest.approx(3e-6)


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


def test_only_judged_figures_have_to_agree() -> None:
    assert Figure("work", [100.0], 114.0, tolerance=0.15).agrees
    assert not Figure("work", [100.0], 84.0, tolerance=0.15).agrees
    assert Figure("p99", [1.0], 2.0).agrees
    assert Figure("p99", [9.0, 2.0, 1.0], 1.0).deviation == pytest.approx(-0.5)


CLIENTS = 200


def case_of(name: str, store: StoreKind = "rocks") -> Case:
    check = Check(store, {}, clients=CLIENTS, measured_s=2.0)
    return next(case for case in check.cases() if name in case.name)


def made_up(case: Case, slower: float, beside: float = 2.0) -> CheckRun:
    """A run on a machine that is slower by a factor; beside the crowd all takes `beside` times."""
    moments: dict[str, list[Histogram]] = {"endless": [], "polite": []}
    crowd_s = case.scenarios[0].populations["crowd"].start_s
    for number in range(round(case.least_s / 0.1)):
        factor = slower * (beside if number * 0.1 >= crowd_s - 0.05 else 1.0)
        for name, count in (("endless", 1_200), ("polite", 12)):
            moments[name].append(Histogram(FINE_BOUNDS_S))
            moments[name][-1].observe(0.01 * factor, round(count / factor))
    alone_s = [slower * 0.001 * client for client in range(1, CLIENTS + 1)]
    connected_s = {"alone": alone_s, "crowd": [beside * at_s for at_s in alone_s]}
    return CheckRun(connected_s, 0, moments, 1.0)


def test_a_crowd_that_never_connects_does_not_agree_with_one_that_does() -> None:
    assert not Figure("99 % connected", [0.0, 0.0, 1.2], 1.2, tolerance=0.25).agrees
    assert not Figure("99 % connected", [inf, inf, 1.2], 1.2, tolerance=0.25).agrees
    assert Figure("99 % connected", [1.1, 1.0, 1.3], 1.2, tolerance=0.25).agrees


@pytest.mark.parametrize("name", ["5 endless", "to 500"])
def test_ratios_stay_on_a_slower_machine_and_absolute_figures_do_not(name: str) -> None:
    case = case_of(name)
    fast, slow = (case.values([made_up(case, slower)]) for slower in (1.0, 3.0))
    for ratio in case.tolerances:
        assert slow[ratio] == pytest.approx(fast[ratio], rel=0.02)
    assert fast[CONNECTED] == pytest.approx(2.0)
    assert fast[WORK] == pytest.approx(0.5)
    assert fast[POLITE] == pytest.approx(2.0, rel=0.02)
    assert slow[CONNECTED_S] == pytest.approx(3.0 * fast[CONNECTED_S])
    assert slow[WORK_PER_S] == pytest.approx(fast[WORK_PER_S] / 3.0)


@pytest.mark.slow
def test_a_broker_that_starves_publishers_beside_a_crowd_does_not_agree() -> None:
    case = case_of("5 endless")
    simulated_work = simulated(case, {}, [1.0])[WORK]
    real = made_up(case, 1.0, beside=3.0 / simulated_work)
    work = next(each for each in compared(case, [[real]], {}).figures if each.name == WORK)
    assert work.deviation == pytest.approx(2.0, rel=0.02)
    assert not work.agrees


def test_a_client_that_never_connects_is_no_short_time() -> None:
    run = CheckRun({"crowd": [0.1] * 98}, 0, {}, 1.0)
    assert run.connected("crowd", 100, share=0.98) == 0.1
    assert run.connected("crowd", 100) == math.inf


@pytest.mark.slow
def test_each_case_has_a_simulated_side_that_agrees_with_itself() -> None:
    check = Check("rocks", {}, clients=CLIENTS, measured_s=0.5)
    found = {}
    for case in check.cases():
        real = [simulated_run(scenario, case.least_s) for scenario in case.scenarios]
        comparison = compared(case, [real], {})
        assert case.tolerances.keys() <= {figure.name for figure in comparison.figures}
        assert all(figure.deviation == 0.0 for figure in comparison.figures)
        found[case.name] = case.values(real)
    endless, wide, stopped = (found[name] for name in found if name.startswith("a crowd"))
    assert endless[CONNECTED] > 1.0
    assert wide[CONNECTED] > 1.0
    assert stopped[CONNECTED] == pytest.approx(1.0, rel=0.2)
    assert stopped[POLITE] == pytest.approx(1.0, rel=0.1)
    assert 0.0 < stopped[WORK] < 0.6
    assert found[f"storm of {CLIENTS}"]["99 % connected, one at a time by all at once"] > 1.0


@pytest.mark.slow
def test_a_loop_without_a_core_is_simulated_as_a_slow_one() -> None:
    case = case_of("5 endless")
    quiet, busy = (simulated(case, {}, [slowness]) for slowness in (1.0, 2.0))
    assert busy["acknowledged alone, 1/s"] < 0.7 * quiet["acknowledged alone, 1/s"]


def test_a_store_in_memory_cannot_stop_and_has_no_such_case() -> None:
    assert [case.name for case in crowds("memory", CLIENTS, 1, 1.0)] == [
        case.name for case in crowds("rocks", CLIENTS, 1, 1.0) if "stops" not in case.name
    ]


def test_a_machine_without_free_cores_is_too_busy_for_a_verdict() -> None:
    ratios = comparison_table(Comparison("storm", [], 1.8, 0.5))
    assert "too busy" not in str(ratios.caption)
    for slowness, load_share in ((4.0, 0.5), (1.01, 0.99)):
        busy = comparison_table(Comparison("storm", [], slowness, load_share))
        assert "too busy" in str(busy.caption)


def test_a_stopped_store_commits_when_it_starts() -> None:
    store, answers = MemoryStore(), Event()
    commit = Thread(target=StoppableStore(store, answers).commit, args=([DropSession("a")],))
    commit.start()
    commit.join(0.05)
    assert commit.is_alive()
    answers.set()
    commit.join()


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


def test_one_bad_moment_does_not_change_the_judged_p99() -> None:
    moments = [Histogram(FINE_BOUNDS_S) for _ in range(5)]
    for moment in moments[:3]:
        moment.observe(0.01, 980)
        moment.observe(0.02, 20)
    moments[3].observe(0.01, 500)
    moments[3].observe(0.3, 500)  # In the last of them nothing was acknowledged.
    assert unevenness_of(moments) == pytest.approx(0.02 / 0.0102, rel=0.01)


@pytest.mark.slow
def test_a_broker_that_dies_is_no_stack_trace() -> None:
    def speak_to_the_dead() -> None:
        with broker_process("memory", {}) as broker:
            broker.stop()
            create_connection(broker.address)

    with pytest.raises(CalibrationError, match="does not answer any more"):
        speak_to_the_dead()


@pytest.mark.slow
@pytest.mark.long
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


CERTAIN = ("99 % connected", "all at once", "closed loop: CPU")
"""Figures that even a busy machine has: the runs wait for the clients."""


@pytest.mark.slow
@pytest.mark.long
def test_both_sides_of_a_check_have_the_same_figures() -> None:
    """Small, and with costs of no machine, because their values are not the question here."""
    steps: list[str] = []
    check = Check("memory", COSTS, clients=50, runs=1, measured_s=1.0)
    comparisons = check.run(steps.append)
    assert steps == [comparison.name for comparison in comparisons]
    assert steps == [case.name for case in check.cases()]
    for comparison in comparisons:
        assert all(len(figure.real) == 1 for figure in comparison.figures)
        certain = [each for each in comparison.figures if each.name.startswith(CERTAIN)]
        assert certain
        for figure in certain:
            assert 0.0 < figure.real[0] < math.inf
            assert 0.0 < figure.simulated < math.inf


@pytest.mark.slow
def test_a_real_store_stops_for_all_clients_and_starts_again() -> None:
    case = case_of("stops", "slow")
    run = real_run("slow", case.scenarios[0], case.least_s)
    assert len(run.connected_s["crowd"]) == CLIENTS
    assert run.connected("crowd", CLIENTS) > STOP_S
