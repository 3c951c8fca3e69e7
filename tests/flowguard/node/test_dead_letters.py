"""`session.dead_letter_topic`: what expires in a durable session is published again, once."""

from typing import Any

import pytest
from pydantic import ValidationError

from flowguard.codec.packets import Puback
from flowguard.config import Settings
from flowguard.flow import Reason
from flowguard.records import Append, Settle
from flowguard.stores import MemoryStore
from flowguard.types import Publish
from tests.flowguard.node.ledger import check_budgets, check_store
from tests.support.stage import Client, Stage

TTL_S = 5


def stage_with_dead_letters(store: MemoryStore | None = None, **session: Any) -> Stage:
    return Stage({"session": {"dead_letter_topic": "dead", **session}}, store=store)


def undertaker(stage: Stage) -> Client:
    """Return the subscriber to dead letters; its session is durable."""
    client = stage.connect_durable("u")
    client.subscribe("dead/#", qos=2)
    return client


def absent(stage: Stage) -> None:
    client = stage.connect_durable("s")
    client.subscribe("a/#", qos=1)
    client.close()


def expire(stage: Stage, topic: str = "a/b", payload: bytes = b"x", **properties: Any) -> None:
    """A message expires in the queue of `s`, and its turn comes."""
    properties.setdefault("message_expiry_interval", TTL_S)
    stage.connect("p").publish(topic, payload, qos=1, **properties)
    stage.advance(TTL_S + 1)
    stage.connect_durable("s")


def check(stage: Stage) -> None:
    check_budgets(stage.node, [])
    check_store(stage.node, stage.store)


def test_an_expired_message_comes_again_below_the_topic(store: MemoryStore) -> None:
    stage = stage_with_dead_letters(store)
    client = undertaker(stage)
    absent(stage)
    expire(
        stage,
        content_type="text",
        correlation_data=b"c",
        response_topic="r",
        user_properties=(("mine", "1"),),
    )
    (letter,) = client.publishes()
    assert (letter.topic, letter.payload, letter.qos) == ("dead/a/b", b"x", 1)
    properties = letter.properties
    assert properties.message_expiry_interval is None
    assert properties.content_type == "text"
    assert properties.correlation_data == b"c"
    assert properties.response_topic == "r"
    assert properties.user_properties == (
        ("mine", "1"),
        ("dead-letter-client", "s"),
        ("dead-letter-reason", "message_expired"),
    )
    counters = stage.node.counters
    assert counters.dead_letters == 1
    assert counters.dropped == {Reason.MESSAGE_EXPIRED: 1}
    check(stage)


def test_a_client_of_3_1_1_gets_them_without_their_properties() -> None:
    stage = stage_with_dead_letters()
    client = stage.connect("u", version=4)
    client.subscribe("dead/#", qos=1)
    absent(stage)
    expire(stage)
    (letter,) = client.publishes()
    assert (letter.topic, letter.payload) == ("dead/a/b", b"x")


def test_without_the_setting_nothing_is_published() -> None:
    stage = Stage()
    client = undertaker(stage)
    absent(stage)
    expire(stage)
    assert client.publishes() == []
    assert stage.node.counters.dead_letters == 0


def test_each_session_in_which_it_expires_is_told_apart(store: MemoryStore) -> None:
    stage = stage_with_dead_letters(store)
    client = undertaker(stage)
    for name in ("one", "two"):
        stage.connect_durable(name).subscribe("a/#", qos=1)
        stage.connect_durable(name).close()
    stage.connect("p").publish("a/b", b"x", qos=1, message_expiry_interval=TTL_S)
    stage.advance(TTL_S + 1)
    for name in ("two", "one"):
        stage.connect_durable(name)
    letters = client.publishes()
    names = [dict(each.properties.user_properties)["dead-letter-client"] for each in letters]
    assert names == ["two", "one"]


