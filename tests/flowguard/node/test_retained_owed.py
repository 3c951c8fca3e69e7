"""Retained messages that are owed to a durable session: stored before they are sent."""

import pytest

from flowguard.codec.packets import Subscribe
from flowguard.types import MQTT_5, Publish, SubscriptionOptions
from tests.support.stage import Client, Stage, StoreOnDisk


def retain(stage: Stage, *topics: str, qos: int = 1, payload: bytes = b"kept") -> None:
    publisher = stage.connect()
    for topic in topics:
        publisher.publish(topic, payload, qos=qos, retain=True)


def ask(client: Client, *filters: str, qos: int = 1) -> None:
    """SUBSCRIBE, whatever the answer."""
    options = SubscriptionOptions(qos)
    client.send(Subscribe(1, tuple((filter, options) for filter in filters)))


# --- before they are sent --------------------------------------------------------------------


@pytest.mark.spec("MQTT-4.4.0-1", "v3:MQTT-4.4.0-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_retained_message_leaves_only_when_the_store_has_its_position(
    version: int, qos: int
) -> None:
    stage = Stage()
    retain(stage, "a", "b", qos=2)
    client = stage.connect_durable("s", version=version)
    stage.hold_commits = True
    ask(client, "+", qos=qos)
    assert stage.finish_commit()
    assert client.publishes() == []
    assert stage.finish_commit()
    sent = client.publishes(acknowledge=False)
    assert [entry.packet_id for entry in stage.store.fetch("s", 0, 10)] == [
        message.packet_id for message in sent
    ]
    assert len(sent) == 2


@pytest.mark.spec("MQTT-4.3.3-10", "v3:MQTT-4.4.0-1")
@pytest.mark.parametrize("commits", [1, 2, 3])
def test_no_crash_gives_the_identifier_of_a_retained_message_to_another(
    version: int, commits: int
) -> None:
    """A receiver that has sent PUBREC, and seen no PUBREL, takes it for the same message."""
    stage = Stage()
    retain(stage, "state", qos=2)
    client = stage.connect_durable("s", version=version)
    stage.hold_commits = True
    ask(client, "state", "command", qos=2)
    for _ in range(commits):
        stage.finish_commit()
    owned = {message.packet_id: message.topic for message in client.publishes(acknowledge=False)}
    stage.restart()
    client = stage.connect_durable("s", version=version)
    stage.connect("p").publish("command", b"open", qos=2)
    for message in client.publishes():
        assert owned.setdefault(message.packet_id, message.topic) == message.topic
    assert "command" in owned.values()


def test_one_that_is_overtaken_by_its_successor_comes_before_it() -> None:
    stage = Stage()
    retain(stage, "t", payload=b"old")
    client = stage.connect_durable("s")
    stage.hold_commits = True
    ask(client, "t")
    stage.finish_commit()
    stage.connect("p").send(Publish("t", b"new", 1, packet_id=1))
    stage.release_commits()
    assert [message.payload for message in client.publishes()] == [b"old", b"new"]


@pytest.mark.parametrize("queue_policy", ["drop-new", "drop-oldest", "block"])
@pytest.mark.parametrize("store", [None, StoreOnDisk])
def test_more_come_than_its_queue_may_have(
    queue_policy: str, store: type[StoreOnDisk] | None
) -> None:
    stage = Stage(
        {"session": {"queue_messages_max": 7, "queue_policy": queue_policy}},
        store=store() if store else None,
    )
    topics = [f"t/{number}" for number in range(100)]
    retain(stage, *topics)
    client = stage.connect_durable("s", receive_maximum=30)
    client.subscribe("t/#", qos=1)
    assert sorted(message.topic for message in client.publishes()) == sorted(topics)
    assert stage.node.counters.dropped == {}


def test_while_the_disk_is_full_they_wait_and_then_they_come() -> None:
    stage = Stage()
    retain(stage, "a", "b", qos=1)
    retain(stage, "c", qos=0)
    client = stage.connect_durable("s")
    stage.hold_commits = True
    ask(client, "#")
    stage.node.state.read_only = True
    stage.release_commits()
    assert client.publishes() == []
    stage.advance(0.3)
    assert client.publishes() == []
    stage.node.state.read_only = False
    stage.advance(0.1)
    assert sorted(message.topic for message in client.publishes()) == ["a", "b", "c"]
    assert not stage.node.state.later


def test_a_message_larger_than_a_queue_is_dropped_and_counted() -> None:
    stage = Stage({"session": {"queue_bytes_max": 9_000, "packet_size_max": 9_000}})
    retain(stage, "a", payload=b"x" * 8_900)
    retain(stage, "b")
    client = stage.connect_durable("s", version=MQTT_5)
    client.subscribe("#", qos=1)
    assert [message.topic for message in client.publishes()] == ["b"]
    assert stage.node.counters.dropped == {"queue_bytes": 1}
