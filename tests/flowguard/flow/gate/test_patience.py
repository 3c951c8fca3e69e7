"""How long clients wait is learned from those that give up."""

from hypothesis import given
from hypothesis import strategies as st

from flowguard.flow.gate.patience import AGES_MIN, LEAST_S, MEMORY_S, SHARE, Patience
from flowguard.flow.load.signals import TICK_S

LONGEST_S = 8.0


def after(patience: Patience, from_s: float, for_s: float) -> float:
    """Tick for a while in which no client gives up; return the time afterwards."""
    ticks = round(for_s / TICK_S)
    for tick in range(ticks):
        patience.tick(from_s + (tick + 1) * TICK_S)
    return from_s + ticks * TICK_S


def give_up(patience: Patience, age_s: float, now_s: float, count: int = AGES_MIN) -> None:
    for _ in range(count):
        patience.gave_up(age_s, now_s)


def test_when_many_give_up_after_three_seconds_nobody_waits_longer() -> None:
    patience = Patience(LONGEST_S)
    give_up(patience, 3.0, 10.0)
    patience.tick(10.0)
    assert patience.limit_s == SHARE * 3.0


def test_a_few_that_leave_say_nothing() -> None:
    patience = Patience(LONGEST_S)
    give_up(patience, 0.1, 10.0, AGES_MIN - 1)
    patience.tick(10.0)
    assert patience.limit_s == LONGEST_S


def test_some_that_leave_early_do_not_speak_for_those_that_wait() -> None:
    patience = Patience(LONGEST_S)
    give_up(patience, 0.1, 10.0, 15)
    give_up(patience, 5.0, 10.0, 30)
    patience.tick(10.0)
    assert patience.limit_s == SHARE * 5.0


def test_it_relaxes_slowly_to_the_longest_when_nobody_gives_up_any_more() -> None:
    patience = Patience(LONGEST_S)
    give_up(patience, 3.0, 10.0)
    patience.tick(10.0)
    now_s = after(patience, 10.0, MEMORY_S + 5.0)
    assert SHARE * 3.0 < patience.limit_s < 3.0
    after(patience, now_s, 120.0)
    assert patience.limit_s == LONGEST_S


@given(
    st.floats(0.001, 100.0),
    st.lists(st.tuples(st.floats(0.0, 1_000.0), st.integers(1, 40), st.floats(0.0, 3.0))),
)
def test_it_stays_between_its_bounds_and_never_leaps_up(
    longest_s: float, crowds: list[tuple[float, int, float]]
) -> None:
    patience = Patience(longest_s)
    now_s = 0.0
    for age_s, count, pause_s in crowds:
        now_s += pause_s
        before_s = patience.limit_s
        give_up(patience, age_s, now_s, count)
        patience.tick(now_s)
        assert min(LEAST_S, longest_s) <= patience.limit_s <= longest_s
        assert patience.limit_s <= max(1.01 * before_s, min(LEAST_S, longest_s))