def test_a_message_of_a_session_that_is_not_durable_is_gone() -> None:
    stage = stage_with_dead_letters()
    client = undertaker(stage)
    slow = stage.connect("s", receive_maximum=1)
    slow.subscribe("a/#", qos=1)
    publisher = stage.connect("p")
    for _ in range(2):
        publisher.publish("a/b", b"x", qos=1, message_expiry_interval=TTL_S)
    stage.advance(TTL_S + 1)
    slow.publishes()
    assert stage.node.counters.dropped == {Reason.MESSAGE_EXPIRED: 1}
    assert client.publishes() == []


def test_what_was_sent_does_not_expire_any_more() -> None:
    stage = stage_with_dead_letters()
    client = undertaker(stage)
    slow = stage.connect_durable("s")
    slow.subscribe("a/#", qos=1)
    stage.connect("p").publish("a/b", b"x", qos=1, message_expiry_interval=TTL_S)
    slow.close()
    stage.advance(TTL_S + 1)
    assert len(stage.connect_durable("s").publishes()) == 1
    assert client.publishes() == []


def test_what_is_dropped_for_want_of_room_is_no_dead_letter(store: MemoryStore) -> None:
    stage = stage_with_dead_letters(store, queue_messages_max=1, queue_policy="drop-oldest")
    client = undertaker(stage)
    absent(stage)
    publisher = stage.connect("p")
    for _ in range(3):
        publisher.publish("a/b", b"x", qos=1)
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 2}
    assert client.publishes() == []


def test_making_room_makes_dead_letters_too(store: MemoryStore) -> None:
    stage = stage_with_dead_letters(store, queue_messages_max=3)
    client = undertaker(stage)
    absent(stage)
    publisher = stage.connect("p")
    for number in range(3):
        interval_s = {} if number == 1 else {"message_expiry_interval": TTL_S}
        publisher.publish("a/b", b"%d" % number, qos=1, **interval_s)
    stage.advance(TTL_S + 1)
    for number in range(3, 6):
        publisher.publish("a/b", b"%d" % number, qos=1)
    assert [letter.payload for letter in client.publishes()] == [b"0", b"2"]
    check(stage)


# --- no end of it --------------------------------------------------------------------------------


def test_a_dead_letter_does_not_die_again() -> None:
    stage = stage_with_dead_letters()
    client = undertaker(stage)
    client.close()
    publisher = stage.connect("p")
    publisher.publish("dead/by hand", b"x", qos=1, message_expiry_interval=TTL_S)
    stage.advance(TTL_S + 1)
    assert stage.connect_durable("u").publishes() == []
    assert stage.node.counters.dropped == {Reason.MESSAGE_EXPIRED: 1}
    assert stage.node.counters.dead_letters == 0


def test_dead_letters_that_make_room_among_expired_ones_come_to_an_end(
    store: MemoryStore,
) -> None:
    """Messages of the dead letters' subscriber expire as well, and become dead letters for
    itself."""
    stage = stage_with_dead_letters(store, queue_messages_max=5)
    client = stage.connect_durable("u")
    client.subscribe("dead/#", "a/#", qos=1)
    client.close()
    absent(stage)
    publisher = stage.connect("p")
    for number in range(5):
        publisher.publish("a/b", b"%d" % number, qos=1, message_expiry_interval=TTL_S)
    stage.advance(TTL_S + 1)
    publisher.publish("a/b", b"new", qos=1)
    stage.advance(1)
    assert stage.node.counters.dropped[Reason.MESSAGE_EXPIRED] >= 3
    check(stage)
    stage.connect_durable("s")
    stage.connect_durable("u").publishes()
    assert stage.node.counters.dropped[Reason.MESSAGE_EXPIRED] == 10
    check(stage)


