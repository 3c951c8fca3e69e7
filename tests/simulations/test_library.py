"""Scaled down, every scenario of the library runs to its end, and shows what it is there to show.

What is compared is flowguard and one control on the same arrivals. Full size: `flowguard simulate`.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from flowguard.config import MIB, FlowSettings, PolicyName
from simulations.results.run import Summary, run
from simulations.scenario_files.loading import load

SLOW = {"duration_s": 12.0}
CROWD = {"clients": 2_000, "connects_per_s": 16.75}


def both(
    name: str, control: PolicyName, changes: Mapping[str, Any] | None = None
) -> tuple[Summary, Summary]:
    """Run the same scenario under flowguard and under another policy."""
    scenario = load(name, changes).scenario
    runs = run(scenario, "flowguard"), run(scenario, control)
    for summary in runs:
        assert summary.ended_by in ("duration", "connected")
        assert summary.samples[-1].t_s == summary.ended_s
    return runs


def windows(summary: Summary, node: int, from_s: float, to_s: float) -> list[float]:
    return [s.nodes[node].window for s in summary.samples if from_s <= s.t_s <= to_s]


def pressures(summary: Summary, node: int, from_s: float, to_s: float) -> list[float]:
    return [s.nodes[node].pressure for s in summary.samples if from_s <= s.t_s <= to_s]


def share(summary: Summary, population: str) -> float:
    return summary.in_time_shares[population]


@pytest.mark.slow
def test_flash_crowd_everybody_is_in_sooner_and_fewer_are_declined() -> None:
    ours, control = both("flash_crowd", "reject-at-limit", CROWD)
    assert ours.connected_99_s is not None
    assert ours.connected_share == control.connected_share == 1.0
    assert ours.declined_count < control.declined_count
    assert ours.connected_99_s < (control.connected_99_s or 0.0)


@pytest.mark.slow
def test_flash_crowd_whoever_obeys_a_hint_has_to_try_less_often() -> None:
    stubborn = run(load("flash_crowd", {**CROWD, "retry": "fixed"}).scenario, "flowguard")
    obedient = run(load("flash_crowd", {**CROWD, "retry": "hints"}).scenario, "flowguard")
    assert stubborn.connected_share == obedient.connected_share == 1.0
    assert obedient.attempts_per_client < stubborn.attempts_per_client


def test_flash_crowd_a_dear_refusal_takes_longer() -> None:
    cheap = load("flash_crowd", CROWD).scenario.node
    dear = load("flash_crowd", {**CROWD, "refuse_cost": 0.22}).scenario.node
    for node, cost in ((cheap, 0.07), (dear, 0.22)):
        assert node.accept_s + node.connect_s == pytest.approx(1 / 16.75)
        assert node.accept_s + node.refuse_s == pytest.approx(cost / 16.75)


@pytest.mark.slow
def test_fan_out_others_do_not_notice_a_publisher_that_goes_as_fast_as_it_can() -> None:
    changes = {
        "duration_s": 17.0,
        "populations.subscribers.start_over_s": 8.0,
        "populations.pairs.start_s": 8.0,
        "populations.publisher.start_s": 10.0,
    }
    ours = run(load("fan_out", changes).scenario, "flowguard")
    endless = load("fan_out", changes | {"node.takes_turns": False}).scenario
    control = run(endless, "unlimited")
    assert share(ours, "pairs") > 0.95
    assert share(control, "pairs") < 0.7
    # It is not slowed for that: it publishes nearly as much as without any window.
    published = [run.in_time_counts["publisher"] for run in (ours, control)]
    assert published[0] > 0.85 * published[1]


@pytest.mark.slow
@pytest.mark.parametrize(("trigger", "backoff"), [("load", "none"), ("pause", "exponential")])
def test_retry_storm_ends_when_its_trigger_is_over(trigger: str, backoff: str) -> None:
    ours, control = both("retry_storm", "unlimited", {"trigger": trigger, "backoff": backoff})
    assert ours.goodput_after_share is not None
    assert control.goodput_after_share is not None
    assert ours.goodput_after_share > 0.9
    if backoff == "none":
        assert control.goodput_after_share < 0.2
        assert control.given_up_count > ours.given_up_count
    assert control.wasted_count > ours.wasted_count


@pytest.mark.slow
def test_cascade_the_others_survive_a_node_and_do_their_work_again_soon() -> None:
    small = {
        "clients": 750,
        "connects_per_s": 2.5,
        "messages_per_s": 12.5,
        "connection_kib": 528,
    }
    ours, control = both("cascade", "unlimited", small)
    assert ours.deaths_count == 0
    assert control.deaths_count > 1
    assert (ours.goodput_after_share or 0.0) > 0.9
    assert (control.goodput_after_share or 0.0) < 0.5
    assert ours.acknowledged_count > 1.5 * control.acknowledged_count


def test_cascade_in_small_is_the_same_question() -> None:
    full, small = (load("cascade", {"clients": clients}).scenario for clients in (200_000, 20_000))
    assert small.node.connect_s == pytest.approx(10 * full.node.connect_s)
    assert small.node.connecting_bytes == 10 * full.node.connecting_bytes
    assert small.node.memory_max_bytes == full.node.memory_max_bytes
    assert small.duration_s == pytest.approx(full.duration_s)
    assert small.flow.connect_buffer_max * 10 == full.flow.connect_buffer_max


@pytest.mark.parametrize(("changes", "faults"), [({"nodes": 18}, 1), ({"second_after_s": 20.0}, 2)])
def test_cascade_has_its_variants(changes: dict[str, Any], faults: int) -> None:
    scenario = load("cascade", changes).scenario
    assert len(scenario.faults) == faults
    assert scenario.nodes == changes.get("nodes", 3)
    assert scenario.clients == 200_000


@pytest.mark.slow
def test_slow_store_the_window_closes_while_the_disk_is_slow_and_opens_again() -> None:
    ours, control = both("slow_store", "unlimited", {"duration_s": 30.0, "faults.0.until_s": 24.0})
    before = min(windows(ours, 0, 10.0, 20.0))
    assert max(windows(ours, 0, 22.0, 24.0)) < 0.25 * before
    assert windows(ours, 0, 28.0, 30.0)[-1] > 1.5 * min(windows(ours, 0, 22.0, 24.0))
    assert min(windows(control, 0, 22.0, 24.0)) == max(windows(control, 0, 10.0, 20.0))


@pytest.mark.slow
def test_slow_store_only_who_works_with_the_slow_node_is_slowed() -> None:
    slow = both("slow_store", "level-map", SLOW | {"faults.0.at_s": 6.0, "faults.0.until_s": 12.0})
    calm = both("slow_store", "level-map", SLOW | {"faults": []})
    ours, control = (
        with_it.in_time_counts["elsewhere"] / without.in_time_counts["elsewhere"]
        for with_it, without in zip(slow, calm, strict=True)
    )
    assert ours > 0.99  # The disk is slow for half of the time.
    assert control < 0.98


@pytest.mark.slow
def test_noisy_neighbour_the_quiet_ones_are_heard() -> None:
    changes = {"duration_s": 10.0, "populations.noisy.start_over_s": 2.0, "node.publish_s": 0.0003}
    few = {"populations.noisy.clients": 250, "populations.quiet.clients": 30}
    ours, control = both("noisy_neighbour", "unlimited", changes | few)
    assert ours.memory_peak_bytes < control.memory_peak_bytes
    endless = load("noisy_neighbour", changes | few | {"node.takes_turns": False}).scenario
    assert share(ours, "quiet") > 2 * share(run(endless, "unlimited"), "quiet")


@pytest.mark.slow
def test_noisy_neighbour_a_quiet_client_waits_for_a_slice_of_the_flood_not_for_all_of_it() -> None:
    """A round of all flooding clients takes 100 ms, a quiet client alone 5 ms."""
    changes = {
        "populations.noisy.clients": 250,
        "populations.noisy.start_over_s": 1.0,
        "populations.quiet.clients": 30,
        "populations.quiet.publish.deadline_s": 0.01,
        "node.publish_s": 0.0004,
        "duration_s": 30.0,
    }
    turns = run(load("noisy_neighbour", changes).scenario, "flowguard")
    endless = load("noisy_neighbour", changes | {"node.takes_turns": False}).scenario
    assert share(turns, "quiet") > 0.85
    assert share(run(endless, "flowguard"), "quiet") < 0.5


@pytest.mark.slow
def test_resume_the_living_do_not_wait_for_what_others_missed() -> None:
    """They take 30 % of the nodes, so the replay has 70 %: ideally it takes 1.1 s here."""
    changes = {
        "populations.returning.clients": 50,
        "populations.returning.queued": 1_500,
        "populations.returning.start_s": 2.0,
        "duration_s": 5.0,
    }
    scenario = load("resume", changes).scenario
    replaying = run(scenario, "flowguard")
    quiet = run(
        load("resume", {**changes, "populations.returning.queued": 0}).scenario, "flowguard"
    )
    assert replaying.replayed_count == 50 * 1_500
    assert (replaying.replayed_last_s or 0.0) < 3.0 + 1.3 * 1.1
    assert share(replaying, "live") > 0.99
    assert (replaying.acknowledged_p99_s or 1.0) < 2 * (quiet.acknowledged_p99_s or 0.0)


@pytest.mark.slow
def test_partition_what_is_held_while_a_replica_is_silent_is_bounded() -> None:
    """Packets in process fit twice between the process at rest and the objective of memory."""
    changes = {"cut_s": 5.0, "duration_s": 32.0, "populations.publishers.clients": 60}
    memory_bytes = 104 * MIB
    changes["node.memory_max_bytes"] = memory_bytes
    ours, control = both("partition", "unlimited", changes)
    bound_bytes = FlowSettings().memory_objective * memory_bytes + MIB
    assert ours.memory_peak_bytes < bound_bytes < 0.9 * control.memory_peak_bytes
    assert min(windows(ours, 0, 20.0, 25.0)) <= 50
    assert (ours.goodput_after_share or 0.0) > 0.95


@pytest.mark.slow
def test_stability_a_step_of_capacity_leaves_no_queue_standing() -> None:
    ours, control = both("stability", "static-100", {"duration_s": 40.0})
    assert share(ours, "probes") > 0.95 > share(control, "probes")
    for node in (0, 1):
        queue, long_queue = pressures(ours, node, 30.0, 40.0), pressures(control, node, 30.0, 40.0)
        assert max(queue) < 0.4 * min(long_queue)
    # And nothing is lost by it.
    assert ours.acknowledged_count > 0.97 * control.acknowledged_count


@pytest.mark.slow
def test_diurnal_more_of_the_day_is_in_time() -> None:
    changes = {
        "populations.devices.clients": 50,
        "populations.devices.publish.trace.scale": 0.1,
        "populations.visitors.arrivals.scale": 0.1,
        "node.publish_s": 0.04,
        "node.connect_s": 0.1,
    }
    ours, control = both("diurnal", "unlimited", changes)
    assert (ours.in_time_share or 0.0) > (control.in_time_share or 0.0) + 0.05
    assert ours.wasted_count < control.wasted_count


@pytest.mark.slow
def test_busy_publishers_do_not_lock_the_door() -> None:
    ours, control = both("busy_publishers", "static-100")
    assert ours.connected_share > 0.75
    assert control.connected_share < 0.5
    assert share(ours, "steady") > 0.9 > share(control, "steady")


@pytest.mark.parametrize("name", ["busy_publishers", "heavy_connections", "crowd_that_fits"])
def test_a_crowd_of_half_the_size_meets_a_node_of_half_the_speed(name: str) -> None:
    full = load(name).scenario
    crowd = full.populations["crowd"].clients
    half = load(name, {"clients": crowd // 2}).scenario
    assert half.populations["crowd"].clients == crowd // 2
    assert half.node.connect_s == pytest.approx(2 * full.node.connect_s, rel=0.02)
    assert half.node.connecting_bytes == pytest.approx(2 * full.node.connecting_bytes, abs=2)
    others = full.populations.keys() - {"crowd"}
    assert all(half.populations[one] == full.populations[one] for one in others)


@pytest.mark.slow
def test_heavy_connections_wait_outside_and_no_node_dies_of_them() -> None:
    ours = run(load("heavy_connections").scenario, "flowguard")
    assert not ours.deaths_count
    assert ours.memory_peak_bytes < 0.85 * 160 * MIB
    assert ours.connected_share > 0.75
