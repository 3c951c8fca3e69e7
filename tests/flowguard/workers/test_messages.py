"""Messages between clients of different workers."""

import os
import signal
from collections.abc import Iterator

import pytest

from flowguard.codec.packets import (
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from flowguard.types import Properties, Publish, SubscriptionOptions
from tests.flowguard.workers.clients import (
    WORKERS,
    Client,
    Machine,
    machine,
    names,
    tcp,
    wait_until_ended,
)

pytestmark = pytest.mark.slow
KEPT = Properties(session_expiry_interval=1_000)
COUNT = 20


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One broker for all tests."""
    with machine(tmp_path_factory.mktemp("machine")) as running:
        yield running


def connect(running: Machine, name: str, *filters: str, clean_start: bool = True) -> Client:
    client = Client(tcp(running.addresses[0]), name, clean_start=clean_start, properties=KEPT)
    client.accepted()
    for filter in filters:
        client.send(Subscribe(1, ((filter, SubscriptionOptions(2)),)))
        assert isinstance(client.read(), Suback)
    return client


def publish(client: Client, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
    """Publish, and wait for the end of the exchange."""
    client.send(Publish(topic, payload, qos, retain, packet_id=1 if qos else 0))
    if qos == 1:
        assert isinstance(client.read(), Puback)
    if qos == 2:
        assert isinstance(client.read(), Pubrec)
        client.send(Pubrel(1))
        assert isinstance(client.read(), Pubcomp)


def received(client: Client) -> Publish:
    """Return the next message; exchanges go on meanwhile."""
    while not isinstance(packet := client.read(), Publish):
        assert isinstance(packet, Pubrel)
        client.send(Pubcomp(packet.packet_id))
    if packet.qos == 1:
        client.send(Puback(packet.packet_id))
    if packet.qos == 2:
        client.send(Pubrec(packet.packet_id or 0))
    return packet


def test_messages_reach_subscribers_of_each_worker(running: Machine) -> None:
    subscribers = [connect(running, names(index, 1, "sub")[0], "t/#") for index in range(WORKERS)]
    publishers = [connect(running, names(index, 1, "pub")[0]) for index in range(WORKERS)]
    for qos in (0, 1, 2):
        for publisher in publishers:
            for number in range(COUNT):
                publish(publisher, f"t/{qos}", bytes((number,)), qos)
            for subscriber in subscribers:
                found = [received(subscriber) for _ in range(COUNT)]
                assert [message.payload[0] for message in found] == list(range(COUNT))
                assert {message.qos for message in found} == {qos}
    for client in (*subscribers, *publishers):
        client.close()


def test_retained_message_is_kept_by_each_worker(running: Machine) -> None:
    publisher = connect(running, names(0, 1, "pub")[0])
    publish(publisher, "kept", b"x", 1, retain=True)
    for index in range(WORKERS):
        client = connect(running, names(index, 1)[0], "kept")
        message = received(client)
        assert (message.payload, message.retain) == (b"x", True)
        client.close()
    publisher.close()


def test_acknowledged_messages_survive_the_death_of_a_worker(running: Machine) -> None:
    subscriber = connect(running, names(1, 1, "sub")[0], "t")
    publisher = connect(running, names(0, 1, "pub")[0])
    publish(publisher, "t", b"before", 1)
    os.kill(running.pid(1), signal.SIGKILL)
    wait_until_ended([running.pid(1)])
    publish(publisher, "t", b"while it is down", 1)  # Answered when the worker is back.
    publish(publisher, "t", b"after", 2)
    subscriber.close()
    subscriber = connect(running, names(1, 1, "sub")[0], clean_start=False)
    found = [received(subscriber).payload for _ in range(3)]
    assert found == [b"before", b"while it is down", b"after"]
    subscriber.close()
    publisher.close()
