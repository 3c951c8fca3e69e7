import pytest

from flowguard.codec.packets import Disconnect, Puback, Pubcomp, Pubrec, Pubrel
from flowguard.types import MQTT_5, MQTT_311, Publish, ReasonCode
from tests.flowguard.session.sessions import Client, Sessions
from tests.support.readings import payloads


def subscribed(sessions: Sessions, version: int, qos: int, *, durable: bool = True) -> Client:
    connect = sessions.connect_durable if durable else sessions.connect
    client = connect("s", version=version)
    client.subscribe("a", qos=qos)
    return client


# --- from the client -------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.3.4-1", "v3:MQTT-3.3.4-1", "MQTT-2.2.1-5", "v3:MQTT-2.3.1-6")
@pytest.mark.parametrize("durable", [False, True])
def test_a_publish_is_answered_as_its_qos_demands(version: int, durable: bool) -> None:
    sessions = Sessions()
    subscribed(sessions, version, 2)
    client = (sessions.connect_durable if durable else sessions.connect)("p", version=version)
    client.send(Publish("a", b"x"))
    assert client.take() == []
    client.send(Publish("a", b"x", 1, packet_id=65_535))
    assert client.take() == [Puback(65_535)]
    client.send(Publish("a", b"x", 2, packet_id=7))
    assert client.take() == [Pubrec(7)]
    client.send(Pubrel(7))
    assert client.take() == [Pubcomp(7)]


@pytest.mark.spec("MQTT-4.3.2-5", "v3:MQTT-4.3.2-2")
@pytest.mark.parametrize("dup", [False, True])
def test_after_puback_the_identifier_means_a_new_message_whatever_dup_says(
    version: int, dup: bool
) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, version, 1)
    client = sessions.connect("p", version=version)
    client.send(Publish("a", b"one", 1, packet_id=5))
    client.send(Publish("a", b"two", 1, dup=dup, packet_id=5))
    assert client.take() == [Puback(5), Puback(5)]
    assert payloads(subscriber) == [b"one", b"two"]


@pytest.mark.spec("MQTT-4.3.3-10", "v3:MQTT-4.3.3-2")
@pytest.mark.parametrize("durable", [False, True])
def test_until_pubrel_a_repeated_publish_gets_pubrec_and_is_delivered_once(
    version: int, durable: bool
) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, version, 2)
    client = (sessions.connect_durable if durable else sessions.connect)("p", version=version)
    for dup in (False, True, True):
        client.send(Publish("a", b"x", 2, dup=dup, packet_id=5))
        assert client.take() == [Pubrec(5)]
    assert payloads(subscriber) == [b"x"]
    client.send(Pubrel(5))
    assert client.take() == [Pubcomp(5)]
    assert payloads(subscriber) == []


def test_a_publish_repeated_before_its_commit_gets_one_pubrec(version: int) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, version, 2)
    client = sessions.connect_durable("p", version=version)
    sessions.hold_commits = True
    client.send(Publish("a", b"x", 2, packet_id=5), Publish("a", b"x", 2, dup=True, packet_id=5))
    sessions.release_commits()
    assert client.take() == [Pubrec(5)]
    assert payloads(subscriber) == [b"x"]


@pytest.mark.spec("MQTT-4.3.3-11", "MQTT-4.3.3-12", "v3:MQTT-4.3.3-2")
def test_after_pubcomp_the_identifier_means_a_new_message(version: int) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, version, 2)
    client = sessions.connect_durable("p", version=version)
    for number in range(3):
        client.send(Publish("a", b"%d" % number, 2, packet_id=5))
        assert client.take() == [Pubrec(5)]
        client.send(Pubrel(5))
        assert client.take() == [Pubcomp(5)]
    assert payloads(subscriber) == [b"0", b"1", b"2"]


@pytest.mark.spec("MQTT-4.3.3-13")
def test_the_handshake_with_the_publisher_goes_on_when_the_message_has_expired() -> None:
    sessions = Sessions()
    client = sessions.connect_durable("p")
    client.publish("a", b"x", qos=2, message_expiry_interval=1)
    (pubrec,) = client.take()
    sessions.advance(2)
    assert isinstance(pubrec, Pubrec)
    client.send(Pubrel(pubrec.packet_id))
    assert client.take() == [Pubcomp(pubrec.packet_id)]


@pytest.mark.spec("MQTT-3.7.2-1")
def test_pubrel_for_nothing_is_answered_0x92() -> None:
    client = Sessions().connect("c")
    client.send(Pubrel(9))
    assert client.take() == [Pubcomp(9, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)]


@pytest.mark.spec("v3:MQTT-4.3.3-2")
def test_in_3_1_1_pubrel_for_nothing_is_answered_like_any_other() -> None:
    client = Sessions().connect("c", version=MQTT_311)
    client.send(Pubrel(9))
    assert client.take() == [Pubcomp(9)]


def test_pubcomp_waits_until_the_end_of_the_identifier_is_durable(version: int) -> None:
    sessions = Sessions()
    client = sessions.connect_durable("c", version=version)
    client.send(Publish("a", b"x", 2, packet_id=5))
    client.take()
    sessions.hold_commits = True
    client.send(Pubrel(5))
    assert client.take() == []
    sessions.release_commits()
    assert client.take() == [Pubcomp(5)]


# --- to the client ---------------------------------------------------------------------------


