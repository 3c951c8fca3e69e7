"""The same promise to foreign clients: paho-mqtt on both sides of a broker that is killed.

paho keeps its half of the session in memory and repeats unacknowledged packets by itself.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.patience import HANG_S
from tests.torture.cast import settings
from tests.torture.process import Broker, Start
from tests.torture.test_kills import SEED
from tests.torture.wire import HOST, reserve_port

mqtt = pytest.importorskip(
    "paho.mqtt.client", reason="paho-mqtt is missing: make test installs it (extra: clients)"
)
from paho.mqtt.packettypes import PacketTypes  # noqa: E402
from paho.mqtt.properties import Properties  # noqa: E402

KILLS = 5
BURST = 5
BURST_SHARE = 0.3
"""Share of the turns in which the publisher is connected."""
OUTSTANDING_MAX = 20
LIFE_S = (0.005, 0.15)
TURN_S = 0.002
TOPICS = ("t/0", "t/1")

Message = tuple[str, bytes, int]
"""Topic, payload, QoS."""


class Client:
    """A paho client with a durable session, in the thread of the test.

    It avoids two things that paho 2.2 cannot do. A message published between CONNECT and CONNACK
    overtakes the repeated ones. A second attempt to connect before a CONNACK makes it forget its
    PUBRECs, so that it publishes messages again that it should only release.
    """

    def __init__(self, client_id: str, protocol: int, port: int) -> None:
        is_5 = protocol == mqtt.MQTTv5
        self.received: list[Message] = []
        self.subscribed = False
        self.paho: Any = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id,
            protocol=protocol,
            **({} if is_5 else {"clean_session": False}),
        )
        self.paho.on_message = self._on_message
        self.paho.on_subscribe = self._on_subscribe
        options: dict[str, Any] = {}
        if is_5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 3_600
            options = {"clean_start": False, "properties": properties}
        self.paho.connect_async(HOST, port, **options)

    def _on_message(self, client: Any, data: Any, message: Any) -> None:
        self.received.append((message.topic, message.payload, message.qos))

    def _on_subscribe(self, *_: Any) -> None:
        self.subscribed = True

    @property
    def is_connected(self) -> bool:
        return bool(self.paho.is_connected())

    def turn(self) -> None:
        """Come back, or see what there is."""
        if self.paho.socket() is None:
            self.paho.reconnect()
        self.paho.loop(TURN_S)

    def read_rest(self) -> None:
        """Read the bytes that a dead broker had sent."""
        while self.paho.socket() is not None:
            self.paho.loop(TURN_S)


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("protocol", [mqtt.MQTTv311, mqtt.MQTTv5], ids=["3.1.1", "5.0"])
def test_paho_loses_nothing_and_gets_nothing_twice(protocol: int, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    random = Random(SEED)
    reserved = reserve_port()
    port = reserved.getsockname()[1]
    subscriber, publisher = Client("s", protocol, port), Client("p", protocol, port)
    sent: list[Message] = []
    tickets: list[Any] = []

    def start() -> Broker:
        return Broker(Start(port, tmp_path, "rocks", settings(random)))

    def turns(done: Callable[[], bool], *, publishes: bool = False) -> None:
        end_s = time.monotonic() + HANG_S
        while not done():
            assert time.monotonic() < end_s, "it hangs"
            if broker.serving_s is None:
                time.sleep(TURN_S)
                continue
            subscriber.turn()
            publisher.turn()
            tickets[:] = [ticket for ticket in tickets if not ticket.is_published()]
            if publishes and publisher.is_connected and random.random() < BURST_SHARE:
                for _ in range(min(BURST, OUTSTANDING_MAX - len(tickets))):
                    topic, qos = random.choice(TOPICS), random.choice((1, 2))
                    sent.append((topic, b"%d" % len(sent), qos))
                    tickets.append(publisher.paho.publish(*sent[-1]))

    broker = start()
    try:
        turns(lambda: subscriber.is_connected and publisher.is_connected)
        subscriber.paho.subscribe("t/#", 2)
        turns(lambda: subscriber.subscribed)
        for _ in range(KILLS):
            turns(lambda: publisher.is_connected and subscriber.is_connected)
            end_s = time.monotonic() + random.uniform(*LIFE_S)
            turns(lambda end_s=end_s: time.monotonic() > end_s, publishes=True)
            broker.kill()
            for client in (subscriber, publisher):
                client.read_rest()
            broker = start()
        turns(lambda: not tickets and set(sent) <= set(subscriber.received))
    finally:
        broker.kill()
        for client in (subscriber, publisher):
            client.paho.disconnect()
            client.paho.loop(TURN_S)
        reserved.close()
    check(sent, subscriber.received)


def check(sent: list[Message], received: list[Message]) -> None:
    """Check that all messages are there, QoS 2 once, each line in its order."""
    counts = Counter(received)
    assert counts.keys() == set(sent)
    assert not [message for message in sent if message[2] == 2 and counts[message] > 1]
    first_deliveries = list(counts)
    for topic in TOPICS:
        for qos in (1, 2):
            came = [each for each in first_deliveries if (each[0], each[2]) == (topic, qos)]
            assert came == [each for each in sent if (each[0], each[2]) == (topic, qos)]
