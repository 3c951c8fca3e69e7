"""Backlogs take turns with live work: a crowd that reconnects stops no client, and gets all
messages."""

from collections import Counter

import pytest

from flowguard.codec.packets import Puback
from flowguard.node.loop.pages import READ_MAX, READY_MAX, REST, TURN_S, Pages
from flowguard.session.outbound.backlog import PIECE_MAX
from flowguard.session.outbound.fetch import MOVING_MAX, MOVING_PAGE, Moving
from flowguard.types import Publish
from tests.support.stage import Stage, StoreOnDisk

PIECE_S = 0.000_7
SESSIONS = 1_000
PIECES = 10
"""Per session."""


def replay_all(pages: Pages[int, int], live_s: float) -> tuple[list[int], list[float], float]:
    """Return the order of pieces, the duration of each stretch, and the time of the last one.

    `live_s` of live work are ready whenever the loop looks; at 0 the loop is idle. Every session
    asks again as soon as it was served, like a client that acknowledges at once.
    """
    left = Counter(dict.fromkeys(range(SESSIONS), PIECES))
    pages.ready.extend(range(SESSIONS))
    served: list[int] = []
    stretches_s: list[float] = []
    now_s = 0.0
    while pages.ready:
        now_s += live_s
        began_s = now_s
        if not pages.begins(now_s, idle=not live_s):
            continue
        while (session := pages.next(now_s)) is not None:
            now_s += PIECE_S
            served.append(session)
            left[session] -= 1
            if left[session]:
                pages.ready.append(session)
        stretches_s.append(now_s - began_s)
    return served, stretches_s, now_s


@pytest.mark.parametrize("live_s", [0.0, 0.000_1, 0.004])
def test_live_work_is_kept_waiting_for_a_turn_and_a_piece_at_most(live_s: float) -> None:
    served, stretches_s, _ = replay_all(Pages(), live_s)
    assert len(served) == SESSIONS * PIECES
    assert max(stretches_s) < TURN_S + PIECE_S


@pytest.mark.parametrize("live_s", [0.0, 0.000_1])
def test_sessions_are_served_one_after_the_other(live_s: float) -> None:
    served, _, _ = replay_all(Pages(), live_s)
    for number in range(PIECES):
        assert served[number * SESSIONS : (number + 1) * SESSIONS] == list(range(SESSIONS))


def test_what_live_work_leaves_is_all_used() -> None:
    _, _, idle_s = replay_all(Pages(), 0.0)
    assert idle_s == pytest.approx(SESSIONS * PIECES * PIECE_S)


@pytest.mark.parametrize("live_s", [0.000_1, 0.001, 0.004])
def test_live_work_without_end_leaves_a_replay_its_share(live_s: float) -> None:
    _, _, ended_s = replay_all(Pages(), live_s)
    ideal_s = SESSIONS * PIECES * PIECE_S
    assert ended_s > (1 + REST) * ideal_s * 0.9
    assert ended_s < (1 + REST) * ideal_s * 1.5


def test_a_page_that_takes_long_does_not_stop_replays_for_long() -> None:
    pages: Pages[int, int] = Pages()
    pages.ready.extend((1, 2))
    assert pages.begins(0.0, idle=False)
    assert pages.next(0.0) == 1
    assert pages.next(60.0) is None
    assert not pages.begins(60.0, idle=False)
    assert pages.begins(60.2, idle=False)


def test_few_pages_are_read_at_a_time_and_none_while_enough_is_ready() -> None:
    pages: Pages[int, int] = Pages()
    pages.wanted.extend(range(SESSIONS))
    read: list[int] = []
    while reading := pages.to_read():
        assert len(reading) <= READ_MAX
        assert not pages.is_hungry  # One reading at a time.
        assert pages.to_read() == []
        pages.came(reading)
        read += reading
    assert read == list(range(len(read)))
    assert READY_MAX <= len(pages.ready) < READY_MAX + READ_MAX
    assert pages.begins(0.0, idle=True)
    while pages.next(0.0) is not None:
        pass
    assert pages.is_hungry