@pytest.mark.spec("MQTT-4.3.1-1", "MQTT-3.3.1-2", "MQTT-2.2.1-2")
@pytest.mark.spec("v3:MQTT-4.3.1-1", "v3:MQTT-3.3.1-2", "v3:MQTT-2.3.1-5")
def test_a_qos_0_message_is_sent_once_without_dup_and_identifier(version: int) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, version, 0)
    sessions.connect("p", version=version).publish("a", b"x", qos=2)
    assert subscriber.take() == [Publish("a", b"x")]
    subscriber.close()
    assert sessions.connect_durable("s", version=version).take() == []


@pytest.mark.spec("MQTT-4.3.2-1", "MQTT-4.3.2-2", "MQTT-4.3.3-1", "MQTT-4.3.3-2", "MQTT-2.2.1-4")
@pytest.mark.spec("v3:MQTT-4.3.2-1", "v3:MQTT-4.3.3-1", "v3:MQTT-2.3.1-4", "v3:MQTT-2.3.1-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_each_new_message_has_an_unused_identifier_its_qos_and_dup_0(
    version: int, qos: int
) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, version, qos)
    publisher = sessions.connect("p", version=version)
    for _ in range(10):
        publisher.publish("a", b"x", qos=qos)
    found = subscriber.publishes(acknowledge=False)
    assert {(message.qos, message.dup) for message in found} == {(qos, False)}
    identifiers = {message.packet_id for message in found}
    assert len(identifiers) == 10
    assert 0 not in identifiers


@pytest.mark.spec("MQTT-3.3.1-3", "v3:MQTT-3.3.1-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_of_the_publisher_is_not_passed_on(version: int, qos: int) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, version, qos)
    sessions.connect("p", version=version).send(Publish("a", b"x", qos, dup=True, packet_id=3))
    assert [message.dup for message in subscriber.publishes()] == [False]


@pytest.mark.spec("MQTT-4.3.3-4", "MQTT-4.3.3-5", "MQTT-4.3.3-6", "v3:MQTT-4.3.3-1")
@pytest.mark.parametrize("durable", [False, True])
def test_pubrec_is_answered_by_pubrel_and_pubcomp_ends_it(version: int, durable: bool) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, version, 2, durable=durable)
    sessions.connect("p", version=version).publish("a", b"x", qos=2)
    (message,) = subscriber.publishes(acknowledge=False)
    subscriber.send(Pubrec(message.packet_id))
    assert subscriber.take() == [Pubrel(message.packet_id)]
    assert message.packet_id in sessions.sessions["s"].inflight.messages
    subscriber.send(Pubrec(message.packet_id))
    assert subscriber.take() == [Pubrel(message.packet_id)]
    subscriber.send(Pubcomp(message.packet_id))
    assert subscriber.take() == []
    assert not sessions.sessions["s"].inflight.messages


@pytest.mark.spec("MQTT-4.3.2-3", "MQTT-4.3.3-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_is_unacknowledged_until_its_own_acknowledgement(version: int, qos: int) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, version, qos)
    sessions.connect("p", version=version).publish("a", b"x", qos=qos)
    (message,) = subscriber.publishes(acknowledge=False)
    subscriber.send(Puback(message.packet_id + 1), Pubcomp(message.packet_id + 1))
    assert sessions.node.counters.unknown_acknowledgements == 2
    subscriber.close()
    (again,) = sessions.connect_durable("s", version=version).publishes()
    assert (again.packet_id, again.payload) == (message.packet_id, b"x")


def test_pubrel_waits_until_pubrec_is_durable(version: int) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, version, 2)
    sessions.connect("p", version=version).publish("a", b"x", qos=2)
    (message,) = subscriber.publishes(acknowledge=False)
    sessions.hold_commits = True
    subscriber.send(Pubrec(message.packet_id))
    assert subscriber.take() == []
    sessions.release_commits()
    assert subscriber.take() == [Pubrel(message.packet_id)]


@pytest.mark.spec("MQTT-3.6.2-1")
@pytest.mark.parametrize(("version", "code"), [(MQTT_311, 0), (MQTT_5, 0x92)])
def test_pubrec_for_nothing_is_answered_so_that_the_client_can_forget_it(
    version: int, code: int
) -> None:
    client = Sessions().connect("c", version=version)
    client.send(Pubrec(9))
    assert client.take() == [Pubrel(9, code)]


@pytest.mark.spec("MQTT-4.4.0-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_refused_by_the_client_is_done(qos: int) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, MQTT_5, qos)
    sessions.connect("p").publish("a", b"x", qos=qos)
    (message,) = subscriber.publishes(acknowledge=False)
    code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    subscriber.send((Puback if qos == 1 else Pubrec)(message.packet_id, code))
    assert subscriber.take() == []
    subscriber.close()
    assert sessions.connect_durable("s").take() == []


@pytest.mark.parametrize(("qos", "wrong"), [(1, Pubrec), (2, Puback)])
def test_an_acknowledgement_of_the_wrong_kind_is_a_protocol_error(
    qos: int, wrong: type[Puback] | type[Pubrec]
) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, MQTT_5, qos)
    sessions.connect("p").publish("a", b"x", qos=qos)
    (message,) = subscriber.publishes(acknowledge=False)
    subscriber.send(wrong(message.packet_id))
    assert subscriber.expect(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR
