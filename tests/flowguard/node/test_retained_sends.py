"""Retained messages for new subscriptions: work without end, done in slices, bounded in memory."""

import pytest

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Subscribe, Unsubscribe
from flowguard.flow import Reason
from flowguard.session.inbound.acknowledging import on_pubcomp
from flowguard.session.outbound import retained_sends
from flowguard.types import MQTT_5, Publish, SubscriptionOptions
from tests.support.stage import Client, Stage

TOPICS = 5_000


def stage_with_topics(count: int = TOPICS) -> Stage:
    stage = Stage()
    for number in range(count):
        stage.node.router.retained.put(Publish(f"t/{number}/x", b"r" * 20, 1), float("inf"))
    return stage


def subscribe(client: Client, *filters: str, qos: int = 1) -> None:
    """SUBSCRIBE, decoded and answered, before anything else has its turn."""
    options = SubscriptionOptions(qos)
    packet = Subscribe(1, tuple((filter, options) for filter in filters))
    client.connection.receive_data(encode(packet, MQTT_5), client.stage.now_s)


def turn(client: Client) -> int:
    """One slice of the loop, in which only this client is sent to; how many messages it brought."""
    stage, node = client.stage, client.stage.node
    sent = node.counters.publish_sent
    stage.turns.end_slice(stage.now_s)
    assert client.connection in node.state.dirty or not client.connection.outbound.has_more
    return node.counters.publish_sent - sent


@pytest.mark.slow
@pytest.mark.parametrize("filters", [("+/+/none",), ("t/#",), ("+/+/none", "t/+/none") * 20])
def test_a_search_takes_many_turns_and_ends(filters: tuple[str, ...]) -> None:
    stage = stage_with_topics(30_000)
    client = stage.connect("c", receive_maximum=65_535)
    subscribe(client, *dict.fromkeys(filters), qos=0)
    turns = 0
    while client.connection.outbound.has_more:
        assert turn(client) <= retained_sends.STEPS_MAX
        turns += 1
    assert turns > 3


def test_messages_nobody_may_be_sent_are_dropped_in_slices() -> None:
    stage = stage_with_topics()
    client = stage.connect("c", maximum_packet_size=20)
    client.inbox.clear()
    subscribe(client, "#", qos=1)
    turns = 0
    while client.connection.outbound.has_more:
        turn(client)
        turns += 1
    assert stage.node.counters.dropped == {Reason.PACKET_TOO_LARGE: TOPICS}
    assert turns >= TOPICS / retained_sends.STEPS_MAX


def test_acknowledgements_buy_no_extra_turns() -> None:
    stage = stage_with_topics(30_000)
    stage.node.router.retained.put(Publish("a", b"first", 1), float("inf"))
    client = stage.connect("c")
    subscribe(client, "+/+/none")
    client.connection.outbound.pump(stage.now_s)
    dirty = stage.node.state.dirty.count(client.connection)
    for _ in range(10):
        on_pubcomp(client.connection.outbound, 1, stage.now_s)
    assert stage.node.state.dirty.count(client.connection) == dirty


def test_subscribing_again_starts_again_and_takes_no_more_room() -> None:
    stage = stage_with_topics(3)
    client = stage.connect("c")
    client.reads = False
    for _ in range(100):
        subscribe(client, "t/#")
    client.read_again()
    assert len(client.publishes()) == 3


def test_who_has_unsubscribed_is_sent_no_more_of_it() -> None:
    stage = stage_with_topics(500)
    client = stage.connect("c", receive_maximum=1)
    client.subscribe("t/#", qos=1)
    client.send(Unsubscribe(2, ("t/#",)))
    assert len(client.publishes()) == 1
    assert not client.connection.outbound.has_more


def test_a_subscription_that_ended_before_it_was_durable_is_sent_nothing() -> None:
    stage = stage_with_topics(3)
    client = stage.connect_durable("c")
    stage.hold_commits = True
    subscribe(client, "t/#")
    client.send(Unsubscribe(2, ("t/#",)))
    stage.release_commits()
    assert client.publishes() == []