def test_what_there_was_no_time_to_read_keeps_its_place() -> None:
    pages: Pages[int, int] = Pages()
    pages.wanted.extend(range(9))
    reading = pages.to_read()
    pages.wanted.append(9)
    pages.put_back(reading[2:])
    pages.came(reading[:2])
    assert [*reading[:2], *pages.to_read()] == list(range(10))


def test_no_backlog_has_a_turn_while_much_is_on_its_way_from_the_log() -> None:
    moving = Moving()
    pages: Pages[int, int] = Pages(moving=moving)
    pages.ready.extend((1, 2))
    pages.wanted.append(3)
    moving.count = MOVING_MAX
    assert not pages.begins(0.0, idle=True)
    assert not pages.waits, "who waits for a commit is told of it"
    assert not pages.is_hungry
    moving.count -= 1
    assert pages.begins(0.0, idle=True)
    assert pages.next(0.0) == 1
    moving.count += 1
    assert pages.next(0.0) is None


def test_beside_live_work_a_quarter_of_what_a_commit_has_of_that_moves_and_a_page_always() -> None:
    moving = Moving()
    pages: Pages[int, int] = Pages(moving=moving)
    pages.ready.append(1)
    moving.share(1)
    assert moving.page_max == MOVING_PAGE
    assert pages.begins(0.0, idle=False), "there is room for a page, however little is live"
    moving.count = MOVING_PAGE
    assert not pages.waits
    moving.share(4 * (MOVING_PAGE + 1))
    assert pages.waits, "that is less than a quarter"
    moving.share(1_000_000)
    moving.count = MOVING_MAX
    assert not pages.waits, "however much is live"
    moving.count = MOVING_PAGE
    moving.share(1)
    moving.have_all()
    assert pages.waits
    assert moving.page_max > MOVING_PAGE


# --- through a node --------------------------------------------------------------------------


def crowd_away(stage: Stage, sessions: int, messages: int, qos: int) -> None:
    """Queue `messages` messages for each of `sessions` offline clients."""
    for number in range(sessions):
        client = stage.connect_durable(f"s{number}")
        client.subscribe("a", qos=qos)
        client.close()
    publisher = stage.connect("p")
    for number in range(messages):
        publisher.publish("a", str(number).encode(), qos=qos)


def payloads(messages: list[Publish]) -> list[int]:
    return [int(message.payload) for message in messages]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("store", [StoreOnDisk, None], ids=["on disk", "in memory"])
def test_a_crowd_gets_everything_once_and_in_order(
    store: type[StoreOnDisk] | None, qos: int
) -> None:
    messages = 3 * PIECE_MAX + 1
    stage = Stage(store=store() if store is not None else None)
    crowd_away(stage, 20, messages, qos)
    stage.hold_fetches = True
    clients = [stage.connect_durable(f"s{number}") for number in range(20)]
    stage.release_fetches()
    for client in clients:
        assert payloads(client.publishes()) == list(range(messages))


def test_no_session_gets_its_second_piece_before_all_have_had_their_first() -> None:
    stage = Stage()
    crowd_away(stage, 20, 3 * PIECE_MAX, 1)
    stage.hold_replays = True
    clients = [stage.connect_durable(f"s{number}") for number in range(20)]
    node = stage.node
    for pieces in (1, 2):
        assert node.pages.begins(stage.now_s, idle=True)
        for _ in clients:
            piece = node.pages.next(stage.now_s)
            assert piece is not None
            node.replay(piece, stage.now_s)
        inflight = [
            len(node.registry.sessions[f"s{number}"].inflight.messages) for number in range(20)
        ]
        assert inflight == [pieces * PIECE_MAX] * 20
    stage.hold_replays = False
    stage.settle()
    for client in clients:
        assert payloads(client.publishes()) == list(range(3 * PIECE_MAX))


def test_what_is_published_while_backlogs_wait_for_their_turn_is_answered() -> None:
    stage = Stage()
    crowd_away(stage, 20, 3 * PIECE_MAX, 1)
    stage.hold_replays = True
    for number in range(20):
        stage.connect_durable(f"s{number}")
    live = stage.connect("live")
    live.subscribe("live", qos=1)
    live.publish("live", b"1", qos=1)
    assert [type(packet) for packet in live.take()] == [Publish, Puback]
