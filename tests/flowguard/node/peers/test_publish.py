"""PUBLISH to sessions of other nodes: delivery, acknowledgement, properties, order."""

import pytest

from flowguard.codec.packets import Puback, Pubrec, Pubrel
from flowguard.flow import Reason
from tests.support.machine import Machine, answers


@pytest.fixture
def machine() -> Machine:
    return Machine("a", "b")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_message_reaches_session_of_peer(machine: Machine, qos: int) -> None:
    subscriber = machine["b"].connect("s")
    subscriber.subscribe("t/#", qos=2)
    publisher = machine["a"].connect("p")
    publisher.publish("t/1", b"x", qos=qos)
    received = subscriber.publishes()
    assert [(each.topic, each.payload, each.qos) for each in received] == [("t/1", b"x", qos)]


def test_puback_waits_for_commit_of_peer(machine: Machine) -> None:
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=1)
    publisher = machine["a"].connect("p")
    machine["b"].hold_commits = True
    publisher.publish("t", b"x", qos=1)
    assert answers(publisher, Puback) == []
    machine["b"].release_commits()
    assert len(answers(publisher, Puback)) == 1


def test_pubrec_waits_for_own_commit_only(machine: Machine) -> None:
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=2)
    publisher = machine["a"].connect("p")
    machine["b"].hold_commits = True
    publisher.publish("t", b"x", qos=2)
    assert len(answers(publisher, Pubrec)) == 1
    machine["b"].release_commits()
    assert [each.payload for each in subscriber.publishes()] == [b"x"]


def test_owed_message_is_forwarded_after_own_commit(machine: Machine) -> None:
    subscriber = machine["b"].connect("s")
    subscriber.subscribe("t", qos=2)
    publisher = machine["a"].connect("p")
    machine["a"].hold_commits = True
    publisher.publish("t", b"x", qos=2)
    assert subscriber.publishes() == []
    assert answers(publisher, Pubrec) == []
    machine["a"].release_commits()
    assert [each.payload for each in subscriber.publishes()] == [b"x"]


def test_pubacks_keep_the_order_of_publishes(machine: Machine) -> None:
    """[MQTT-4.6.0-2]"""
    local = machine["a"].connect_durable("l")
    local.subscribe("local", qos=1)
    remote = machine["b"].connect_durable("r")
    remote.subscribe("remote", qos=1)
    publisher = machine["a"].connect("p")
    machine["b"].hold_commits = True
    ids = [publisher.publish(topic, b"x", qos=1) for topic in ("remote", "local", "none")]
    assert answers(publisher, Puback) == []
    machine["b"].release_commits()
    assert [each.packet_id for each in answers(publisher, Puback)] == ids


def test_properties_identifier_and_retain_as_published_survive(machine: Machine) -> None:
    subscriber = machine["b"].connect("s")
    subscriber.subscribe("t", qos=1, identifier=7, retain_as_published=True)
    publisher = machine["a"].connect("p")
    publisher.publish(
        "t",
        b"x",
        qos=1,
        retain=True,
        content_type="text",
        user_properties=(("k", "v"),),
        message_expiry_interval=60,
    )
    (received,) = subscriber.publishes()
    assert received.retain
    assert received.properties.subscription_identifiers == (7,)
    assert received.properties.content_type == "text"
    assert received.properties.user_properties == (("k", "v"),)
    assert received.properties.message_expiry_interval == 60


def test_message_expires_while_its_peer_is_away() -> None:
    machine = Machine("a", "b")
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=1)
    publisher = machine["a"].connect("p")
    machine.cut.add("b")
    machine.drop_links("b")
    publisher.publish("t", b"old", qos=1, message_expiry_interval=5)
    publisher.publish("t", b"new", qos=1, message_expiry_interval=100)
    machine.advance(10)
    machine.cut.clear()
    machine.advance(1)
    (received,) = subscriber.publishes()
    assert received.payload == b"new"
    assert 85 <= received.properties.message_expiry_interval <= 90
    assert len(answers(publisher, Puback)) == 2


def test_message_reaches_each_session_once_on_three_nodes() -> None:
    machine = Machine("a", "b", "c")
    subscribers = [machine[name].connect(f"s-{name}") for name in "abc"]
    for subscriber in subscribers:
        subscriber.subscribe("t/+", "t/#", qos=2)
    publisher = machine["b"].connect("p")
    for qos in (0, 1, 2):
        publisher.publish("t/x", b"%d" % qos, qos=qos)
    for subscriber in subscribers:
        assert sorted(each.payload for each in subscriber.publishes()) == [b"0", b"1", b"2"]


def test_message_without_subscriber_is_not_forwarded(machine: Machine) -> None:
    publisher = machine["a"].connect("p")
    publisher.publish("t", b"x", qos=1)
    assert answers(publisher, Puback)[0].reason_code == 0x10
    subscriber = machine["b"].connect("s")
    subscriber.subscribe("t", qos=1)
    subscriber.unsubscribe("t")
    publisher.publish("t", b"x", qos=1)
    assert answers(publisher, Puback)[0].reason_code == 0x10


def test_qos_0_is_dropped_and_counted_if_the_link_is_down(machine: Machine) -> None:
    subscriber = machine["b"].connect("s")
    subscriber.subscribe("t")
    publisher = machine["a"].connect("p")
    machine.cut.add("b")
    machine.drop_links("b")
    publisher.publish("t", b"x")
    machine.advance(0.2)
    assert machine["a"].node.counters.dropped[Reason.LINK_FULL] == 1
    machine.cut.clear()
    machine.advance(0.2)
    assert subscriber.publishes() == []


def test_messages_behind_a_cut_link_arrive_in_order(machine: Machine) -> None:
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=2)
    publisher = machine["a"].connect("p")
    machine.cut.add("b")
    machine.drop_links("b")
    for number in range(20):
        publisher.publish("t", b"%d" % number, qos=1 + number % 2)
    assert answers(publisher, Puback) == []
    assert len(answers(publisher, Pubrec)) == 10
    machine.cut.clear()
    machine.advance(0.2)
    payloads = [int(each.payload) for each in subscriber.publishes()]
    for parity in (0, 1):
        assert [each for each in payloads if each % 2 == parity] == list(range(parity, 20, 2))
    assert len(answers(publisher, Puback)) == 10


def test_message_to_more_sessions_than_one_piece_takes() -> None:
    """Messages behind it wait for it on the other node."""
    machine = Machine("a", "b")
    subscribers = [machine["b"].connect_durable(f"s{number}") for number in range(1_100)]
    for subscriber in subscribers:
        subscriber.subscribe("wide", "narrow", qos=1)
        subscriber.unsubscribe("narrow")
    subscribers[0].subscribe("narrow", qos=1)
    publisher = machine["a"].connect("p")
    publisher.publish("wide", b"1", qos=1)
    publisher.publish("narrow", b"2", qos=1)
    assert [each.payload for each in subscribers[0].publishes()] == [b"1", b"2"]
    assert all([each.payload for each in subscribers[i].publishes()] == [b"1"] for i in (1, 1_099))
    assert len(answers(publisher, Puback)) == 2


def test_qos_2_identifier_is_free_after_pubrel(machine: Machine) -> None:
    subscriber = machine["b"].connect("s")
    subscriber.subscribe("t", qos=2)
    publisher = machine["a"].connect("p")
    packet_id = publisher.publish("t", b"x", qos=2)
    publisher.send(Pubrel(packet_id))
    assert [each.payload for each in subscriber.publishes()] == [b"x"]
