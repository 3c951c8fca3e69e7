"""Rounds: the order in which waiting connections run.

1. Without a backlog it is a queue: first come, first served.
2. In a round each connection runs exactly once, so the round ends.
3. A connection that was not in the last round goes first; at rest no ended one is remembered.
"""

from hypothesis import given
from hypothesis import strategies as st

from flowguard.node.loop.rounds import Rounds


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


def test_the_wait_is_half_of_what_the_first_of_those_who_wait_has_waited() -> None:
    rounds: Rounds[str] = Rounds()
    assert rounds.wait_s(1.0) == 0.0
    rounds.join("ab", 1.0)
    assert rounds.wait_s(1.5) == 0.25
    rounds.next()
    assert rounds.wait_s(2.0) == 0.5
    rounds.next()
    assert rounds.wait_s(3.0) == 0.0


def test_who_waits_for_the_next_round_waits_since_it_joined() -> None:
    rounds: Rounds[str] = Rounds()
    rounds.join("abc", 0.0)
    rounds.next()
    rounds.join("a", 1.0)
    run_all(rounds)
    rounds.join("", 2.0)
    assert rounds.wait_s(3.0) == 1.0


def test_a_newcomer_that_goes_first_hides_nobody_s_wait() -> None:
    rounds: Rounds[str] = Rounds()
    rounds.join("abc", 0.0)
    rounds.next()
    rounds.join("q", 4.0)
    assert rounds.wait_s(6.0) == 3.0


def test_who_follows_comes_after_all_who_wait_whatever_was_run_before() -> None:
    """If a pool gives turns, a connection whose second turn has come does not wait for others'
    turns."""
    rounds: Rounds[str] = Rounds()
    rounds.join("abc", 0.0)
    rounds.next()
    rounds.join("a", 1.0)
    rounds.follow("de", 2.0)
    assert run_all(rounds) == "bcade"


def test_who_waits_for_the_next_round_is_run_though_nobody_follows() -> None:
    rounds: Rounds[str] = Rounds()
    rounds.join("a", 0.0)
    rounds.join("b", 0.0)
    assert rounds.next() == "a"
    rounds.join("a", 1.0)
    assert run_all(rounds) == "b"
    rounds.follow("", 2.0)
    assert run_all(rounds) == "a"
    assert not rounds


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
