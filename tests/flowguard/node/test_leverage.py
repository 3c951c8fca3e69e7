"""A node counts the work for clients with more than one packet apart: windows can put it off."""

import pytest

from flowguard.codec.encoder import encode
from flowguard.session.inbound.packets import RUN_WORK
from flowguard.types import Publish
from tests.flowguard.node.test_protection import messages, slow
from tests.support.stage import Client, Stage


def share_of(stage: Stage) -> float:
    """Share of its clients' work that windows can put off."""
    window = stage.node.guard.window
    return window.movable_work / window.work


def publishes(count: int, qos: int) -> list[Publish]:
    return [Publish("a", b"x", qos, packet_id=n + 1 if qos else 0) for n in range(count)]


def burst(client: Client, count: int, qos: int) -> bytes:
    return b"".join(encode(packet, client.connection.version) for packet in publishes(count, qos))


def test_single_packets_are_work_that_no_window_puts_off() -> None:
    stage = Stage()
    stage.connect_durable("s").subscribe("a", qos=1)
    for number in range(20):
        stage.connect(f"p{number}").send(*publishes(1, 1))
    assert stage.node.guard.window.work >= 20 * (RUN_WORK + 1 + 2)
    assert stage.node.guard.window.movable_work == 0.0


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("count", [2, 80])
def test_packets_that_come_together_are_movable(qos: int, count: int) -> None:
    stage = Stage()
    stage.connect("s").subscribe("a", qos=qos)
    client = stage.connect("p")
    stage.node.guard.window.work = stage.node.guard.window.movable_work = 0.0
    client.connection.receive_data(burst(client, count, qos), stage.now_s)
    stage.settle()
    assert stage.node.guard.window.work >= RUN_WORK + 2 * count
    assert share_of(stage) == 1.0


def test_a_client_with_packets_in_process_is_movable_until_they_are_answered() -> None:
    stage = Stage()
    stage.connect_durable("s").subscribe("a", qos=1)
    client = stage.connect("p")
    stage.hold_commits = True
    client.connection.receive_data(burst(client, 10, 1), stage.now_s)
    begun = stage.node.guard.window.work
    assert stage.node.guard.window.movable_work == begun > 0.0
    stage.release_commits()
    assert stage.node.guard.window.work > begun + 10
    assert share_of(stage) > 0.8


def test_deliveries_are_work_of_their_publisher() -> None:
    stage = Stage()
    for number in range(30):
        stage.connect(f"s{number}").subscribe("a", qos=1)
    stage.node.guard.window.work = stage.node.guard.window.movable_work = 0.0
    stage.connect("p").send(*publishes(1, 1))
    assert stage.node.guard.window.work == RUN_WORK + 1 + 30
    assert stage.node.guard.window.movable_work == 0.0


def test_a_message_for_very_many_counts_piece_by_piece() -> None:
    stage = Stage()
    for number in range(1_200):
        stage.connect(f"s{number}").subscribe("a", qos=1)
    stage.node.guard.window.work = stage.node.guard.window.movable_work = 0.0
    publisher = stage.connect("p")
    publisher.send(*publishes(1, 1))
    stage.settle()
    assert stage.node.guard.window.work >= 1_200
    assert stage.node.guard.window.movable_work == 0.0


def test_what_was_missed_is_work_that_no_window_puts_off() -> None:
    stage = Stage()
    client = stage.connect_durable("s")
    client.subscribe("a", qos=1)
    client.close()
    publisher = stage.connect("p")
    for _ in range(30):
        publisher.send(*publishes(1, 1))
    stage.node.guard.window.work = stage.node.guard.window.movable_work = 0.0
    stage.connect_durable("s")
    stage.settle()
    assert stage.node.guard.window.work >= 30
    assert stage.node.guard.window.movable_work == 0.0


def test_a_tick_takes_what_was_counted_and_begins_anew() -> None:
    stage = Stage()
    stage.connect("p").send(*publishes(20, 1))
    assert stage.node.guard.window.work > 0.0
    stage.advance(0.1)
    assert stage.node.guard.window.work == 0.0
    assert stage.node.guard.grant.leverage == 1.0


def test_a_store_that_hangs_leaves_the_window_to_clients_with_one_packet_each() -> None:
    """No smaller window could put their work off (docs/explain/overload.md, "Leverage")."""
    stage, (client,) = slow({})
    client.send(*messages(1))
    stage.advance(3)
    assert stage.node.guard.window.limit == 100
    assert stage.node.guard.grant.leverage == 0.0
