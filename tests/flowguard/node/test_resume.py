import pytest

from flowguard.codec.packets import Puback, Pubcomp, Pubrec, Pubrel
from flowguard.records import QueueEntry
from flowguard.stores import MemoryStore
from flowguard.types import Publish
from tests.support.readings import summary
from tests.support.stage import Client, Stage


def away(stage: Stage, version: int, *, qos: int = 2) -> None:
    """The client s has a durable session subscribed to everything, and has gone."""
    client = stage.connect_durable("s", version=version)
    client.subscribe("#", qos=qos)
    client.close()


def back(stage: Stage, version: int, **properties: int) -> Client:
    client = stage.connect_durable("s", version=version, **properties)
    assert client.connack.session_present
    return client


def publish(stage: Stage, *payloads: bytes, qos: int = 2, **properties: int) -> None:
    publisher = stage.connect("p")
    for payload in payloads:
        publisher.publish("a", payload, qos=qos, **properties)


class CountingStore(MemoryStore):
    """Remembers whose queues were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def fetch(self, client_id: str, *places: int, **limits: int) -> list[QueueEntry]:
        self.read.append(client_id)
        return super().fetch(client_id, *places, **limits)


def test_a_start_reads_only_queues_with_unacknowledged_messages() -> None:
    """A store of other machines needs a round trip for each."""
    store = CountingStore()
    stage = Stage(store=store)
    clients = {name: stage.connect_durable(name) for name in ("idle", "settled", "waits")}
    for name, client in clients.items():
        client.subscribe(name, qos=1)
    publisher = stage.connect("p")
    for name in ("settled", "waits"):
        publisher.publish(name, b"x", qos=1)
    assert len(clients["settled"].publishes()) == 1
    clients["waits"].publishes(acknowledge=False)
    store.read.clear()
    stage.restart()
    assert set(store.read) == {"waits"}
    assert len(stage.connect_durable("waits").publishes()) == 1


# --- messages to the client ------------------------------------------------------------------


@pytest.mark.spec("MQTT-4.4.0-1", "MQTT-3.3.1-1", "v3:MQTT-4.4.0-1", "v3:MQTT-3.3.1-1")
@pytest.mark.parametrize("restart", [False, True], ids=["new connection", "restart"])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_not_acknowledged_is_sent_again_with_dup_and_its_identifier(
    version: int, qos: int, restart: bool
) -> None:
    stage = Stage()
    away(stage, version)
    first = back(stage, version)
    publish(stage, b"one", b"two", b"three", qos=qos)
    sent = first.publishes(acknowledge=False)
    first.send((Puback if qos == 1 else Pubrec)(sent[1].packet_id))
    if qos == 2:
        first.send(Pubcomp(sent[1].packet_id))
    if restart:
        stage.restart()
    else:
        first.close()
    again = back(stage, version).publishes(acknowledge=False)
    expected = [(sent[0].payload, sent[0].packet_id), (sent[2].payload, sent[2].packet_id)]
    assert summary(again) == [(*each, True) for each in expected]
    assert [message.qos for message in again] == [qos, qos]


@pytest.mark.spec("MQTT-4.4.0-1", "v3:MQTT-4.4.0-1", "MQTT-4.3.3-6", "v3:MQTT-4.3.3-1")
@pytest.mark.parametrize("restart", [False, True], ids=["new connection", "restart"])
def test_after_pubrec_only_pubrel_is_sent_again(version: int, restart: bool) -> None:
    stage = Stage()
    away(stage, version)
    first = back(stage, version)
    publish(stage, b"one")
    (message,) = first.publishes(acknowledge=False)
    first.send(Pubrec(message.packet_id))
    if restart:
        stage.restart()
    else:
        first.close()
    second = back(stage, version)
    assert second.take() == [Pubrel(message.packet_id)]
    second.send(Pubcomp(message.packet_id))
    second.close()
    assert back(stage, version).take() == []


@pytest.mark.spec("v3:MQTT-3.1.2-5")
@pytest.mark.parametrize("restart", [False, True], ids=["new connection", "restart"])
def test_messages_for_a_client_that_is_away_wait_for_it(version: int, restart: bool) -> None:
    stage = Stage()
    away(stage, version, qos=1)
    publish(stage, b"lost", qos=0)
    publish(stage, b"one", b"two", qos=1)
    if restart:
        stage.restart()
    messages = back(stage, version).publishes()
    assert [(each.payload, each.dup) for each in messages] == [(b"one", False), (b"two", False)]


def test_one_that_was_acknowledged_is_not_sent_again_after_a_restart(version: int) -> None:
    stage = Stage()
    away(stage, version)
    client = back(stage, version)
    publish(stage, b"one", b"two", qos=1)
    assert len(client.publishes()) == 2
    stage.restart()
    assert back(stage, version).take() == []


def test_new_messages_after_a_restart_use_no_identifier_in_flight(version: int) -> None:
    stage = Stage()
    away(stage, version)
    client = back(stage, version)
    publish(stage, b"one", b"two")
    sent = {message.packet_id for message in client.publishes(acknowledge=False)}
    stage.restart()
    publish(stage, b"three")
    new = [each for each in back(stage, version).publishes(acknowledge=False) if not each.dup]
    assert [message.payload for message in new] == [b"three"]
    assert new[0].packet_id not in sent


# --- messages from the client ----------------------------------------------------------------


@pytest.mark.spec("MQTT-4.3.3-10", "v3:MQTT-4.3.3-2")
@pytest.mark.parametrize("restart", [False, True], ids=["new connection", "restart"])
def test_a_qos_2_message_repeated_on_a_new_connection_is_delivered_once(
    version: int, restart: bool
) -> None:
    stage = Stage()
    away(stage, version)
    first = stage.connect_durable("p", version=version)
    first.send(Publish("a", b"x", 2, packet_id=9))
    if restart:
        stage.restart()
    else:
        first.close()
    second = stage.connect_durable("p", version=version)
    second.send(Publish("a", b"x", 2, dup=True, packet_id=9))
    assert second.take() == [Pubrec(9)]
    second.send(Pubrel(9))
    assert second.take() == [Pubcomp(9)]
    assert [message.payload for message in back(stage, version).publishes()] == [b"x"]


def test_pubrel_on_a_new_connection_ends_the_old_exchange(version: int) -> None:
    stage = Stage()
    first = stage.connect_durable("p", version=version)
    first.send(Publish("a", b"x", 2, packet_id=9))
    stage.restart()
    second = stage.connect_durable("p", version=version)
    second.send(Pubrel(9))
    assert second.take() == [Pubcomp(9)]
    assert next(iter(stage.store.sessions())).inbound_ids == set()


@pytest.mark.parametrize("broken", ["receive maximum", "retain"])
def test_a_qos_2_message_that_ended_its_connection_can_be_sent_again(broken: str) -> None:
    limits = {"retain_available": False} if broken == "retain" else {"receive_maximum": 1}
    stage = Stage({"session": limits})
    away(stage, 5)
    first = stage.connect_durable("p")
    first.send(Publish("b", b"first", 2, packet_id=1))
    first.send(Publish("a", b"x", 2, retain=broken == "retain", packet_id=9))
    assert first.is_closed
    second = stage.connect_durable("p")
    second.send(Pubrel(1))
    second.send(Publish("a", b"x", 2, dup=True, packet_id=9))
    assert second.take() == [Pubcomp(1), Pubrec(9)]
    assert [message.payload for message in back(stage, 5).publishes()] == [b"first", b"x"]