@pytest.mark.parametrize("topic", ["a/" + "b" * 65_530, "a/b/c/d"])
def test_a_topic_too_long_for_the_prefix_is_dropped_without_a_letter(topic: str) -> None:
    stage = stage_with_dead_letters(topic_levels_max=4)
    client = undertaker(stage)
    absent(stage)
    expire(stage, topic=topic)
    assert client.publishes() == []
    assert stage.node.counters.dead_letters == 0
    assert stage.node.counters.dropped == {Reason.MESSAGE_EXPIRED: 1}
    assert stage.store.fetch("s", 0, 10) == []


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0b", "$SYS", "$SYS/dead"])
def test_the_prefix_is_a_topic_to_publish_to(topic: str) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"session": {"dead_letter_topic": topic}})


# --- one commit ----------------------------------------------------------------------------------


def expired_while_commits_are_held(store: MemoryStore) -> Stage:
    """The second message of `s` has expired behind the first; nothing of that is durable."""
    stage = stage_with_dead_letters(store)
    undertaker(stage).close()
    client = stage.connect_durable("s", receive_maximum=1)
    client.subscribe("a/#", qos=1)
    publisher = stage.connect("p")
    publisher.publish("a/1", b"sent", qos=1)
    publisher.publish("a/2", b"expires", qos=1, message_expiry_interval=TTL_S)
    stage.advance(TTL_S + 1)
    stage.hold_commits = True
    (sent,) = client.publishes(acknowledge=False)
    client.send(Puback(sent.packet_id))
    return stage


def test_the_end_of_the_one_and_the_beginning_of_the_other_are_one_commit(
    store: MemoryStore,
) -> None:
    stage = expired_while_commits_are_held(store)
    assert stage.held is not None
    appended = [op.client_id for op in stage.held.ops if isinstance(op, Append)]
    settled = [op.delivery for op in stage.held.ops if isinstance(op, Settle)]
    assert appended == ["u"]
    assert [delivery.message.topic for delivery in settled if delivery] == ["a/1", "a/2"]


@pytest.mark.parametrize("committed", [False, True])
def test_a_node_that_is_killed_beside_that_commit_publishes_it_once(
    store: MemoryStore, committed: bool
) -> None:
    stage = expired_while_commits_are_held(store)
    if committed:
        assert stage.held is not None
        store.commit(stage.held.ops)
    stage.restart()
    stage.connect_durable("s").publishes()
    assert [letter.payload for letter in stage.connect_durable("u").publishes()] == [b"expires"]
    check(stage)


def test_dead_letters_for_a_full_queue_are_dropped_and_counted() -> None:
    stage = stage_with_dead_letters(queue_messages_max=1, queue_policy="block")
    undertaker(stage).close()
    stage.node.router.publish_own(Publish("dead/full", b"x", 1), stage.now_s)
    absent(stage)
    expire(stage)
    assert stage.node.counters.dead_letters == 1
    assert stage.node.counters.dropped == {
        Reason.MESSAGE_EXPIRED: 1,
        Reason.QUEUE_MESSAGES: 1,
    }


def test_dead_letters_of_one_that_get_ahead_of_the_message_in_another_take_nothing_from_it(
    store: MemoryStore,
) -> None:
    """One queue drops messages for it when the message is already in the other queue."""
    stage = stage_with_dead_letters(store, queue_messages_max=4)
    both = stage.connect_durable("b")
    both.subscribe("new", "dead/#", qos=1)
    both.close()
    full = stage.connect_durable("s")
    full.subscribe("new", "a/#", qos=1)
    full.close()
    publisher = stage.connect("p")
    for _ in range(3):
        publisher.publish("a/b", b"x", qos=1, message_expiry_interval=TTL_S)
    publisher.publish("a/b", b"y", qos=1)
    stage.advance(TTL_S + 1)
    publisher.publish("new", b"z", qos=1)
    check(stage)
    stage.restart()
    check(stage)
    payloads = [message.payload for message in stage.connect_durable("b").publishes()]
    assert sorted(payloads) == [b"x", b"x", b"x", b"z"]
