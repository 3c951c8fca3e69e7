"""A turn on virtual time: what comes when, how much of it, and when others run."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.node.loop.sends import SENDS_MAX
from flowguard.node.loop.turns import (
    ANSWERS,
    AWAITED_S,
    EVENTS_MAX,
    NOTHING,
    ROUND_TURN_S,
    SLICE_BYTES,
    SLICE_CONNECTIONS,
    SLICE_S,
    Next,
)
from tests.flowguard.node.world import PIECE_S, Steps, World


def without_slices(said: list[str]) -> list[str]:
    return [word for word in said if word not in {"admit", "send"}]


# --- order -----------------------------------------------------------------------------------


def test_sockets_come_first_then_answers_rounds_chores_and_backlogs() -> None:
    world = World(immediate=False)
    world.piece_s = 0.0
    world.wait_for_commit(1)
    batch = world.journal.take(world.now_s)
    assert batch is not None
    world.journal.durable(batch, world.now_s, 0.0)
    world.ready.append("a")
    world.runnable.append("b")
    world.chores.add(Steps(world, 1).step)
    world.pages.ready.append("c")
    assert world.turns.go_on() is Next.TURN
    order = ["read a", "receive", "answer", "run b", "chore", "replay c"]
    assert without_slices(world.said) == order


def test_each_part_ends_with_a_slice() -> None:
    world = World()
    world.piece_s = 0.0
    world.ready.append("a")
    world.runnable.append("b")
    world.pages.ready.append("c")
    world.turns.go_on()
    said = world.said
    assert said[said.index("receive") + 1] == said[said.index("run b") + 1] == "admit"
    assert said[said.index("replay c") + 1] == "admit"


def test_a_slice_admits_and_commits_before_it_sends() -> None:
    world = World()
    world.wait_for_commit(1)
    world.dirty.append("a")
    world.turns.end_slice(world.now_s)
    assert world.said == ["admit", "answer", "send"]
    assert world.committed == [1]
    assert world.sent == [["a"]]


def test_who_waited_for_a_commit_is_answered_in_order_and_before_the_next_begins() -> None:
    world = World(immediate=False)
    world.piece_s = 0.0
    for number in range(3 * ANSWERS):
        world.wait_for_commit(number)
    batch = world.journal.take(world.now_s)
    assert batch is not None
    world.wait_for_commit(-1)
    world.journal.durable(batch, world.now_s, 0.0)
    world.run_until(Next.IDLE)
    assert world.answered == list(range(3 * ANSWERS))
    assert world.turns.awaited, "the next one can begin"


# --- slices ----------------------------------------------------------------------------------


def slices(said: list[str]) -> list[int]:
    """How many were read in each."""
    counts = [0]
    for word in said:
        if word.startswith("read"):
            counts[-1] += 1
        elif word == "receive":
            counts.append(0)
    return [count for count in counts if count]


def test_a_turn_reads_so_many_sockets_in_slices_of_so_many() -> None:
    world = World()
    world.piece_s = 0.0
    world.ready.extend(f"{number}" for number in range(EVENTS_MAX + 1))
    world.turns.go_on()
    assert slices(world.said) == [SLICE_CONNECTIONS] * (EVENTS_MAX // SLICE_CONNECTIONS)
    world.said.clear()
    world.turns.go_on()
    assert slices(world.said) == [1]


def test_a_slice_ends_where_it_has_brought_enough_bytes() -> None:
    world = World()
    world.ready.extend("abcde")
    world.sizes = dict.fromkeys("abcde", SLICE_BYTES // 2)
    world.turns.turn(world.now_s)
    assert slices(world.said) == [2, 2, 1]


def test_what_brings_nothing_fills_no_slice() -> None:
    world = World()
    world.ready.extend(f"{number}" for number in range(EVENTS_MAX))
    world.sizes = dict.fromkeys(world.ready, NOTHING)
    world.turns.turn(world.now_s)
    assert slices(world.said) == [EVENTS_MAX]


def test_who_has_one_reader_is_sent_to_before_many_are() -> None:
    world = World()
    world.dirty = [f"{number}" for number in range(SENDS_MAX + 2)]
    world.turns.end_slice(world.now_s)
    assert [len(connections) for connections in world.sent] == [1 + SENDS_MAX]
    assert world.said[-1] == "wake", "one waits for its turn"
    world.dirty = ["few"]
    world.turns.end_slice(world.now_s)
    assert world.sent[1] == ["few", "0"]
    assert world.turns.is_quiet


# --- rounds ----------------------------------------------------------------------------------


def test_a_round_takes_half_a_millisecond_where_sockets_took_nothing() -> None:
    world = World()
    world.piece_s = 0.3 * ROUND_TURN_S
    world.runnable.extend("abcdefgh")
    assert world.turns.run_round()
    assert without_slices(world.said) == [f"run {name}" for name in "abcd"]


def test_a_round_takes_as_long_as_the_sockets_did() -> None:
    world = World()
    world.ready.append("socket")
    world.runnable.extend("abc")
    world.turns.turn(world.now_s)
    world.said.clear()
    assert world.turns.run_round()
    assert without_slices(world.said) == ["run a"]


def test_who_is_over_takes_no_time_and_no_place() -> None:
    world = World()
    world.runnable.extend("abc")
    world.ended.update("ab")
    assert world.turns.run_round()
    assert without_slices(world.said) == ["run c"]


def test_nobody_is_run_twice_in_a_round() -> None:
    world = World()
    world.lively.add("a")
    world.runnable.extend("ab")
    world.turns.run_round()
    world.turns.run_round()
    assert without_slices(world.said) == ["run a", "run b"]


def test_while_clients_take_turns_who_has_no_room_says_so_at_once() -> None:
    world = World(shared=True)
    world.piece_s = ROUND_TURN_S / 8
    world.runnable.extend("abc")
    world.roomless.add("b")
    world.turns.run_round()
    assert without_slices(world.said) == ["run b", "run a", "run c"]


def test_for_those_without_room_there_is_no_more_time_than_for_the_round() -> None:
    world = World(shared=True)
    world.runnable.extend("abc")
    world.roomless.update("abc")
    world.turns.run_round()
    assert without_slices(world.said) == ["run a", "run b"], "one is always run"
    world.turns.run_round()
    assert without_slices(world.said) == ["run a", "run b", "run c"]


# --- who yields when -------------------------------------------------------------------------


def test_an_empty_turn_waits_for_an_event() -> None:
    assert World().turns.go_on() is Next.IDLE


def test_a_short_turn_is_followed_by_the_next_one() -> None:
    world = World()
    world.ready.append("a")
    assert world.turns.go_on() is Next.TURN
    assert world.turns.go_on() is Next.IDLE


def test_others_run_after_the_sockets_where_these_took_a_slice() -> None:
    world = World()
    world.piece_s = 2 * SLICE_S
    world.ready.append("a")
    world.runnable.append("b")
    assert world.turns.go_on() is Next.YIELD
    assert world.turns.is_under_way
    assert "run b" not in world.said
    world.turns.resume()
    assert world.turns.go_on() is Next.YIELD, "the round took as long"
    assert not world.turns.is_under_way
    assert "run b" in world.said


def test_others_wait_for_no_more_than_a_slice_and_one_piece() -> None:
    """However much there is to do."""
    world = World()
    world.lively.update("abc")
    world.runnable.extend("abc")
    world.chores.add(Steps(world, 1_000).step)
    longest_s, since_s = 0.0, world.now_s
    for _ in range(500):
        world.ready.append("socket")
        if world.turns.go_on() is not Next.TURN:
            longest_s = max(longest_s, world.now_s - since_s)
            world.turns.resume()
            since_s = world.now_s
    assert SLICE_S < longest_s <= 2 * SLICE_S + 2 * PIECE_S


@pytest.mark.parametrize(("piece_s", "yields"), [(AWAITED_S / 4, False), (2 * AWAITED_S, True)])
def test_others_run_before_backlogs_where_the_store_is_to_be_asked(
    piece_s: float, *, yields: bool
) -> None:
    world = World(immediate=False)
    world.piece_s = piece_s
    world.wait_for_commit(1)
    world.ready.append("a")
    world.pages.ready.append("c")
    following = world.turns.go_on()
    assert (following is Next.YIELD and world.turns.is_under_way) is yields
    assert ("replay c" in world.said) is not yields


def test_nobody_yields_for_a_store_that_is_at_work() -> None:
    world = World(immediate=False)
    world.is_free = False
    world.piece_s = 2 * AWAITED_S
    world.wait_for_commit(1)
    world.ready.append("a")
    assert world.turns.go_on() is Next.TURN


def test_backlogs_that_rest_are_no_reason_to_wait_for_an_event() -> None:
    world = World()
    world.ready.append("a")
    world.pages.ready.extend("cd")
    world.piece_s = 2 * SLICE_S
    world.turns.go_on()
    world.turns.resume()
    world.turns.go_on()
    world.turns.resume()
    world.ready.append("b")
    world.piece_s = 0.0
    said = len(world.said)
    assert world.turns.go_on() is Next.TURN
    assert "replay d" not in world.said[said:], "live work goes first"
    assert world.turns.go_on() is Next.YIELD
    world.turns.resume()
    world.run_until(Next.IDLE)
    assert world.said.count("replay c") == world.said.count("replay d") == 1


def drift_s(world: World) -> float:
    """Return the observed drift: nine of ten milliseconds waited no longer, within 5 %."""
    return world.observer.take(world.now_s, 0, 0).drift_s


def test_the_observer_hears_for_how_long_sockets_wait_for_the_work_of_a_turn() -> None:
    world = World()
    world.piece_s = 0.5
    world.ready.append("a")
    assert world.turns.go_on() is Next.YIELD
    assert drift_s(world) == pytest.approx(0.5, rel=0.06)


def test_the_observer_hears_for_how_long_sockets_wait_for_others() -> None:
    world = World()
    world.piece_s = 2 * SLICE_S
    world.ready.append("a")
    assert world.turns.go_on() is Next.YIELD
    world.now_s += 0.7
    world.turns.resume()
    assert drift_s(world) == pytest.approx(0.7, rel=0.06)


def test_no_socket_waits_while_the_loop_waits_for_one() -> None:
    world = World()
    assert world.turns.go_on() is Next.IDLE
    world.now_s += 0.7
    world.turns.resume()
    assert drift_s(world) == 0.0


# --- staying with the sockets ----------------------------------------------------------------

STAY_S = 20 * SLICE_S


def staying(*, immediate: bool = True) -> World:
    """A world in which no other task can run for `STAY_S`."""
    world = World(immediate=immediate)
    world.others_at_s = world.now_s + STAY_S
    return world


def test_a_loop_waits_for_sockets_by_itself_until_others_can_run() -> None:
    world = staying()
    assert world.turns.go_on() is Next.IDLE
    assert world.said[0] == "stay"
    assert world.now_s == world.others_at_s
    assert world.turns.idle_s == pytest.approx(STAY_S)


def test_others_that_cannot_run_are_not_let_run() -> None:
    world = staying()
    for _ in range(10):
        world.ready.append("a")
        assert world.turns.go_on() is Next.TURN


def test_others_that_can_run_wait_no_longer_than_a_slice() -> None:
    world = staying()
    following = Next.TURN
    while following is Next.TURN:
        world.ready.append("a")
        following = world.turns.go_on()
    assert following is Next.YIELD
    assert 0 < world.now_s - world.others_at_s <= SLICE_S + 2 * PIECE_S


def has_runnable(world: World) -> None:
    world.runnable.append("a")


def has_a_chore(world: World) -> None:
    world.chores.add(Steps(world, 3).step)


def has_a_backlog(world: World) -> None:
    world.pages.ready.append("a")


def sends_to_many(world: World) -> None:
    world.dirty = [f"{number}" for number in range(SENDS_MAX + 2)]
    world.turns.end_slice(world.now_s)


@pytest.mark.parametrize(
    "prepare",
    [
        has_runnable,
        has_a_chore,
        has_a_backlog,
        sends_to_many,
    ],
)
def test_a_loop_stays_only_where_nothing_else_is_to_be_done(
    prepare: Callable[[World], None],
) -> None:
    world = staying(immediate=False)
    prepare(world)
    world.said.clear()
    world.turns.turn(world.now_s)
    assert "stay" not in world.said


def test_nobody_has_waited_for_a_loop_that_stayed() -> None:
    world = staying()
    assert world.turns.go_on() is Next.IDLE
    world.turns.resume()
    assert drift_s(world) == 0.0


# --- what has been heard ---------------------------------------------------------------------


def test_whatever_had_come_is_heard_when_two_laps_are_over() -> None:
    world = World()
    world.ready.extend("a" * (2 * EVENTS_MAX + 1))
    began_s = world.now_s
    heard_s = []
    for _ in range(5):
        world.turns.go_on()
        heard_s.append(world.turns.heard_s)
        world.turns.resume()
    assert heard_s[:3] == [began_s] * 3
    assert heard_s[4] > began_s


def test_where_nothing_is_ready_all_is_heard() -> None:
    world = World()
    world.turns.has_heard(world.now_s + 3.0)
    assert world.turns.heard_s == world.now_s + 3.0


# --- progress --------------------------------------------------------------------------------


@given(
    sockets=st.integers(0, 3 * EVENTS_MAX),
    waiting=st.integers(0, 2 * SLICE_CONNECTIONS),
    commits=st.integers(0, 3 * ANSWERS),
    chores=st.integers(0, 5),
    backlogs=st.integers(0, 5),
    piece_s=st.sampled_from([0.0, AWAITED_S / 3, SLICE_S / 3, 3 * SLICE_S]),
    immediate=st.booleans(),
    shared=st.booleans(),
)
def test_every_step_gets_on_until_nothing_is_left(
    sockets: int,
    waiting: int,
    commits: int,
    chores: int,
    backlogs: int,
    piece_s: float,
    *,
    immediate: bool,
    shared: bool,
) -> None:
    """Each step does some work, or ends with none left; each item is processed once."""
    world = World(immediate=immediate, shared=shared)
    world.ready.extend(f"{number}" for number in range(sockets))
    world.runnable.extend(f"{number}" for number in range(waiting))
    for number in range(commits):
        world.wait_for_commit(number)
    for _ in range(chores):
        world.chores.add(Steps(world, 2).step)
    world.pages.ready.extend(f"{number}" for number in range(backlogs))
    world.piece_s = piece_s
    count = 0
    while True:
        done = len(without_slices(world.said)), world.turns.is_under_way
        following = world.turns.go_on()
        if following is Next.IDLE:
            if immediate or (batch := world.journal.take(world.now_s)) is None:
                break
            world.journal.durable(batch, world.now_s, 0.0)
        elif following is Next.YIELD:
            world.now_s += 0.001  # The others.
        else:
            assert (len(without_slices(world.said)), world.turns.is_under_way) != done
        if following is not Next.TURN:
            world.turns.resume()
        count += 1
        assert count < 2_000
    said = world.said
    assert sum(word.startswith("read") for word in said) == sockets
    assert sum(word.startswith("run") for word in said) == waiting
    assert said.count("chore") == 2 * chores
    assert sum(word.startswith("replay") for word in said) == backlogs
    assert world.answered == list(range(commits))
    assert world.turns.is_quiet
