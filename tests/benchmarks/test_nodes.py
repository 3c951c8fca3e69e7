"""Benchmarks of a cluster: places of clients, the slow line, and what is read out of a run."""

import time
from math import isinf
from pathlib import Path
from subprocess import Popen

import pytest

from benchmarks.nodes import slowed
from benchmarks.nodes.cascade import Cascade, Look, Run, plan_of
from benchmarks.nodes.costs import SHARDS, WAYS, TwoNodes, Way
from benchmarks.nodes.devices import Second
from benchmarks.nodes.line import Lane
from benchmarks.nodes.simulated import simulated
from benchmarks.nodes.starved import KEY, PROCESSOR, Starving
from flowguard.cluster.members import owner_among

PAIRS, CALM_S, AFTER_S, DEVICES = 20, 20, 50, 100


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.title)
@pytest.mark.parametrize("shards", [[0, 1], [1, 0]])
def test_sessions_of_a_pair_are_on_the_shards_of_its_way(
    way: Way, shards: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "numbers"
    TwoNodes(way, path, PAIRS, None)._place(shards)
    numbers = path.read_text().split()
    names = [f"worker-{index}" for index in range(SHARDS)]
    for letter, ids, place in (
        ("s", numbers[:PAIRS], way.subscriber),
        ("p", numbers[PAIRS:], way.publisher),
    ):
        assert len(set(ids)) == PAIRS
        owners = {owner_among(names, f"{letter}{int(number):07}") for number in ids}
        assert owners == {names[shards[place]]}


def test_bytes_of_all_connections_pass_a_lane_one_after_the_other() -> None:
    lane = Lane(bytes_per_s=1_000.0, delay_s=0.0)
    first_s, second_s = lane.take(100), lane.take(500)
    assert second_s - first_s == pytest.approx(0.5)
    lane.delay_s = 1.0
    assert lane.take(0) - second_s == pytest.approx(1.0)


def test_starved_process_goes_on_at_the_end() -> None:
    with Popen(["sleep", "60"]) as process:
        starving = Starving([process.pid])
        starving.start()
        status = Path(f"/proc/{process.pid}/status")
        while "T (stopped)" not in status.read_text():
            time.sleep(0.01)
        starving.end()
        while "T (stopped)" in status.read_text():
            time.sleep(0.01)
        process.kill()


@pytest.mark.parametrize(("down_s", "passed"), [(0.5, True), (1.5, False)])
def test_window_of_a_slowed_node_must_be_down_within_a_second(down_s: float, passed: bool) -> None:
    windows = [(-1.0, 100.0), (down_s, 20.0), (9.0, 20.0), (12.0, 100.0)]
    fast = [(at_s, 100.0) for at_s, _ in windows]
    nodes = (fast, fast, windows)
    found = slowed.Slowed(PROCESSOR, (2_000.0, 1_900.0), (2_000.0, 300.0), windows, nodes, 10.0)
    assert found.open_s == pytest.approx(2.0)
    assert found.report().passed is passed
    assert found.report().key == KEY


def run(
    policy: str = "flowguard", *, back_after: int | None = 3, slow_s: float = 0.01, deaths: int = 0
) -> Run:
    """A run in which half of the devices lose their connection with the kill."""
    seconds = []
    for number in range(CALM_S + AFTER_S + 1):
        since = number - CALM_S
        is_back = since < 0 or (back_after is not None and since >= back_after)
        second = Second(due=100, in_time=100 if is_back else 50, connected=100 if is_back else 50)
        second.residents.record(0.01 if since < 0 else slow_s)
        seconds.append(second)
    looks = (Look(0.0, (100.0, 100.0, 100.0), 0),)
    return Run(policy, float(CALM_S), tuple(seconds), looks, deaths, 0)


def test_a_run_tells_when_all_devices_are_back() -> None:
    assert run(back_after=3).back_s == 4  # At the end of that second.
    assert isinf(run(back_after=None).back_s)
    assert run(back_after=None).in_time == 50


def test_a_cascade_needs_a_calm_run_and_a_control_that_falls() -> None:
    fallen = run("unlimited", back_after=None, deaths=1)
    assert Cascade((run(), fallen)).report().passed
    assert not Cascade((run(), run("unlimited"))).report().passed
    assert not Cascade((run(slow_s=0.03), fallen)).report().passed
    assert not Cascade((run(deaths=1), fallen)).report().passed
    assert not Cascade((run(back_after=None), fallen)).report().passed


def test_the_simulated_cascade_has_the_same_end() -> None:
    plan = plan_of(40.0)
    assert simulated(plan, "flowguard").back_s < 30
    assert simulated(plan, "unlimited").in_time < 10


def test_the_picture_of_a_cascade_has_both_policies() -> None:
    picture = Cascade((run(), run("unlimited", deaths=1))).report().picture
    assert picture is not None
    assert "flowguard" in picture
    assert "unlimited" in picture
    assert "prefers-color-scheme:dark" in picture
