"""Events that free capacity for a waiting PUBLISH (`session.queue_policy = "block"`), or end its
wait."""

from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.records import DELIVERY_BYTES
from flowguard.stores import MemoryStore
from flowguard.types import SESSION_NEVER_EXPIRES
from tests.flowguard.node.blocking import (
    BLOCK_S,
    KIB,
    acknowledged,
    blocking,
    check,
    slow,
    take_one,
    waiting,
)
from tests.support.stage import Client, Stage

MIB = 1024 * KIB


def assert_room_after_five_seconds(stage: Stage, publisher: Client) -> None:
    stage.advance(4)
    assert acknowledged(publisher) == []
    stage.advance(2)
    assert len(acknowledged(publisher)) == 1
    check(stage)


# --- events that free capacity -------------------------------------------------------------------


def test_what_expires_makes_room(store: MemoryStore) -> None:
    stage = blocking(store)
    slow(stage)
    for interval_s in (5, 1_000):
        stage.connect("q").publish("a", b"x", qos=1, message_expiry_interval=interval_s)
    publisher = stage.connect("p")
    publisher.publish("a", b"new", qos=1)
    assert_room_after_five_seconds(stage, publisher)
    assert stage.node.counters.dropped == {Reason.MESSAGE_EXPIRED: 1}


def test_what_expires_while_its_client_is_away_makes_room(store: MemoryStore) -> None:
    stage = blocking(store, messages_max=9)
    slow(stage).close()
    filler = stage.connect("q")
    for number in range(9):
        interval_s = 5 if number == 7 else 1_000
        filler.publish("a", b"x", qos=1, message_expiry_interval=interval_s)
    publisher = stage.connect("p")
    publisher.publish("a", b"new", qos=1)
    assert_room_after_five_seconds(stage, publisher)


def test_the_end_of_the_session_makes_room(store: MemoryStore) -> None:
    stage = blocking(store)
    slow(stage, session_expiry_interval=5).close()
    assert_room_after_five_seconds(stage, waiting(stage))


def test_who_unsubscribes_is_not_waited_for(store: MemoryStore) -> None:
    stage = blocking(store)
    subscriber = slow(stage)
    publisher = waiting(stage)
    subscriber.unsubscribe("a")
    assert len(acknowledged(publisher)) == 1
    assert [m.payload for m in subscriber.publishes()] == [b"first", b"full 1", b"full 2"]


def test_a_subscriber_that_lowers_its_qos_to_0_is_not_waited_for(store: MemoryStore) -> None:
    stage = blocking(store)
    subscriber = slow(stage)
    publisher = waiting(stage)
    subscriber.subscribe("a", qos=0)
    assert len(acknowledged(publisher)) == 1


def test_a_client_that_comes_back_makes_room(store: MemoryStore) -> None:
    stage = blocking(store)
    slow(stage).close()
    publisher = waiting(stage)
    subscriber = stage.connect_durable("s")
    assert len(acknowledged(publisher)) == 1
    payloads = [message.payload for message in subscriber.publishes()]
    assert payloads == [b"first", b"full 1", b"full 2", b"new"]


def test_room_in_bytes_is_waited_for_as_well() -> None:
    stage = blocking(messages_max=100, queue_bytes_max=2 * KIB, packet_size_max=2 * KIB)
    subscriber = slow(stage)
    publisher = stage.connect("p")
    for number in range(1, 4):
        publisher.publish("a", b"%d" % number + bytes(KIB - DELIVERY_BYTES - 2), qos=1)
    assert acknowledged(publisher) == [1, 2]
    take_one(subscriber)
    assert acknowledged(publisher) == [3]


def test_room_of_the_whole_node_is_waited_for_as_well() -> None:
    stage = Stage(
        {
            "session": {"queue_policy": "block", "queue_bytes_max": MIB},
            "node": {"queue_bytes_max": MIB},
        }
    )
    other = stage.connect_durable("other")
    other.subscribe("b", qos=1)
    other.close()
    subscriber = slow(stage)
    stage.connect("q").publish("b", bytes(700 * KIB), qos=1)
    publisher = stage.connect("p")
    publisher.publish("a", bytes(200 * KIB), qos=1)
    assert acknowledged(publisher) == []
    assert len(stage.connect_durable("other").publishes()) == 1
    assert len(acknowledged(publisher)) == 1
    assert len(subscriber.publishes()) == 2


def test_a_place_is_kept_from_routing_on_for_sessions_without_a_store_too() -> None:
    """Messages of other publishers that are in the journal count."""
    stage = blocking(messages_max=2)
    stage.connect_durable("durable").subscribe("a", qos=1)
    client = stage.connect("s", receive_maximum=1)
    client.subscribe("a", qos=1)
    publishers = [stage.connect(f"p{number}") for number in range(5)]
    stage.hold_commits = True
    for publisher in publishers:
        publisher.publish("a", b"x", qos=1)
    assert stage.node.state.paused_count == 3
    stage.release_commits()
    assert [len(acknowledged(publisher)) for publisher in publishers] == [1, 1, 1, 0, 0]
    assert len(client.publishes()) == 5
    assert not stage.node.counters.dropped
    check(stage)


