"""Other people's clients through `flowguard proxy`, with Mosquitto behind it.

What they say is recorded before and behind the proxy, both ways: nothing of it needs a change, so
the bytes are identical. Only their order may differ on a busy machine, where a packet has to wait
for its window: acknowledgements pass it, as `broker_adapter.proxy.pair` says.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pytest

from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.packets import Packet, Pubcomp
from flowguard.codec.primitives import remaining_length
from flowguard.types import MQTT_5, MQTT_311
from tests.broker_adapter.upstream import MOSQUITTO, mosquitto, proxy
from tests.interop.clients import CLIENTS, make_peer
from tests.interop.peer import Engines, Message, Subscription
from tests.interop.recording import Recording, recording
from tests.support.patience import HANG_S

pytestmark = [pytest.mark.peers, pytest.mark.slow]

POLL_S = 0.05
WINDOWED = (3, 8, 10)
"""PUBLISH, SUBSCRIBE, UNSUBSCRIBE."""
WAYS: tuple[tuple[str, Literal["server", "client"]], ...] = (
    ("to_broker", "server"),
    ("to_client", "client"),
)
"""Of a recording, and who decodes it."""
BIG = b"x" * 150_000
NAMES = [
    f"{name} {version}"
    for name, client in CLIENTS.items()
    for version in client.versions
    if client.is_library and version != "3.1"  # The proxy speaks 3.1.1 and 5.0.
]


@dataclass
class Chain:
    """A broker, and a proxy with a recording before and behind it."""

    before: Recording
    behind: Recording

    def wait_until_the_same(self, version: int, completed: int) -> None:
        """Some bytes may still be between the two, and some exchanges of QoS 2 under way."""
        end_s = time.monotonic() + HANG_S
        while time.monotonic() < end_s:
            is_same = in_lanes(self.before.to_broker) == in_lanes(self.behind.to_broker)
            is_same &= used(self.before.to_client) == used(self.behind.to_client)
            if is_same and self._completed(version) >= completed:
                break
            time.sleep(POLL_S)
        assert self._completed(version) == completed
        assert in_lanes(self.before.to_broker) == in_lanes(self.behind.to_broker)
        assert used(self.before.to_client) == used(self.behind.to_client)

    def _completed(self, version: int) -> int:
        """Exchanges of QoS 2 that have come to their end, both ways."""
        return sum(
            isinstance(packet, Pubcomp)
            for streams, role in WAYS
            for stream in getattr(self.before, streams)
            for packet in packets_of(bytes(stream), version, role)
        )


def in_lanes(streams: Sequence[bytearray]) -> list[list[bytes]]:
    """The packets of each connection, those that count in windows behind the others; as they are,
    and each kind in its order."""
    return [
        sorted(cut(bytes(stream)), key=lambda packet: packet[0] >> 4 in WINDOWED)
        for stream in used(streams)
    ]


def used(streams: Sequence[bytearray]) -> list[bytearray]:
    """The streams with bytes: the proxy also connects by itself, to see if the broker answers."""
    return [stream for stream in streams if stream]


def cut(stream: bytes) -> Iterator[bytes]:
    """The packets of a stream; the last one may have come in part."""
    start = 0
    while start < len(stream):
        try:
            size_bytes, body = remaining_length(stream, start, MQTT_5)
        except IndexError:
            size_bytes, body = 0, len(stream)
        yield stream[start : body + size_bytes]
        start = body + size_bytes


def packets_of(stream: bytes, version: int, role: Literal["server", "client"]) -> Iterator[Packet]:
    decoder = PacketDecoder(2**28, 0 if role == "server" else version, role=role)
    decoder.feed(stream)
    while (packet := decoder.next()) is not None:
        yield packet


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of Mosquitto."""
    if MOSQUITTO is None:
        pytest.skip("no mosquitto here")
    with mosquitto(tmp_path_factory.mktemp("mosquitto")) as broker:
        yield broker.port


@pytest.fixture(scope="module")
def one_chain(upstream: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """One proxy for all clients of a broker: it begins with the next as with the first."""
    with (
        recording(upstream) as behind,
        proxy(tmp_path_factory.mktemp("proxy"), behind.port) as port,
        recording(port) as before,
    ):
        yield Chain(before, behind)


@pytest.fixture
def chain(one_chain: Chain) -> Chain:
    one_chain.before.forget()
    one_chain.behind.forget()
    return one_chain


@pytest.mark.parametrize("name", NAMES)
def test_what_passes_the_proxy_is_the_same_byte_by_byte(
    name: str, chain: Chain, engines: Engines, topic: str
) -> None:
    peer = make_peer(name, chain.before.port, engines)
    sent = [
        *(Message(f"{topic}/{qos}", b"hello %d" % qos, qos) for qos in (0, 1, 2)),
        Message(f"{topic}/big", BIG, 1),
        Message(f"{topic}/empty", b"", 2),
    ]
    version = MQTT_5 if name.endswith("5.0") else MQTT_311
    completed = 2 * sum(message.qos == 2 for message in sent)  # To the broker, and on from there.
    try:
        subscriber, publisher = peer.open(Subscription(f"{topic}/#", 2)), peer.open()
        publisher.publish(*sent)
        got = [subscriber.receive() for _ in sent]
        # Brokers keep the order of a topic and a QoS, some no other.
        assert sorted((m.topic, m.payload, m.qos) for m in got) == sorted(
            (m.topic, m.payload, m.qos) for m in sent
        )
        # Else a broker may say the rest of them to a client that has just left.
        chain.wait_until_the_same(version, completed)
    finally:
        peer.close()
    chain.wait_until_the_same(version, completed)
    assert len(chain.before.to_broker) == 2
    assert sum(map(len, chain.before.to_broker)) > len(BIG)
    assert sum(map(len, chain.before.to_client)) > len(BIG)
