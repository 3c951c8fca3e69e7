"""Deadlines of one instant are processed a piece at a time, and none of them is forgotten.

Work is counted in deadlines between two pieces; no time is measured.
"""

from collections.abc import Callable

import pytest

from flowguard.codec.packets import Will
from flowguard.node.node import Node
from flowguard.node.upkeep.due import ENDS_PIECE, LOOKS_PIECE
from tests.support.stage import Stage

COUNT = 5 * ENDS_PIECE + 3


def largest(stage: Stage, count_of: Callable[[Node], int]) -> int:
    """By how much it falls with a tick or a piece, at most; until nothing is left to do."""
    node = stage.node
    stage.hold_chores = True
    found, before = 0, count_of(node)
    node.tick(stage.now_s)
    stage.settle()
    for _ in range(1_000):
        found, before = max(found, before - count_of(node)), count_of(node)
        if not len(node.state.chores):
            stage.hold_chores = False
            return found
        node.tick(stage.now_s)
        assert len(node.state.chores) == 1, "the next tick begins before this one is worked off"
        node.state.chores.step(stage.now_s)
        stage.settle()
    raise AssertionError("it does not end")


@pytest.mark.parametrize("filters", [0, 3])
def test_sessions_that_expire_in_one_instant(version: int, filters: int) -> None:
    stage = Stage()
    for number in range(COUNT):
        client = stage.connect_durable(f"c{number}", session_expiry_interval=1)
        for filter in range(filters):
            client.subscribe(f"{number}/{filter}/+", qos=1)
        client.close()
    stage.connect("other", version=version)
    stage.now_s += 2
    assert largest(stage, lambda node: len(node.registry.sessions)) == ENDS_PIECE
    assert stage.node.counters.clients_expired == COUNT
    assert list(stage.node.registry.sessions) == ["other"]
    assert not len(stage.node.router.table)


def test_connections_that_are_late_in_one_instant(version: int) -> None:
    stage = Stage()
    reader = stage.connect("reader", version=version)
    reader.subscribe("gone", qos=1)
    for number in range(COUNT):
        stage.connect(f"c{number}", version=version, keep_alive_s=1, will=Will("gone", b"x", 1))
    stage.now_s += 2
    assert largest(stage, lambda node: node.counters.clients_connected) == ENDS_PIECE
    stage.settle()
    assert stage.node.counters.clients_connected == 1
    assert len(reader.publishes()) == COUNT


def test_who_is_not_late_is_looked_at_a_piece_at_a_time_and_stays(version: int) -> None:
    stage = Stage()
    count = 2 * LOOKS_PIECE + 1
    clients = [
        stage.connect(f"c{number}", version=version, keep_alive_s=10) for number in range(count)
    ]
    stage.now_s += 14
    for client in clients:
        client.send_bytes(b"\xc0\x00")
    stage.now_s += 2
    largest(stage, lambda node: node.counters.clients_connected)
    assert stage.node.counters.clients_connected == count
    stage.now_s += 14
    largest(stage, lambda node: node.counters.clients_connected)
    assert stage.node.counters.clients_connected == 0


def test_retained_messages_that_expire_in_one_instant() -> None:
    stage = Stage()
    client = stage.connect("c")
    for number in range(2 * LOOKS_PIECE + 7):
        client.publish(f"r/{number}", b"x", retain=True, message_expiry_interval=1)
    stage.now_s += 2
    assert largest(stage, lambda node: len(node.router.retained)) == LOOKS_PIECE
    assert not len(stage.node.router.retained)
