"""A second policy gets the samples of the first one and decides nothing (flow/shadow).

1. With and without any shadow, the decisions are equal.
2. A shadow that is the same policy grants the same windows.
3. Pauses are counted if it is the stricter one; otherwise its function is not called.
"""

from itertools import product
from typing import get_args

import pytest

from flowguard.config import FlowSettings, PolicyName
from flowguard.flow.load.signals import TICK_S, Sample
from flowguard.flow.policies import make_policy
from flowguard.flow.policy import Grant
from flowguard.flow.shadow import Shadow
from simulations.baselines.gates import OpenGate
from simulations.baselines.static import Baseline, Static
from tests.flowguard.flow.crowd import Crowd
from tests.simulations.baselines.samples import judge

NAMES: tuple[PolicyName, ...] = get_args(PolicyName)
PAIRS = [pair for pair in product(NAMES, NAMES) if "flowguard" in pair or len({*pair}) == 1]
"""Each policy is watched, and each is the shadow."""
SMALL = FlowSettings(
    connects_in_process_max=4,
    connect_buffer_max=3,
    connect_buffer_bytes_max=600,
    connect_patience_s=2.0,
)
STRICT = FlowSettings(
    connects_in_process_max=1,
    connect_buffer_max=2,
    connect_buffer_bytes_max=400,
    connect_patience_s=1.0,
)


def shadowed(
    real: PolicyName, other: PolicyName, real_settings: FlowSettings, other_settings: FlowSettings
) -> Shadow[int]:
    return Shadow(make_policy(real, real_settings), make_policy(other, other_settings))


@pytest.mark.parametrize(("real", "other"), PAIRS)
def test_a_shadow_never_changes_the_trace(real: PolicyName, other: PolicyName) -> None:
    alone = Crowd(make_policy(real, SMALL), seed=7)
    watched = Crowd(shadowed(real, other, SMALL, STRICT), seed=7)
    assert watched.run(8.0) == alone.run(8.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_shadow_that_is_the_same_policy_grants_the_same_windows(name: PolicyName) -> None:
    policy = shadowed(name, name, SMALL, SMALL)
    windows = set()
    for tick in range(300):
        slow_s = 0.5 if tick % 100 < 50 else 0.0
        sample = Sample(tick * TICK_S, sojourn_s=slow_s, drift_s=slow_s, in_process=1_000)
        windows.add(policy.tick(sample).window)
        report = policy.report()
        assert report.window == report.window_real
    assert report.stricter_ticks == report.looser_ticks == 0
    assert report.policy == name
    if name in ("flowguard", "level-map"):
        assert len(windows) > 1  # They did move.


class Asked:
    """Clients with 3, 30 and 80 packets in process."""

    def __init__(self) -> None:
        self.windows: list[float] = []

    def __call__(self, window: float) -> int:
        self.windows.append(window)
        return sum(in_process > window for in_process in (3, 30, 80))


def fixed(window: int) -> Baseline[int]:
    gate: OpenGate[int] = OpenGate()
    return Baseline(f"static-{window}", gate, judge, Static(window))


def test_clients_above_the_window_of_a_stricter_shadow_count_as_paused() -> None:
    policy = Shadow(fixed(100), fixed(10), Asked())
    policy.tick(Sample(0.0, in_process=113))
    policy.tick(Sample(0.1, in_process=113))
    report = policy.report()
    assert (report.paused, report.paused_ticks) == (2, 4)
    assert (report.stricter_ticks, report.looser_ticks) == (2, 0)
    assert (report.window, report.window_real) == (10.0, 100.0)
    policy.tick(Sample(0.2, in_process=10))  # no client can have more than 10
    assert (policy.report().paused, policy.report().paused_ticks) == (0, 4)


@pytest.mark.parametrize("window", [100, 1_000])
def test_nobody_is_counted_while_the_shadow_is_not_the_stricter_one(window: int) -> None:
    asked = Asked()
    policy = Shadow(fixed(100), fixed(window), asked)
    policy.tick(Sample(0.0, in_process=113))
    assert asked.windows == []
    assert policy.report().paused_ticks == 0
    assert policy.report().looser_ticks == (window > 100)


class Taking:
    """A policy with a window below one."""

    name = "turns"

    def __init__(self) -> None:
        self.gate: OpenGate[int] = OpenGate()

    def tick(self, sample: Sample) -> Grant:
        return Grant(0.05)


def test_one_packet_is_never_a_pause_however_small_the_window() -> None:
    asked = Asked()
    Shadow(fixed(100), Taking(), asked).tick(Sample(0.0, in_process=113))
    assert asked.windows == [1.0]


def test_a_report_before_the_first_tick_says_that_nothing_has_happened() -> None:
    report = shadowed("flowguard", "vegas", SMALL, SMALL).report()
    assert (report.policy, report.window, report.window_real, report.why) == ("vegas", 0.0, 0.0, "")
    assert report.paused_ticks == 0
