"""A full queue of a shared subscription: which messages are dropped and which publishers wait, as
with a client's own queue."""

from typing import Any

import pytest

from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.stores import MemoryStore
from flowguard.types import Publish
from tests.flowguard.node.ledger import check_budgets
from tests.support.stage import Client, Stage

FILTER = "$share/g/a"
TTL_S = 5


def stage_with(store: MemoryStore, policy: str, messages_max: int = 4, **session: Any) -> Stage:
    limits = {"queue_policy": policy, "queue_messages_max": messages_max, **session}
    return Stage({"session": limits}, store=store)


def member(stage: Stage, name: str, **properties: int) -> Client:
    client = stage.connect_durable(name, **properties)
    client.subscribe(FILTER, qos=1)
    return client


def absent(stage: Stage) -> None:
    """Connect both members once and disconnect them."""
    for name in ("one", "two"):
        member(stage, name).close()


def publish(stage: Stage, *numbers: int, together: bool = False, **properties: Any) -> Client:
    """One by one, or in one chunk, so that one commit has them all."""
    publisher = stage.connect("p")
    if together:
        packets = [Publish("a", b"%d" % n, 1, packet_id=1 + n) for n in numbers]
        publisher.send(*packets)
    else:
        for number in numbers:
            publisher.publish("a", b"%d" % number, qos=1, **properties)
    return publisher


def acknowledged(client: Client) -> int:
    return sum(isinstance(packet, Puback) for packet in client.take())


def numbers(client: Client) -> list[int]:
    return [int(message.payload) for message in client.publishes()]


def check(stage: Stage) -> None:
    """The budgets equal the sums of their objects, and the store has the waiting messages."""
    check_budgets(stage.node, [])
    stored = {record.client_id: record for record in stage.store.sessions()}
    for queue in stage.node.router.queues._queues.values():
        record = stored[queue.client_id]
        assert record.unsettled_count == queue.queue.count
        assert record.unsettled_bytes == queue.queue.size_bytes


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize(
    ("policy", "left"), [("drop-new", [0, 1, 2, 3]), ("drop-oldest", [6, 7, 8, 9])]
)
def test_a_full_queue_keeps_the_first_or_the_last(
    store: MemoryStore, policy: str, left: list[int], together: bool
) -> None:
    stage = stage_with(store, policy)
    absent(stage)
    publish(stage, *range(7), together=together)
    publish(stage, *range(7, 10), together=together)
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 6}
    check(stage)
    assert numbers(stage.connect_durable("two")) == left
    check(stage)


@pytest.mark.parametrize("policy", ["drop-new", "drop-oldest", "block"])
def test_what_has_expired_makes_room_first(store: MemoryStore, policy: str) -> None:
    stage = stage_with(store, policy)
    absent(stage)
    publish(stage, 0, 1, 2, message_expiry_interval=TTL_S)
    publish(stage, 3)
    stage.advance(TTL_S + 1)
    assert acknowledged(publish(stage, 4)) == 1
    check(stage)
    assert numbers(stage.connect_durable("one")) == [3, 4]
    assert stage.node.counters.dropped == {Reason.MESSAGE_EXPIRED: 3}
    check(stage)


def test_a_dead_letter_names_the_shared_subscription(store: MemoryStore) -> None:
    stage = stage_with(store, "drop-new", dead_letter_topic="dead")
    undertaker = stage.connect("u")
    undertaker.subscribe("dead/#", qos=1)
    absent(stage)
    publish(stage, 0, message_expiry_interval=TTL_S)
    stage.advance(TTL_S + 1)
    assert numbers(stage.connect_durable("one")) == []
    (letter,) = undertaker.publishes()
    assert letter.topic == "dead/a"
    assert ("dead-letter-client", FILTER) in letter.properties.user_properties
    check(stage)


def test_more_than_a_page_that_has_expired_holds_nothing_up(store: MemoryStore) -> None:
    stage = stage_with(store, "drop-new", messages_max=2_000)
    absent(stage)
    publish(stage, *range(600), message_expiry_interval=TTL_S)
    publish(stage, 600)
    stage.advance(TTL_S + 1)
    assert numbers(stage.connect_durable("one")) == [600]
    assert stage.node.counters.dropped == {Reason.MESSAGE_EXPIRED: 600}
    check(stage)


def test_a_publisher_waits_for_room_in_the_queue_of_a_group(store: MemoryStore) -> None:
    stage = stage_with(store, "block", messages_max=1)
    members = [member(stage, name, receive_maximum=1) for name in ("one", "two")]
    publisher = publish(stage, *range(5))
    assert acknowledged(publisher) == 3, "two are with the members, one waits for them"
    (message,) = members[1].publishes(acknowledge=False)
    members[1].send(Puback(message.packet_id))
    assert acknowledged(publisher) == 1
    assert numbers(members[1]) == [2, 3, 4]
    assert acknowledged(publisher) == 1
    assert not stage.node.counters.dropped


def test_nobody_waits_for_room_longer_than_block_s(store: MemoryStore) -> None:
    stage = stage_with(store, "block", messages_max=1, block_s=30)
    absent(stage)
    publisher = publish(stage, 0, 1)
    assert acknowledged(publisher) == 1
    stage.advance(31)
    assert acknowledged(publisher) == 1
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 1}
    check(stage)
