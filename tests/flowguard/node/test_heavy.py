"""Heavy packets: large ones and those for many weigh more, and have to fit beside others."""

from flowguard.codec.packets import Puback
from flowguard.types import MQTT_311, Publish
from tests.flowguard.node.test_protection import acknowledged, in_process, messages, slow
from tests.support.stage import Client, Stage


def test_a_large_packet_takes_the_places_of_several() -> None:
    stage, (client,) = slow({"window_max": 10, "cost_bytes": 1_000})
    client.send(*messages(10, 2_500))
    assert in_process(client) == 9  # Three each: one place is left, which the fourth does not fit.
    assert stage.node.counters.publish_received == 3
    stage.release_commits()
    assert acknowledged(client) == list(range(1, 11))
    assert in_process(client) == 0


def test_a_packet_heavier_than_the_window_is_possible_all_the_same() -> None:
    stage, (client,) = slow({"window_max": 10, "cost_bytes": 1})
    client.send(*messages(3, 5_000))
    assert stage.node.counters.publish_received == 1
    stage.release_commits()
    assert acknowledged(client) == [1, 2, 3]


def test_many_deliveries_take_the_places_of_several() -> None:
    stage, (client,) = slow({"window_max": 10, "cost_deliveries": 2})
    for number in range(5):
        stage.hold_commits = False
        stage.connect_durable(f"s{number}").subscribe("t", qos=1)
    stage.hold_commits = True
    client.send(*messages(10))
    assert stage.node.counters.publish_received == 2  # Six deliveries weigh three above one.
    stage.release_commits()
    assert acknowledged(client) == list(range(1, 11))


def test_what_follows_a_heavy_packet_in_its_batch_keeps_its_order() -> None:
    stage, (client,) = slow({"window_max": 4, "cost_bytes": 100})
    sizes = [0, 250, 0, 0, 350, 0, 0, 0, 0]
    client.send(*[Publish("t", bytes(size), 1, packet_id=n) for n, size in enumerate(sizes, 1)])
    stage.release_commits()
    assert acknowledged(client) == list(range(1, 10))


def test_acknowledgements_behind_a_heavy_packet_do_not_wait_for_its_room() -> None:
    stage, (client,) = slow({"window_max": 1})
    stage.hold_commits = False
    client.subscribe("own", qos=1)
    other = stage.connect("other")
    other.publish("own", b"1", qos=1)
    received = client.publishes(acknowledge=False)[0]
    session = stage.node.registry.sessions["p0"]
    assert session.inflight.messages
    stage.hold_commits = True
    client.send(*messages(2), Puback(received.packet_id))
    assert not session.inflight.messages
    assert in_process(client) == 1


def full_queue(block_s: float) -> tuple[Stage, Client]:
    """A full queue whose subscriber takes one message at a time; publishers wait."""
    session = {"queue_policy": "block", "queue_messages_max": 2, "block_s": block_s}
    stage = Stage({"flow": {"window_max": 10, "cost_bytes": 1_000}, "session": session})
    subscriber = stage.connect_durable("full", receive_maximum=1)
    subscriber.subscribe("q", qos=1)
    stage.connect("filler", version=MQTT_311).send(*messages(3, topic="q"))
    return stage, subscriber


def test_who_waits_for_a_queue_keeps_its_place_while_its_packet_does_not_fit() -> None:
    stage, subscriber = full_queue(block_s=30.0)
    first, second = (stage.connect(name, version=MQTT_311) for name in ("first", "second"))
    stage.hold_commits = True
    retained = [Publish("r", b"x", 1, True, packet_id=n) for n in range(1, 4)]
    first.send(*retained, Publish("q", b"1" + bytes(8_500), 1, packet_id=4))
    second.send(Publish("q", b"2", 1, packet_id=5))
    received = subscriber.publishes()
    assert in_process(first) == 3
    stage.release_commits()
    for _ in range(6):
        stage.advance(0.1)
        received += subscriber.publishes()
    assert [message.payload[:1] for message in received] == [b"", b"", b"", b"1", b"2"]
