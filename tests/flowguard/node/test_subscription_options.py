import pytest

from flowguard.codec.packets import Disconnect, Subscribe
from flowguard.types import ReasonCode, SubscriptionOptions
from tests.support.readings import payloads
from tests.support.stage import Stage

# --- No Local --------------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.8.3-4")
def test_no_local_on_a_shared_subscription_closes_the_connection() -> None:
    client = Stage().connect("c")
    client.send(Subscribe(1, (("$share/g/a", SubscriptionOptions(no_local=True)),)))
    assert client.expect(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR
    assert client.is_closed


@pytest.mark.spec("MQTT-3.8.3-3")
def test_with_no_local_a_client_is_not_sent_its_own_messages() -> None:
    stage = Stage()
    deaf = stage.connect("deaf")
    deaf.subscribe("a", qos=2, no_local=True)
    open_ = stage.connect("open")
    open_.subscribe("a", qos=2)
    for client in (deaf, open_):
        for qos in (0, 1, 2):
            client.publish("a", client.connection.session.client_id.encode(), qos=qos)
    assert payloads(deaf) == [b"open"] * 3
    assert payloads(open_) == [b"deaf"] * 3 + [b"open"] * 3


def test_no_local_does_not_silence_another_subscription_of_the_same_client() -> None:
    stage = Stage()
    client = stage.connect("c")
    client.subscribe("a/#", qos=2, no_local=True, identifier=1)
    client.subscribe("a/b", qos=1, identifier=2)
    client.publish("a/b", b"own", qos=2)
    (own,) = client.publishes()
    assert (own.qos, own.properties.subscription_identifiers) == (1, (2,))
    stage.connect("p").publish("a/b", b"other", qos=2)
    (other,) = client.publishes()
    assert (other.qos, set(other.properties.subscription_identifiers)) == (2, {1, 2})


# --- subscription identifiers ----------------------------------------------------------------


@pytest.mark.spec("MQTT-3.3.4-3", "MQTT-3.3.4-4")
def test_one_copy_carries_the_identifiers_of_all_its_subscriptions() -> None:
    stage = Stage()
    client = stage.connect("c")
    client.subscribe("a/#", identifier=268_435_455)
    client.subscribe("a/+", identifier=1)
    client.subscribe("+/b")
    other = stage.connect("d")
    other.subscribe("a/b", identifier=3)
    stage.connect("p").publish("a/b")
    (message,) = client.publishes()
    assert set(message.properties.subscription_identifiers) == {1, 268_435_455}
    assert other.publishes()[0].properties.subscription_identifiers == (3,)


def test_a_new_identifier_replaces_the_old_one() -> None:
    stage = Stage()
    client = stage.connect("c")
    client.subscribe("a", identifier=1)
    client.subscribe("a", identifier=2)
    stage.connect("p").publish("a")
    assert client.publishes()[0].properties.subscription_identifiers == (2,)
    client.subscribe("a")
    stage.connect("p").publish("a")
    assert client.publishes()[0].properties.subscription_identifiers == ()


def test_each_shared_and_plain_subscription_sends_its_own_identifier() -> None:
    stage = Stage()
    client = stage.connect("c")
    client.subscribe("a", identifier=1)
    client.subscribe("$share/g/a", identifier=2)
    stage.connect("p").publish("a")
    identifiers = [message.properties.subscription_identifiers for message in client.publishes()]
    assert sorted(identifiers) == [(1,), (2,)]


# --- Retain Handling, Retain As Published ----------------------------------------------------


@pytest.mark.parametrize(
    ("handling", "at_first", "again"),
    [
        pytest.param(0, 1, 1, marks=pytest.mark.spec("MQTT-3.3.1-9"), id="always"),
        pytest.param(1, 1, 0, marks=pytest.mark.spec("MQTT-3.3.1-10"), id="when new"),
        pytest.param(2, 0, 0, marks=pytest.mark.spec("MQTT-3.3.1-11"), id="never"),
    ],
)
def test_retain_handling_says_when_retained_messages_are_sent(
    handling: int, at_first: int, again: int
) -> None:
    stage = Stage()
    stage.connect("p").publish("a/b", b"kept", retain=True)
    client = stage.connect("c")
    client.subscribe("a/+", retain_handling=handling)
    assert payloads(client) == [b"kept"] * at_first
    client.subscribe("a/+", retain_handling=handling)
    assert payloads(client) == [b"kept"] * again
    client.unsubscribe("a/+")
    client.subscribe("a/+", retain_handling=handling)
    assert payloads(client) == [b"kept"] * at_first, "after UNSUBSCRIBE it is new"


def test_a_shared_subscription_is_sent_no_retained_messages() -> None:
    stage = Stage()
    stage.connect("p").publish("a", b"kept", retain=True)
    client = stage.connect("c")
    client.subscribe("$share/g/a")
    assert payloads(client) == []


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.spec("MQTT-3.3.1-8", "v3:MQTT-3.3.1-6", "v3:MQTT-3.3.1-8")
def test_a_retained_message_comes_marked_at_the_lower_qos_after_suback(
    version: int, granted: int
) -> None:
    stage = Stage()
    stage.connect("p").publish("a", b"kept", qos=1, retain=True)
    client = stage.connect("c", version=version)
    client.subscribe("a", qos=granted, identifier=5 if version == 5 else 0)
    (message,) = client.publishes()
    assert (message.retain, message.qos) == (True, min(1, granted))
    assert message.properties.subscription_identifiers == ((5,) if version == 5 else ())


@pytest.mark.parametrize(
    ("as_published", "forwarded"),
    [
        pytest.param(False, [False, False], marks=pytest.mark.spec("MQTT-3.3.1-12"), id="off"),
        pytest.param(True, [False, True], marks=pytest.mark.spec("MQTT-3.3.1-13"), id="on"),
    ],
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retain_as_published(as_published: bool, forwarded: list[bool], qos: int) -> None:
    stage = Stage()
    client = stage.connect("c")
    client.subscribe("a", "$share/g/a", qos=qos, retain_as_published=as_published)
    publisher = stage.connect("p")
    for retain in (False, True):
        publisher.publish("a", b"x", qos=qos, retain=retain)
        copies = client.publishes()
        assert [copy.retain for copy in copies] == [forwarded[retain]] * 2


# --- retained messages and slow subscribers --------------------------------------------------


def test_an_old_retained_message_never_follows_the_one_that_replaced_it() -> None:
    stage = Stage()
    publisher = stage.connect("p")
    for topic in ("a/1", "a/2"):
        publisher.publish(topic, b"old", qos=1, retain=True)
    client = stage.connect("c", receive_maximum=1)
    client.subscribe("a/+", qos=1)
    publisher.publish("a/2", b"new", qos=1, retain=True)
    found = [message.payload for message in client.publishes() if message.topic == "a/2"]
    assert found[-1] == b"new"
    assert found in ([b"old", b"new"], [b"new"], [b"new", b"new"])


@pytest.mark.spec("MQTT-3.3.2-5")
def test_a_retained_message_that_expires_while_it_waits_is_not_sent() -> None:
    stage = Stage()
    publisher = stage.connect("p")
    publisher.publish("a/1", b"stays", qos=1, retain=True)
    publisher.publish("a/2", b"goes", qos=1, retain=True, message_expiry_interval=5)
    client = stage.connect("c", receive_maximum=1)
    client.subscribe("a/+", qos=1)
    stage.advance(6)
    assert payloads(client) == [b"stays"]


def test_a_retained_message_sent_to_a_session_survives_a_restart_like_any_other() -> None:
    stage = Stage()
    stage.connect("p").publish("a", b"kept", qos=2, retain=True)
    client = stage.connect_durable("c")
    client.subscribe("a", qos=2)
    (first,) = client.publishes(acknowledge=False)
    stage.restart()
    (again,) = stage.connect_durable("c").publishes(acknowledge=False)
    assert (again.dup, again.packet_id, again.payload) == (True, first.packet_id, b"kept")
