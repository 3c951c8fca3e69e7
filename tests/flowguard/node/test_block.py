"""`session.queue_policy = "block"`: a PUBLISH waits until all queues that it enters have
capacity."""

import pytest

from flowguard.codec.packets import Disconnect, Pingreq, Pingresp, Puback, Suback, Subscribe, Will
from flowguard.flow import Reason
from flowguard.node.connect.authentication import Hooks
from flowguard.session.inbound.input import LOOKAHEAD_BYTES
from flowguard.stores import MemoryStore
from flowguard.types import MQTT_311, Publish, ReasonCode, SubscriptionOptions
from tests.flowguard.node.blocking import (
    KIB,
    acknowledged,
    blocking,
    check,
    fill,
    slow,
    take_one,
    waiting,
)
from tests.support.stage import Stage

# --- waiting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_without_room_is_not_acknowledged_until_there_is_room(
    store: MemoryStore, version: int, qos: int
) -> None:
    stage = blocking(store)
    subscriber = slow(stage)
    fill(stage)
    publisher = stage.connect("p", version=version)
    packet_id = publisher.publish("a", b"new", qos=qos)
    assert publisher.take() == []
    assert stage.node.state.paused_count == 1
    check(stage)
    take_one(subscriber)
    assert acknowledged(publisher) == [packet_id]
    assert stage.node.state.paused_count == 0
    assert not stage.node.counters.dropped
    check(stage)


def test_a_message_whose_wait_is_over_reaches_nobody(store: MemoryStore) -> None:
    """Neither other subscribers nor the retained messages."""
    stage = blocking(store)
    subscriber = slow(stage)
    fill(stage)
    other = stage.connect("other")
    other.subscribe("a", qos=1)
    publisher = stage.connect("p")
    publisher.publish("a", b"new", qos=1, retain=True)
    late = stage.connect("late")
    late.subscribe("a", qos=0)
    assert other.publishes() == late.publishes() == []
    take_one(subscriber)
    assert [message.payload for message in other.publishes()] == [b"new"]
    assert [message.payload for message in late.publishes()] == [b"new"]


def test_nothing_that_follows_is_handled_and_its_order_stays(store: MemoryStore) -> None:
    stage = blocking(store)
    subscriber = slow(stage)
    other = stage.connect("other")
    other.subscribe("b", qos=1)
    fill(stage)
    publisher = stage.connect("p")
    publisher.send(
        Publish("a", b"1", 1, packet_id=1),
        Publish("b", b"2"),
        Publish("b", b"3", 1, packet_id=2),
        Subscribe(3, (("c", SubscriptionOptions(1)),)),
        Publish("a", b"4", 1, packet_id=4),
    )
    publisher.publish("b", b"5")
    assert publisher.take() == other.publishes() == []
    take_one(subscriber)
    packets = [type(packet) for packet in publisher.take()]
    assert packets == [Puback, Puback, Suback]
    assert [message.payload for message in other.publishes()] == [b"2", b"3"]
    take_one(subscriber)
    assert [message.payload for message in other.publishes()] == [b"5"]
    assert [message.payload for message in subscriber.publishes()] == [b"full 2", b"1", b"4"]


def test_a_single_packet_waits_like_one_of_many(store: MemoryStore) -> None:
    """A packet that arrives alone takes a shortcut, which must not bypass the queue."""
    stage = blocking(store)
    subscriber = slow(stage)
    fill(stage)
    publisher = stage.connect("p", version=MQTT_311)
    received = stage.node.counters.messages_received
    for number in range(1, 4):
        publisher.send(Publish("a", b"%d" % number, 1, packet_id=number))
    assert acknowledged(publisher) == []
    for number in range(1, 4):
        take_one(subscriber)
        assert acknowledged(publisher) == [number]
    acknowledgements = 3
    assert stage.node.counters.messages_received == received + 3 + acknowledgements


def test_the_control_lane_goes_on(store: MemoryStore) -> None:
    stage = blocking(store)
    subscriber = slow(stage)
    fill(stage)
    publisher = stage.connect("p", receive_maximum=1)
    publisher.subscribe("to p", qos=1)
    for payload in (b"1", b"2"):
        stage.connect("q").publish("to p", payload, qos=1)
    publisher.publish("a", b"new", qos=1)
    publisher.send(Pingreq())
    assert isinstance(publisher.expect(Pingresp), Pingresp)
    assert [message.payload for message in publisher.publishes()] == [b"1", b"2"]
    assert acknowledged(publisher) == []
    take_one(subscriber)
    assert len(acknowledged(publisher)) == 1


