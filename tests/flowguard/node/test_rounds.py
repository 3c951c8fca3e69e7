"""Rounds: who is run when, of those that wait.

1. Without a backlog it is a queue: first come, first served.
2. In a round everybody is run once at most, and everybody is run: it ends.
3. Who was not in the round before goes first; nobody who is gone is remembered at rest.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.node.rounds import Rounds


def run_all(rounds: Rounds[str]) -> str:
    """The rest of the round."""
    order = ""
    while not rounds.is_over:
        order += rounds.next()
    return order


def test_first_come_first_served() -> None:
    rounds: Rounds[str] = Rounds()
    rounds.join("abc", 0.0)
    rounds.join("de", 0.0)
    assert run_all(rounds) == "abcde"
    assert not rounds


def test_who_was_run_waits_for_the_next_round() -> None:
    rounds: Rounds[str] = Rounds()
    rounds.join("abc", 0.0)
    assert rounds.next() == "a"
    rounds.join("a", 1.0)
    assert run_all(rounds) == "bc"
    assert len(rounds) == 1
    rounds.join("", 2.0)
    assert run_all(rounds) == "a"


def test_who_comes_now_and_then_goes_before_a_backlog() -> None:
    rounds: Rounds[str] = Rounds()
    flood = "abcdefgh"
    rounds.join(flood, 0.0)
    for _ in range(3):
        rounds.next()
    rounds.join("abc", 1.0)  # They want more at once, and would be before whoever comes later.
    assert run_all(rounds) == "defgh"
    rounds.join("defgh", 2.0)
    assert rounds.next() == "a"
    rounds.join("q", 3.0)
    assert run_all(rounds) == "qbcdefgh"


def test_at_rest_nobody_is_remembered() -> None:
    rounds: Rounds[str] = Rounds()
    rounds.join("abc", 0.0)
    run_all(rounds)
    assert not rounds._members
    assert not rounds._before


def test_a_round_began_when_the_first_of_it_joined() -> None:
    rounds: Rounds[str] = Rounds()
    rounds.join("ab", 1.0)
    rounds.next()
    rounds.join("a", 2.0)
    assert rounds.since_s == 1.0
    rounds.next()
    rounds.join("", 3.0)
    assert rounds.since_s == 3.0


def test_the_wait_is_half_a_round_when_it_is_over_and_every_tick_before() -> None:
    rounds: Rounds[str] = Rounds()
    rounds.join("abc", 1.0)
    told = []
    for turn in range(4):
        began_s = 1.0 + 0.08 * turn
        if turn == 3:
            rounds.next()
            rounds.next()
        told.append(rounds.wait_s(began_s, began_s + 0.01))
        if turn == 0:
            rounds.next()
    assert told == [0.0, 0.0, pytest.approx(0.085), pytest.approx(0.125)]


def test_a_round_of_one_turn_is_no_wait() -> None:
    rounds: Rounds[str] = Rounds()
    rounds.join("abc", 1.0)
    run_all(rounds)
    assert rounds.wait_s(1.0, 9.0) == 0.0


@given(st.lists(st.tuples(st.sets(st.integers(0, 20)), st.integers(0, 20))))
def test_nobody_is_run_twice_in_a_round_and_nobody_is_forgotten(
    turns: list[tuple[set[int], int]],
) -> None:
    rounds: Rounds[int] = Rounds()
    waiting: set[int] = set()
    ran: set[int] = set()
    for wanting, runs in turns:
        if rounds.is_over:
            ran.clear()
        rounds.join(wanting - waiting, 0.0)
        waiting |= wanting
        assert len(rounds) == len(waiting)
        for _ in range(runs):
            if rounds.is_over:
                break
            member = rounds.next()
            assert member not in ran
            ran.add(member)
            waiting.remove(member)
    while rounds:
        rounds.join((), 0.0)
        while not rounds.is_over:
            waiting.remove(rounds.next())
    assert not waiting