def test_a_message_that_never_fits_does_not_wait() -> None:
    stage = blocking(queue_bytes_max=2 * KIB, packet_size_max=2 * KIB)
    slow(stage)
    publisher = stage.connect("p")
    publisher.publish("a", bytes(2 * KIB - 100), qos=1)
    assert len(acknowledged(publisher)) == 1
    assert stage.node.counters.dropped == {Reason.QUEUE_BYTES: 1}


# --- every wait ends -----------------------------------------------------------------------------


def test_after_block_s_the_message_is_dropped_for_who_has_no_room(store: MemoryStore) -> None:
    stage = blocking(store)
    subscriber = slow(stage, session_expiry_interval=SESSION_NEVER_EXPIRES)
    other = stage.connect("other")
    other.subscribe("a", qos=1)
    publisher = waiting(stage)
    other.publishes()
    publisher.publish("a", b"second", qos=1)
    stage.advance(BLOCK_S - 1)
    assert other.publishes() == []
    stage.advance(1.2)
    assert [message.payload for message in other.publishes()] == [b"new"]
    assert len(acknowledged(publisher)) == 1
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 1}
    stage.advance(BLOCK_S - 1)
    assert acknowledged(publisher) == [], "the next message waits for itself"
    stage.advance(1.2)
    assert len(acknowledged(publisher)) == 1
    payloads = [message.payload for message in subscriber.publishes()]
    assert payloads == [b"first", b"full 1", b"full 2"]
    check(stage)


def test_a_client_that_fills_its_own_queue_goes_on_by_its_own_acknowledgements() -> None:
    stage = blocking()
    client = slow(stage, "p")
    for number in range(1, 6):
        client.publish("a", b"%d" % number, qos=1)
    assert len([packet for packet in client.inbox if isinstance(packet, Puback)]) == 2
    payloads = [message.payload for message in client.publishes()]
    assert payloads == [b"first", b"1", b"2", b"3", b"4", b"5"]


def test_a_publisher_that_waits_for_its_own_queue_goes_on_after_block_s() -> None:
    stage = blocking()
    client = slow(stage, "p")
    for number in range(1, 4):
        client.publish("a", b"%d" % number, qos=1)
    assert len(acknowledged(client)) == 2
    stage.advance(BLOCK_S + 1)
    assert len(acknowledged(client)) == 1
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 1}


def test_two_clients_that_wait_for_each_other_go_on_after_block_s() -> None:
    stage = blocking(messages_max=1)
    one, two = (stage.connect_durable(name, receive_maximum=1) for name in ("one", "two"))
    one.subscribe("to one", qos=1)
    two.subscribe("to two", qos=1)
    for _ in range(3):
        one.publish("to two", b"x", qos=1)
        two.publish("to one", b"x", qos=1)
    assert len(acknowledged(one)) == len(acknowledged(two)) == 2
    stage.advance(BLOCK_S + 1)
    assert len(acknowledged(one)) == len(acknowledged(two)) == 1


def test_a_message_waits_for_one_queue_after_the_other_no_longer_in_all() -> None:
    stage = blocking()
    one, two = slow(stage, "one"), slow(stage, "two")
    publisher = waiting(stage)
    stage.advance(BLOCK_S - 5)
    take_one(one)
    stage.advance(4)
    assert acknowledged(publisher) == []
    stage.advance(2)
    assert len(acknowledged(publisher)) == 1
    payloads = [message.payload for message in one.publishes()]
    assert payloads == [b"full 1", b"full 2", b"new"]
    assert [m.payload for m in two.publishes()] == [b"first", b"full 1", b"full 2"]


# --- shared subscriptions ------------------------------------------------------------------------


def test_a_shared_subscription_of_clean_sessions_has_room_while_one_member_has() -> None:
    stage = blocking(messages_max=1)
    members = [stage.connect(name, receive_maximum=1) for name in ("one", "two")]
    for member in members:
        member.subscribe("$share/g/a", qos=1)
    publisher = stage.connect("p")
    for _ in range(5):
        publisher.publish("a", b"x", qos=1)
    assert len(acknowledged(publisher)) == 4
    take_one(members[1])
    assert len(acknowledged(publisher)) == 1
    assert not stage.node.counters.dropped


def test_the_last_member_that_leaves_is_not_waited_for() -> None:
    stage = blocking(messages_max=1)
    member = stage.connect_durable("one", receive_maximum=1)
    member.subscribe("$share/g/a", qos=1)
    publisher = stage.connect("p")
    for _ in range(3):
        publisher.publish("a", b"x", qos=1)
    assert len(acknowledged(publisher)) == 2
    member.unsubscribe("$share/g/a")
    assert len(acknowledged(publisher)) == 1
