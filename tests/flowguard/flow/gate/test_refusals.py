"""Laws of rejecting:

1. In any T seconds a unit of work is started only within share * (T + 0.1 s).
2. The completion rate is that of a crowd: time without waiting clients does not count.
3. A hint is between 0.5 s and 60 s, jittered, and longer the more clients wait or were rejected.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.flow.gate.refusals import Outlook, RefusalBudget
from flowguard.flow.load.signals import TICK_S

PATIENCE_S = 8.0
DRAWS = st.floats(0.0, 1.0, exclude_max=True)


# --- the budget ---


@given(
    st.floats(0.05, 1.0),
    st.lists(st.tuples(st.floats(0.0, 0.5), st.floats(0.000_01, 0.05)), max_size=60),
)
def test_invariant_16_refusing_takes_its_share_of_any_time_and_one_unit(
    share: float, units: list[tuple[float, float]]
) -> None:
    budget = RefusalBudget(share)
    now_s = 0.0
    done: list[tuple[float, float, float]] = []
    for idle_s, cost_s in units:
        now_s += idle_s
        if budget.allows(now_s):
            done.append((now_s, now_s + cost_s, cost_s))
            now_s += cost_s
            budget.spend(cost_s, now_s)
    for first, (since_s, _, _) in enumerate(done):
        worked_s = 0.0
        for _, until_s, cost_s in done[first:]:
            allowed_s = share * (until_s - since_s + TICK_S)
            assert worked_s <= allowed_s + 1e-9  # Before the last unit: that one may overdraw.
            worked_s += cost_s


def test_what_nobody_asked_for_leaves_a_debt_that_only_time_repays() -> None:
    budget = RefusalBudget(0.3)
    budget.spend(0.33, 10.0)
    assert not budget.allows(10.9)
    assert budget.allows(11.1)


def test_an_idle_budget_does_not_save_up_for_more_than_a_tick() -> None:
    budget = RefusalBudget(0.3)
    assert budget.allows(1_000.0)
    budget.spend(0.3 * TICK_S, 1_000.0)
    assert not budget.allows(1_000.0)


@given(running_share=st.floats(0.01, 1.0), cost_s=st.floats(0.000_1, 0.01))
def test_a_loop_that_seldom_runs_refuses_as_seldom(running_share: float, cost_s: float) -> None:
    """The budget is a share of the loop's own time, not of the clock's."""
    budget = RefusalBudget(0.3)
    budget.running_share = running_share
    worked_s, now_s = 0.0, 0.0
    while now_s < 10.0:
        if budget.allows(now_s):
            budget.spend(cost_s, now_s)
            worked_s += cost_s
        now_s += cost_s
    assert worked_s <= 0.3 * (running_share * now_s + TICK_S) + cost_s


@given(messages=st.floats(0.0, 1.5), cost_s=st.floats(0.000_1, 0.01))
def test_refusing_has_its_share_of_what_messages_leave(messages: float, cost_s: float) -> None:
    """They need most of the loop: else refusing would take all of the rest."""
    budget = RefusalBudget(0.3)
    for _ in range(100):
        budget.observe(messages, TICK_S)
    assert budget.share == pytest.approx(0.3 * max(0.2, 1.0 - messages))
    worked_s, now_s = 0.0, 0.0
    while now_s < 10.0:
        if budget.allows(now_s):
            budget.spend(cost_s, now_s)
            worked_s += cost_s
        now_s += cost_s
    assert worked_s <= budget.share * now_s + 0.3 * TICK_S + cost_s


# --- the outlook ---


def crowd_of(
    rate: float, seconds: float, *, refused: int = 0, crowded: bool = True, since_s: float = 0.0
) -> Outlook:
    """Return the outlook after `rate` CONNECTs per second for `seconds`."""
    outlook = Outlook(PATIENCE_S)
    outlook.advance(since_s, crowded=False)
    for done in range(int(rate * seconds)):
        outlook.advance(since_s + (done + 1) / rate, crowded=crowded)
        outlook.completed()
    for _ in range(refused):
        outlook.refused()
    return outlook


@pytest.mark.parametrize("rate", [4.0, 66.7, 5_000.0])
@pytest.mark.parametrize("seconds", [1.0, 5.0])
def test_the_rate_is_that_of_recent_connects(rate: float, seconds: float) -> None:
    one_more = 0.5  # A completion at the very end counts, the time after it not yet.
    measured = crowd_of(rate, seconds).completion_rate
    assert measured == pytest.approx(rate, rel=0.05, abs=one_more)


def test_a_rate_that_changed_is_known_after_five_seconds() -> None:
    outlook = crowd_of(100.0, 3.0)
    for done in range(50):
        outlook.advance(3.0 + (done + 1) / 10.0, crowded=True)
        outlook.completed()
    assert outlook.completion_rate == pytest.approx(10.0, rel=0.1)


def test_a_crowd_of_a_moment_tells_no_rate() -> None:
    outlook = crowd_of(100.0, 0.3)
    assert outlook.completion_rate == 0.0


def test_a_quiet_node_is_not_taken_for_a_slow_one() -> None:
    """One CONNECT per second without waiting clients does not show the node's capacity."""
    assert crowd_of(1.0, 10.0, crowded=False).completion_rate == 0.0


