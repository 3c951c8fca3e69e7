"""A message of a shared subscription goes to another member: when its member has left, or takes
none as large."""

import pytest

from flowguard.codec.packets import Puback, Pubrec
from flowguard.flow import Reason
from flowguard.types import MQTT_5, MQTT_311, Publish
from tests.flowguard.node.ledger import check_budgets, end_all_sessions
from tests.support.readings import numbers
from tests.support.stage import Client, Stage

SHARE = "$share/g/a"


def member(stage: Stage, client_id: str, *, qos: int = 1, **properties: int) -> Client:
    """A member with a clean session."""
    client = stage.connect(client_id, **properties)
    client.subscribe(SHARE, qos=qos)
    return client


def publish(stage: Stage, count: int, *, qos: int = 1, **properties: int) -> None:
    publisher = stage.connect("p")
    for number in range(count):
        publisher.publish("a", b"%d" % number, qos=qos, **properties)


# --- a member that leaves ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "disconnect", "take-over"])
@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
def test_what_a_leaving_member_has_in_flight_goes_to_another(how: str, version: int) -> None:
    stage = Stage()
    leaving, staying = stage.connect("l", version=version), stage.connect("s", version=version)
    for client in (leaving, staying):
        client.subscribe(SHARE, qos=1)
    publish(stage, 10)
    assert numbers(leaving, acknowledge=False) == [0, 2, 4, 6, 8]
    assert numbers(staying) == [1, 3, 5, 7, 9]
    if how == "close":
        leaving.close()
    elif how == "disconnect":
        leaving.disconnect()
    else:
        stage.connect("l", version=version)
    again = staying.publishes()
    assert [int(message.payload) for message in again] == [0, 2, 4, 6, 8]
    assert not any(message.dup for message in again)
    assert stage.node.counters.dropped == {}
    end_all_sessions(stage.node, stage.now_s)


def test_what_waits_for_a_leaving_member_goes_to_another_and_what_it_has_does_not() -> None:
    stage = Stage()
    leaving = member(stage, "l", receive_maximum=2)
    publish(stage, 6)
    first, second = leaving.publishes(acknowledge=False)
    leaving.send(Puback(first.packet_id))
    staying = member(stage, "s")
    leaving.close()
    assert (first.payload, second.payload) == (b"0", b"1")
    assert numbers(staying) == [1, 2, 3, 4, 5]
    check_budgets(stage.node, [])


@pytest.mark.spec("MQTT-4.8.2-5")
@pytest.mark.parametrize("received", [False, True])
def test_what_was_sent_at_qos_2_goes_to_nobody_else(received: bool) -> None:
    stage = Stage()
    leaving, staying = member(stage, "l", qos=2, receive_maximum=1), member(stage, "s", qos=2)
    publish(stage, 4, qos=2)
    assert numbers(staying) == [1, 3]
    (sent,) = leaving.publishes(acknowledge=False)
    if received:
        leaving.send(Pubrec(sent.packet_id))
    leaving.close()
    assert numbers(staying) == [2]


def test_it_goes_into_the_queue_that_the_group_has_by_then() -> None:
    stage = Stage()
    leaving = member(stage, "l")
    publish(stage, 3)
    durable = stage.connect_durable("d")
    durable.subscribe(SHARE, qos=1)
    leaving.close()
    assert numbers(durable, acknowledge=False) == [0, 1, 2]
    stage.restart()
    assert numbers(stage.connect_durable("d")) == [0, 1, 2]


def test_it_expires_when_it_would_have() -> None:
    stage = Stage()
    leaving, staying = member(stage, "l"), member(stage, "s")
    publish(stage, 1, message_expiry_interval=10)
    stage.advance(6)
    leaving.close()
    (message,) = staying.publishes(acknowledge=False)
    assert message.properties.message_expiry_interval == 4
    third = member(stage, "t")
    stage.advance(6)
    staying.close()
    assert numbers(third) == []
    assert stage.node.counters.dropped == {Reason.MESSAGE_EXPIRED: 1}


def test_plain_subscriptions_of_a_leaving_member_give_nothing_to_others() -> None:
    stage = Stage()
    leaving, staying = member(stage, "l"), member(stage, "s")
    leaving.subscribe("b", qos=1)
    stage.connect("p").publish("b", b"1", qos=1)
    leaving.close()
    assert numbers(staying) == []


def test_where_no_member_is_left_it_goes_nowhere() -> None:
    stage = Stage()
    leaving = member(stage, "l", receive_maximum=1)
    publish(stage, 300)
    leaving.close()
    assert stage.node.registry.sessions.keys() == {"p"}
    check_budgets(stage.node, [])


def test_all_of_a_long_queue_goes_on_piece_by_piece() -> None:
    stage = Stage({"session": {"queue_messages_max": 500}})
    leaving = member(stage, "l", receive_maximum=1)
    publish(stage, 400)
    staying = member(stage, "s")
    leaving.close()
    assert numbers(staying) == list(range(400))


# --- a member that takes none as large -----------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.2-25")
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("durable", [False, True])
def test_message_too_large_for_one_member_goes_to_another(
    published: int, granted: int, durable: bool
) -> None:
    stage = Stage()
    connect = stage.connect_durable if durable else stage.connect
    small = connect("small", maximum_packet_size=100)
    large = connect("large")
    for client in (small, large):
        client.subscribe(SHARE, qos=granted)
    publisher = stage.connect("p")
    for number in range(6):
        publisher.publish("a", b"%d" % number + bytes(200), qos=published)
    publisher.publish("a", b"6", qos=published)
    publisher.publish("a", b"7", qos=published)
    got = [message.payload[:1] for client in (small, large) for message in client.publishes()]
    assert sorted(got) == [b"%d" % number for number in range(8)]
    assert stage.node.counters.dropped == {}
    end_all_sessions(stage.node, stage.now_s)


@pytest.mark.parametrize("durable", [False, True])
def test_member_that_is_busy_gets_it_later_and_nobody_waits_for_that(durable: bool) -> None:
    stage = Stage()
    connect = stage.connect_durable if durable else stage.connect
    large = connect("large", receive_maximum=1)
    large.subscribe(SHARE, qos=1)
    publish(stage, 1)
    (first,) = large.publishes(acknowledge=False)
    small = connect("small", maximum_packet_size=100)
    small.subscribe(SHARE, qos=1)
    stage.connect("q").send(
        Publish("a", b"1" + bytes(200), 1, packet_id=1), Publish("a", b"2", 1, packet_id=2)
    )
    assert [message.payload[:1] for message in small.publishes()] == [b"2"]
    large.send(Puback(first.packet_id))
    assert [message.payload[:1] for message in large.publishes()] == [b"1"]
    assert stage.node.counters.dropped == {}
    end_all_sessions(stage.node, stage.now_s)


@pytest.mark.parametrize("durable", [False, True])
def test_message_too_large_for_all_members_is_dropped_and_counted(durable: bool) -> None:
    stage = Stage()
    connect = stage.connect_durable if durable else stage.connect
    for client_id in ("s", "t"):
        connect(client_id, maximum_packet_size=100).subscribe(SHARE, qos=1)
    stage.connect("p").publish("a", bytes(200), qos=1)
    assert stage.node.counters.dropped == {Reason.PACKET_TOO_LARGE: 1}
