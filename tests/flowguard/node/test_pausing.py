"""Pausing and resuming, step by step: what waits, what goes on, what wakes whom."""

import pytest

from flowguard.codec.packets import Pingreq, Pingresp
from flowguard.session.inbound.input import LOOKAHEAD_BYTES
from flowguard.types import MQTT_5, MQTT_311, Publish
from tests.support.readings import acknowledged
from tests.support.stage import Client, Stage


def flooded(settings: dict[str, int], messages_count: int, version: int = MQTT_5) -> Client:
    """A client that has published into a store that hangs."""
    stage = Stage({"flow": settings, "session": {"receive_maximum": 1_000}})
    stage.connect_durable("s").subscribe("t", qos=1)
    client = stage.connect("p", version=version)
    stage.hold_commits = True
    client.send(*[Publish("t", b"", 1, packet_id=n) for n in range(1, messages_count + 1)])
    return client


def test_no_more_packets_than_the_window_are_admitted_and_the_rest_follows_in_order() -> None:
    client = flooded({"window_max": 3}, 10)
    assert client.stage.node.counters.publish_received == 3
    client.stage.release_commits()
    assert acknowledged(client) == list(range(1, 11))


def test_each_finished_packet_lets_the_next_one_in() -> None:
    client = flooded({"window_max": 3}, 10)
    stage = client.stage
    for admitted in (6, 9, 10):
        assert stage.finish_commit()
        assert stage.node.counters.publish_received == admitted


def test_a_window_that_shrinks_holds_back_until_enough_is_done() -> None:
    client = flooded({"window_max": 10}, 30)
    client.stage.node.guard.window.resize(2)
    assert client.stage.node.counters.publish_received == 10
    client.stage.release_commits()
    assert acknowledged(client) == list(range(1, 31))


def test_packets_that_come_one_by_one_find_the_same_window() -> None:
    client = flooded({"window_max": 3}, 0)
    for n in range(1, 11):
        client.send(Publish("t", b"", 1, packet_id=n))
    assert client.stage.node.counters.publish_received == 3
    client.stage.release_commits()
    assert acknowledged(client) == list(range(1, 11))


def test_a_ping_overtakes_what_waits() -> None:
    client = flooded({"window_max": 1}, 10)
    client.send(Pingreq())
    assert [type(packet) for packet in client.take()] == [Pingresp]


def test_pings_of_a_client_that_a_full_journal_paused_cost_nothing() -> None:
    client = flooded({"journal_ops_max": 1}, 200)
    for _ in range(100):
        client.send(Pingreq())
    assert len(client.take()) == 100
    assert len(client.stage.node.guard.starved) == 1
    client.stage.release_commits()
    assert acknowledged(client) == list(range(1, 201))


def test_a_full_journal_also_wakes_those_who_had_nothing_in_process() -> None:
    client = flooded({"journal_ops_max": 1}, 200)
    other = client.stage.open()
    assert client.stage.node.guard.window.closed
    client.stage.hold_commits = False
    client.stage.settle()
    other = client.stage.connect("other")
    other.publish("t", qos=1)
    assert acknowledged(other) == [1]


@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
def test_keep_alive_does_not_count_while_we_do_not_read(version: int) -> None:
    stage = Stage({"flow": {"window_max": 1}})
    stage.connect_durable("s").subscribe("t", qos=1)
    client = stage.connect("p", version=version, keep_alive_s=10)
    stage.hold_commits = True
    message = Publish("t", bytes(LOOKAHEAD_BYTES // 2), 1)
    for packet_id in range(1, 5):
        message = Publish("t", message.payload, 1, packet_id=packet_id)
        client.send(message)
    assert not client.connection.wants_read
    stage.advance(100)
    assert not client.is_closed
    stage.release_commits()
    assert client.connection.wants_read
    stage.advance(14)
    assert not client.is_closed, "its time starts when we read again"
    stage.advance(3)
    assert client.is_closed


def test_a_client_that_leaves_while_it_is_paused_is_worked_off() -> None:
    """It sent, and closed its end: what it sent counts."""
    client = flooded({"window_max": 3}, 10)
    client.close()
    client.stage.release_commits()
    assert client.stage.node.counters.publish_received == 10
    assert client.is_closed
    assert len(client.stage.connect_durable("s").publishes()) == 10
