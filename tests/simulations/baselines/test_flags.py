"""Two flags: when they rise, how long they stay, and what they leave alone."""

from collections.abc import Callable

import pytest

from flowguard.flow.load.signals import TICK_S, Sample
from flowguard.flow.policy import Rung
from simulations.baselines.flags import DriftFlag, Flag, Flagged, RunQueueFlag
from simulations.baselines.gates import OpenGate
from simulations.baselines.static import Baseline
from tests.simulations.baselines.samples import judge, ticks

OBJECTIVE_S = 0.05


def run_queue_flag() -> RunQueueFlag:
    return RunQueueFlag(OBJECTIVE_S)


def times_up(flag: Flag, drift_of: Callable[[float], float], seconds: float) -> list[float]:
    """The times of the ticks in which the flag is up."""
    return [now_s for now_s in ticks(seconds) if flag.look(drift_of(now_s), now_s)]


def burst(start_s: float, end_s: float, high_s: float) -> Callable[[float], float]:
    return lambda now_s: high_s if start_s <= now_s < end_s else 0.0


@pytest.mark.parametrize("start_s", [10.0, 10.7, 11.3, 12.9])
def test_emqx_needs_two_to_five_seconds_of_burst_to_see_it(start_s: float) -> None:
    up = times_up(run_queue_flag(), burst(start_s, 100.0, 0.2), 60.0)
    assert 2.0 - TICK_S <= up[0] - start_s <= 5.0 + 3 * TICK_S
    assert up == pytest.approx(list(ticks(60.0))[-len(up) :])  # and stays up without a gap


@pytest.mark.parametrize("end_s", [2.5, 5.5])
def test_emqx_stays_closed_for_ten_seconds_whether_the_burst_lasts_or_not(end_s: float) -> None:
    up = times_up(run_queue_flag(), burst(0.0, end_s, 0.2), 60.0)
    assert up[0] == pytest.approx(2.0, abs=3 * TICK_S)
    assert up[-1] == pytest.approx(12.0, abs=6 * TICK_S)


def test_emqx_does_not_see_a_burst_between_two_looks() -> None:
    assert times_up(run_queue_flag(), burst(0.2, 2.8, 0.2), 60.0) == []


def test_emqx_forgives_one_look_but_not_three() -> None:
    one_look = burst(3.0 - TICK_S, 3.0 + 2 * TICK_S, 0.2)
    assert times_up(run_queue_flag(), one_look, 60.0) == []


def test_emqx_gives_no_credit_back_between_the_two_thresholds() -> None:
    busy_s = 0.9 * OBJECTIVE_S
    up = times_up(run_queue_flag(), lambda now_s: 0.2 if now_s < 3.0 else busy_s, 300.0)
    assert up[-1] > 299.0


def test_flashmq_closes_with_the_first_reading_above_two_seconds() -> None:
    up = times_up(DriftFlag(), burst(10.0, 12.0, 2.1), 60.0)
    assert up[0] == pytest.approx(10.0)
    assert up[-1] == pytest.approx(12.0 - TICK_S)


def test_flashmq_does_nothing_at_all_just_below_its_limit() -> None:
    assert times_up(DriftFlag(), lambda now_s: 1.99, 120.0) == []


def test_flashmq_remembers_a_long_standstill_by_its_average() -> None:
    # 6 s of drift in 16 readings are above 2 s on average until eleven calm ones are in.
    up = times_up(DriftFlag(), burst(0.0, 16.0, 6.0), 60.0)
    assert up[-1] == pytest.approx(16.0 + 10 * 1.0, abs=1.5)


@pytest.mark.parametrize("flag", [run_queue_flag(), DriftFlag()], ids=["emqx", "flashmq"])
def test_a_flag_closes_new_sockets_and_never_touches_a_window(flag: Flag) -> None:
    gate: OpenGate[str] = OpenGate()
    policy = Baseline("flag", gate, judge, Flagged(100, flag, gate))
    grants = []
    rungs = []
    for now_s in ticks(20.0):
        grants.append(policy.tick(Sample(now_s, sojourn_s=1.0, drift_s=5.0)))
        rungs.append(policy.gate.rung)
    assert {grant.window for grant in grants} == {100.0}
    assert {grant.credits for grant in grants} == {None}
    assert rungs[-1] is Rung.CLOSE
    assert [grant.why == "no flag" for grant in grants] == [rung is Rung.BUFFER for rung in rungs]
