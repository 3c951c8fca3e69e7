"""Retained messages at QoS 2 for a durable session, through brokers that are killed."""

from pathlib import Path

import pytest

from flowguard.codec.packets import Connack, Pubcomp, Pubrec, Pubrel, Suback, Subscribe
from flowguard.types import Properties, Publish, SubscriptionOptions
from tests.interop.broker import PATIENCE_S, Broker, running_broker
from tests.support.caller import Caller

COUNT = 40
KILLED = -9


class Receiver:
    """Method A of 4.3.3: it owns a message with its PUBLISH, and until PUBREL every other one with
    that identifier is the same."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self._ids: set[int] = set()

    def connect(self, broker: Broker, receive_maximum: int) -> Caller:
        properties = Properties(session_expiry_interval=1_000, receive_maximum=receive_maximum)
        caller = Caller(broker, client_id="s", clean_start=False, properties=properties)
        assert isinstance(caller.read(), Connack)
        return caller

    def take(self, caller: Caller, *, answers: bool = True) -> None:
        """The next packet."""
        packet = caller.read()
        if isinstance(packet, Publish):
            if packet.packet_id not in self._ids:
                self._ids.add(packet.packet_id)
                self.topics.append(packet.topic)
            if answers:
                caller.send(Pubrec(packet.packet_id))
        else:
            assert isinstance(packet, Pubrel)
            self._ids.discard(packet.packet_id)
            caller.send(Pubcomp(packet.packet_id))


def publish(broker: Broker, *topics: str, retain: bool) -> None:
    with Caller(broker, client_id="p") as caller:
        assert isinstance(caller.read(), Connack)
        for topic in topics:
            caller.send(Publish(topic, b"x", 2, retain, packet_id=1))
            assert isinstance(caller.read(), Pubrec)
            caller.send(Pubrel(1))
            assert isinstance(caller.read(), Pubcomp)


def kill(broker: Broker) -> None:
    broker.process.kill()
    broker.process.wait(PATIENCE_S)


@pytest.mark.slow
@pytest.mark.spec("MQTT-3.3.1-9", "MQTT-4.3.3-10", "MQTT-4.4.0-1")
@pytest.mark.parametrize("receive_maximum", [1, 65_535])
def test_brokers_that_are_killed_give_each_retained_message_once_and_no_other_its_identifier(
    tmp_path: Path, receive_maximum: int
) -> None:
    topics = sorted(f"r/{number}" for number in range(COUNT))
    receiver = Receiver()
    with running_broker(tmp_path) as broker:
        publish(broker, *topics, retain=True)
    options = SubscriptionOptions(2)
    with (
        running_broker(tmp_path, exit_code=KILLED) as broker,
        receiver.connect(broker, receive_maximum) as caller,
    ):
        caller.send(Subscribe(1, (("r/+", options), ("command", options))))
        assert isinstance(caller.read(), Suback)
        receiver.take(caller, answers=False)
        kill(broker)
    for packets in (0, 1, 2, 5, 8):
        with (
            running_broker(tmp_path, exit_code=KILLED) as broker,
            receiver.connect(broker, receive_maximum) as caller,
        ):
            for _ in range(packets):
                receiver.take(caller)
            kill(broker)
    with running_broker(tmp_path) as broker:
        publish(broker, "command", retain=False)
        with receiver.connect(broker, receive_maximum) as caller:
            while len(receiver.topics) < COUNT + 1:
                receiver.take(caller)
            assert sorted(receiver.topics) == sorted([*topics, "command"])