def test_time_between_two_crowds_does_not_count() -> None:
    outlook = crowd_of(100.0, 0.6)
    outlook.advance(0.9, crowded=False)
    assert outlook.completion_rate == pytest.approx(100.0, rel=0.05)


def test_a_rate_is_forgotten_two_seconds_after_the_crowd() -> None:
    outlook = crowd_of(100.0, 5.0)
    outlook.advance(7.2, crowded=False)
    assert outlook.completion_rate == 0.0


def test_a_store_that_stands_still_for_a_moment_sends_nobody_away_for_a_minute() -> None:
    """No CONNECT is completed in the last two seconds, but that will not last."""
    outlook = crowd_of(100.0, 5.0)
    before_s = outlook.retry_after_s(0.5, 500)
    for tenth in range(30):
        outlook.advance(5.0 + tenth / 10.0, crowded=True)
    assert outlook.completion_rate < 10.0
    assert before_s < outlook.retry_after_s(0.5, 500) < 2.0 * before_s


def test_who_would_be_late_is_told_so_for_ten_seconds_after_somebody_was() -> None:
    outlook = crowd_of(100.0, 5.0)
    assert not outlook.is_too_long(10_000)
    outlook.was_late()
    assert not outlook.is_too_long(700)
    assert outlook.is_too_long(900)
    assert outlook.is_too_long(500, PATIENCE_S / 2)
    outlook.advance(14.9, crowded=True)
    assert outlook.is_too_long(10_000)
    outlook.advance(15.1, crowded=True)
    assert not outlook.is_too_long(10_000)


def test_first_waiting_client_is_not_rejected_by_a_forecast() -> None:
    outlook = crowd_of(0.2, 10.0)
    outlook.was_late()
    assert outlook.is_too_long(ahead=3, waited_s=0.9 * PATIENCE_S)
    assert not outlook.is_too_long(ahead=0, waited_s=0.9 * PATIENCE_S)


# --- the hint ---


@given(DRAWS, st.integers(0, 100_000), st.floats(0.5, 5_000.0), st.integers(0, 1_000))
def test_a_hint_is_never_below_half_a_second_nor_above_a_minute(
    draw: float, waiting: int, rate: float, refused: int
) -> None:
    assert 0.5 <= crowd_of(rate, 1.0, refused=refused).retry_after_s(draw, waiting) <= 60.0


@pytest.mark.parametrize("waiting", [0, 1_000, 1_000_000])
def test_hints_are_spread_threefold_at_the_bounds_too(waiting: int) -> None:
    outlook = crowd_of(100.0, 2.0)
    shortest, longest = (outlook.retry_after_s(draw, waiting) for draw in (0.0, 1.0))
    assert longest == pytest.approx(3.0 * shortest)


def test_a_hint_is_the_time_to_serve_all_who_wait_and_were_refused() -> None:
    outlook = crowd_of(100.0, 2.0, refused=500)
    assert outlook.retry_after_s(0.5, 1_000) == pytest.approx(15.0, rel=0.05)


def test_the_refused_are_expected_back_for_some_seconds_only() -> None:
    outlook = crowd_of(100.0, 2.0, refused=3_000)
    for hundredth in range(10_000):
        outlook.advance(2.0 + hundredth / 100.0, crowded=True)
        outlook.completed()
    assert outlook.retry_after_s(0.5, 1_000) == pytest.approx(10.0, rel=0.05)


def test_without_a_rate_the_hint_is_about_a_clients_patience() -> None:
    outlook = Outlook(PATIENCE_S)
    assert [outlook.retry_after_s(draw, 10) for draw in (0.0, 0.5)] == [4.0, 8.0]