def test_its_socket_is_not_read_beyond_the_look_ahead() -> None:
    stage = blocking()
    subscriber = slow(stage)
    fill(stage)
    publisher = stage.connect("p")
    publisher.publish("a", b"new", qos=1)
    for _ in range(3):
        publisher.publish("b", bytes(LOOKAHEAD_BYTES // 2))
    assert not publisher.connection.wants_read
    take_one(subscriber)
    assert publisher.connection.wants_read


def test_keep_alive_is_suspended_while_it_waits(version: int) -> None:
    stage = blocking(block_s=1_000)
    subscriber = slow(stage)
    fill(stage)
    publisher = stage.connect("p", version=version, keep_alive_s=10)
    publisher.publish("a", b"new", qos=1)
    stage.advance(100)
    assert not publisher.is_closed
    take_one(subscriber)
    assert len(acknowledged(publisher)) == 1
    stage.advance(14)
    assert not publisher.is_closed, "its time starts when it goes on"
    stage.advance(3)
    assert publisher.is_closed


def test_qos_0_never_waits() -> None:
    stage = blocking()
    slow(stage)
    fill(stage)
    quick = stage.connect("quick")
    quick.subscribe("a")
    stage.connect("p").publish("a", b"new")
    assert [message.payload for message in quick.publishes()] == [b"new"]


def test_a_topic_alias_is_set_once_and_still_known(store: MemoryStore) -> None:
    stage = blocking(store)
    subscriber = slow(stage)
    fill(stage)
    publisher = stage.connect("p")
    publisher.publish("a", b"1", qos=1, topic_alias=1)
    publisher.publish("", b"2", qos=1, topic_alias=1)
    for _ in range(3):
        take_one(subscriber)
    assert [message.payload for message in subscriber.publishes()] == [b"1", b"2"]
    assert len(acknowledged(publisher)) == 2
    check(stage)


def test_a_repeated_qos_2_publish_that_waited_is_delivered_once(store: MemoryStore) -> None:
    stage = blocking(store)
    subscriber = slow(stage)
    fill(stage)
    publisher = stage.connect_durable("p")
    packet = Publish("a", b"new", 2, packet_id=7)
    publisher.send(packet)
    publisher.close()
    again = stage.connect_durable("p")
    again.send(Publish("a", b"new", 2, dup=True, packet_id=7))
    assert acknowledged(again) == []
    take_one(subscriber)
    assert acknowledged(again) == [7]
    again.send(Publish("a", b"new", 2, dup=True, packet_id=7))
    payloads = [message.payload for message in subscriber.publishes()]
    assert payloads == [b"full 1", b"full 2", b"new"]
    check(stage)


# --- the node's own messages ---------------------------------------------------------------------


def test_a_will_does_not_wait() -> None:
    stage = blocking()
    slow(stage)
    fill(stage)
    stage.connect("w", will=Will("a", b"will", 1)).close()
    assert stage.node.counters.wills_published == 1
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 1}


# --- who waits leaves ----------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "take over", "DISCONNECT"])
def test_what_a_client_that_left_was_waiting_with_never_happened(
    store: MemoryStore, end: str
) -> None:
    stage = blocking(store)
    subscriber = slow(stage)
    publisher = waiting(stage, topic_alias=1)
    publisher.publish("a", b"second", qos=2)
    if end == "close":
        publisher.close()
    elif end == "take over":
        stage.connect("p")
    else:
        publisher.disconnect()
    assert publisher.is_closed
    assert stage.node.state.paused_count == 0
    payloads = [message.payload for message in subscriber.publishes()]
    assert payloads == [b"first", b"full 1", b"full 2"]
    check(stage)


@pytest.mark.parametrize("behind", ["held", "buffered"])
def test_a_disconnect_behind_it_is_heard_when_the_client_has_left(behind: str) -> None:
    """The last message is lost, but the will is published, because the client has died."""
    stage = blocking()
    slow(stage)
    fill(stage)
    watcher = stage.connect("watcher")
    watcher.subscribe("will")
    publisher = stage.connect("p", will=Will("will", b"died"))
    if behind == "held":
        publisher.send(Publish("a", b"new", 1, packet_id=1), Disconnect())
    else:
        publisher.send(Publish("a", b"new", 1, packet_id=1))
        publisher.send(Disconnect())
    publisher.close()
    assert publisher.is_closed
    assert watcher.publishes() == []


def test_without_one_the_will_is_published() -> None:
    stage = blocking()
    slow(stage)
    fill(stage)
    watcher = stage.connect("watcher")
    watcher.subscribe("will")
    publisher = stage.connect("p", will=Will("will", b"died"))
    publisher.publish("a", b"new", qos=1)
    publisher.close()
    assert [message.payload for message in watcher.publishes()] == [b"died"]


# --- in line -------------------------------------------------------------------------------------


def test_who_waits_longest_goes_first_and_nobody_overtakes() -> None:
    stage = blocking()
    subscriber = slow(stage)
    fill(stage)
    publishers = [stage.connect(f"p{number}") for number in range(5)]
    for number, publisher in enumerate(publishers):
        publisher.publish("a", b"%d" % number, qos=1)
    for number, publisher in enumerate(publishers):
        take_one(subscriber)
        assert len(acknowledged(publisher)) == 1
        publisher.publish("a", b"again %d" % number, qos=1)
        assert acknowledged(publisher) == []
    expected = [b"%d" % number for number in range(3, 5)]
    expected += [b"again %d" % number for number in range(5)]
    payloads = [message.payload for message in subscriber.publishes()]
    assert payloads[-len(expected) :] == expected
    assert all(len(acknowledged(publisher)) == 1 for publisher in publishers)


def test_who_waits_for_a_large_place_is_not_passed_by_small_ones() -> None:
    stage = blocking(messages_max=100, queue_bytes_max=4 * KIB, packet_size_max=4 * KIB)
    subscriber = slow(stage)
    filler = stage.connect("filler")
    for _ in range(3):
        filler.publish("a", bytes(KIB), qos=1)
    large, small = stage.connect("large"), stage.connect("small")
    large.publish("a", bytes(2 * KIB), qos=1)
    small.publish("a", b"small", qos=1)
    assert acknowledged(large) == acknowledged(small) == []
    payloads = [message.payload for message in subscriber.publishes()]
    assert [len(payload) for payload in payloads] == [5, KIB, KIB, KIB, 2 * KIB, 5]


def test_who_has_waited_longest_is_before_those_in_the_line_of_its_next_queue() -> None:
    stage = blocking(messages_max=100, queue_bytes_max=4 * KIB, packet_size_max=4 * KIB)
    one, two = slow(stage, "one"), slow(stage, "two")
    two.subscribe("b", qos=1)
    filler = stage.connect("filler")
    for _ in range(3):
        filler.publish("a", bytes(KIB), qos=1)
    longest, later = stage.connect("longest"), stage.connect("later")
    longest.publish("a", bytes(KIB), qos=1)
    later.publish("b", bytes(3 * KIB), qos=1)
    assert len(acknowledged(filler)) == 3
    assert acknowledged(longest) == acknowledged(later) == []
    take_one(two)
    assert acknowledged(later) == [], "its message is too large still"
    take_one(one)
    assert len(acknowledged(longest)) == 1
    assert acknowledged(later) == []


def test_one_with_many_subscribers_waits_for_each_of_them() -> None:
    stage = blocking()
    subscribers = [slow(stage, name) for name in ("one", "two", "three")]
    publisher = waiting(stage)
    for subscriber in subscribers:
        assert acknowledged(publisher) == []
        assert take_one(subscriber) == b"first"
    assert len(acknowledged(publisher)) == 1


def test_publishers_that_wait_for_the_same_two_queues_all_get_through() -> None:
    stage = blocking(messages_max=1)
    one, two = slow(stage, "one"), slow(stage, "two")
    publishers = [stage.connect(f"p{number}") for number in range(6)]
    for publisher in publishers:
        for _ in range(3):
            publisher.publish("a", b"x", qos=1)
    while messages := one.publishes(acknowledge=False) + two.publishes(acknowledge=False):
        for client in (one, two):
            session = client.connection.session
            assert session is not None
            client.send(*map(Puback, list(session.inflight.messages)))
        assert messages
    assert [len(acknowledged(publisher)) for publisher in publishers] == [3] * 6
    assert not stage.node.counters.dropped


# --- who may -------------------------------------------------------------------------------------


class NobodyButFiller:
    """An authorizer."""

    def may_publish(self, client_id: str, topic: str) -> bool:
        return client_id == "filler"

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        return True


def test_who_may_not_publish_does_not_wait_to_be_told() -> None:
    stage = Stage(
        {"session": {"queue_policy": "block", "queue_messages_max": 2}},
        hooks=Hooks(authorizer=NobodyButFiller()),
    )
    slow(stage)
    fill(stage)
    publisher = stage.connect("p")
    publisher.publish("a", b"new", qos=1)
    assert publisher.expect(Puback).reason_code == ReasonCode.NOT_AUTHORIZED
