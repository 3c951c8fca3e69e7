"""The pace at which shards move: as the gates of the other nodes admit their clients."""

from flowguard.cluster.pace import WAIT_MAX_S, MovePace
from flowguard.cluster.shards import NodeRecord


def nodes(clients: int, *slots: int) -> list[NodeRecord]:
    """Return nodes with so many free slots, and with so many clients together."""
    return [
        NodeRecord(f"n{index}", 6, clients=clients if index == 0 else 0, slots=free)
        for index, free in enumerate(slots)
    ]


def test_move_begins_at_once_if_no_connect_waits() -> None:
    assert MovePace().may_begin(nodes(1_000, 9, 9), 5.0)


def test_move_waits_while_connects_wait_at_a_gate() -> None:
    pace = MovePace()
    assert not pace.may_begin(nodes(1_000, 9, 0), 5.0)
    assert pace.may_begin(nodes(1_000, 9, 1), 6.0)


def test_move_waits_until_the_clients_of_the_last_one_are_back() -> None:
    pace = MovePace()
    pace.began(nodes(1_000, 9, 9), moved=300)
    assert not pace.may_begin(nodes(700, 9, 9), 1.0)
    assert not pace.may_begin(nodes(969, 9, 9), 2.0)
    assert pace.may_begin(nodes(970, 9, 9), 3.0)


def test_few_clients_that_stay_away_delay_nothing() -> None:
    pace = MovePace()
    pace.began(nodes(15, 9, 9), moved=10)
    assert pace.may_begin(nodes(5, 9, 9), 1.0)


def test_move_begins_after_a_while_although_no_gate_admits() -> None:
    pace = MovePace()
    assert not pace.may_begin(nodes(0, 0), 100.0)
    assert not pace.may_begin(nodes(0, 0), 99.0 + WAIT_MAX_S)
    assert pace.may_begin(nodes(0, 0), 100.0 + WAIT_MAX_S)


def test_wait_is_counted_from_the_time_at_which_a_move_was_due() -> None:
    pace = MovePace()
    assert not pace.may_begin(nodes(0, 0), 100.0)
    pace.rest()
    assert not pace.may_begin(nodes(0, 0), 100.0 + WAIT_MAX_S)
