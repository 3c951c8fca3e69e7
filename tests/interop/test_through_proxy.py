"""Other people's clients through `flowguard proxy`, with other people's brokers behind it.

What they say is recorded before and behind the proxy, both ways: nothing of it needs a change, so
the bytes are identical.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.survivors.field import FIELD
from benchmarks.survivors.installs import PEERS
from benchmarks.survivors.standing import standing
from tests.broker_adapter.upstream import MOSQUITTO, mosquitto, proxy
from tests.interop.clients import CLIENTS, make_peer
from tests.interop.peer import Engines, Message, Subscription
from tests.interop.recording import Recording, recording

pytestmark = [pytest.mark.peers, pytest.mark.slow]

POLL_S = 0.05
PATIENCE_S = 60.0
"""Only against hanging: bytes that differ never become the same."""
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

    def wait_until_the_same(self) -> None:
        """Some bytes may still be between the two."""
        wait_until(lambda: self.before == self.behind)
        assert self.before.to_broker == self.behind.to_broker
        assert self.before.to_client == self.behind.to_client

    def wait_until_all_was_said(self) -> None:
        """The same of what clients have said, who are gone."""
        wait_until(lambda: self.before.to_broker == self.behind.to_broker)
        assert self.before.to_broker == self.behind.to_broker


def wait_until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < end_s:
        time.sleep(POLL_S)


@contextmanager
def hivemq() -> Iterator[int]:
    broker = FIELD["hivemq-ce"]
    if not list(PEERS.glob("hivemq-*/hivemq-*.jar")):
        pytest.skip("no HiveMQ CE here (scripts/setup-test-peers.sh names what is missing)")
    with standing(broker, behind_proxy=False) as running:
        yield running.port


@pytest.fixture(
    scope="module",
    params=["mosquitto", pytest.param("hivemq-ce", marks=pytest.mark.long)],
)
def upstream(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """The port of a broker."""
    if request.param == "hivemq-ce":
        with hivemq() as port:
            yield port
    elif MOSQUITTO is None:
        pytest.skip("no mosquitto here")
    else:
        with mosquitto(tmp_path_factory.mktemp("mosquitto")) as broker:
            yield broker.port


@pytest.fixture
def chain(upstream: int, tmp_path: Path) -> Iterator[Chain]:
    with (
        recording(upstream) as behind,
        proxy(tmp_path, behind.port) as port,
        recording(port) as before,
    ):
        yield Chain(before, behind)


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
    try:
        subscriber, publisher = peer.open(Subscription(f"{topic}/#", 2)), peer.open()
        publisher.publish(*sent)
        got = [subscriber.receive() for _ in sent]
        # Brokers keep the order of a topic and a QoS, some no other.
        assert sorted((m.topic, m.payload, m.qos) for m in got) == sorted(
            (m.topic, m.payload, m.qos) for m in sent
        )
        chain.wait_until_the_same()
    finally:
        peer.close()
    chain.wait_until_all_was_said()
    # What a broker says to a client that has just left reaches the proxy, and nobody else.
    for told, said in zip(chain.before.to_client, chain.behind.to_client, strict=True):
        assert said.startswith(told)
    assert len(chain.before.to_broker) == 2
    assert sum(map(len, chain.before.to_broker)) > len(BIG)
    assert sum(map(len, chain.before.to_client)) > len(BIG)
