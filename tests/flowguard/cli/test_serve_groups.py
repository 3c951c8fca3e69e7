"""Several `flowguard serve` on one Kafka: shared subscriptions of applications that they share."""

import queue
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from flowguard.codec.packets import (
    Connack,
    Disconnect,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsubscribe,
)
from flowguard.types import Properties, Publish, SubscriptionOptions
from tests.flowguard.stores.kafka.benches import new_prefix
from tests.interop.broker import Broker, running_broker
from tests.support.caller import Caller
from tests.support.kafka import Kafka, shared_kafka
from tests.support.patience import HANG_S

FILTER = "$share/g/t/#"
MESSAGES = 300
PUBLISHERS = 6
KILLED = -signal.SIGKILL
LASTING = Properties(session_expiry_interval=1_000)
Got = tuple[str, str, bytes]
"""Member, topic, payload."""


@contextmanager
def broker_of(
    folder: Path, server: Kafka, groups: str, name: str, exit_code: int = 0
) -> Iterator[Broker]:
    """One of those that share the groups below a prefix, with a data directory of its own."""
    place = folder / name
    place.mkdir(exist_ok=True)
    file = place / "config.toml"
    file.write_text(
        '[session]\napplication_client_ids = ["app-*"]\n'
        f'[kafka]\nprefix = "{groups}-{name}"\ngroups_prefix = "{groups}"\n'
    )
    words = ("--config", str(file), "--kafka-servers", server.servers)
    with running_broker(place, *words, exit_code=exit_code) as broker:
        yield broker


class Member:
    """An application that acknowledges all it gets, in a thread of its own."""

    def __init__(
        self, broker: Broker, client_id: str, got: "queue.Queue[Got]", qos: int = 1
    ) -> None:
        self._got = got
        self._name = client_id
        self._caller = Caller(broker, client_id=client_id, clean_start=False, properties=LASTING)
        assert isinstance(self._caller.read(), Connack)
        self._caller.send(Subscribe(1, ((FILTER, SubscriptionOptions(qos)),)))
        self._is_subscribed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._is_subscribed.wait(HANG_S)

    def _run(self) -> None:
        try:
            while (packet := self._caller.read()) is not None:
                match packet:
                    case Suback():
                        self._is_subscribed.set()
                    case Publish():
                        self._got.put((self._name, packet.topic, packet.payload))
                        answer = Puback if packet.qos == 1 else Pubrec
                        self._caller.send(answer(packet.packet_id))
                    case Pubrel():
                        self._caller.send(Pubcomp(packet.packet_id))
        except OSError:
            return  # Its broker was killed, or it is over.

    def leave(self) -> None:
        """It is a member no more."""
        self._caller.send(Unsubscribe(2, (FILTER,)))

    def close(self) -> None:
        """It is away; its session stays."""
        with suppress(OSError):
            self._caller.send(Disconnect())
        self._thread.join(HANG_S)
        self._caller.close()


def publish(broker: Broker, client_id: str, topic: str, payloads: Sequence[bytes]) -> None:
    """With QoS 1; all of them are acknowledged."""
    with Caller(broker, client_id=client_id) as publisher:
        assert isinstance(publisher.read(), Connack)
        for packet_id, payload in enumerate(payloads, 1):
            publisher.send(Publish(topic, payload, 1, packet_id=packet_id))
        for _ in payloads:
            assert isinstance(publisher.read(), Puback)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def probe(brokers: Sequence[Broker], members: Sequence[str], got: "queue.Queue[Got]") -> None:
    """Return when each of these members is given something: who hands out what is decided."""
    seen: set[str] = set()
    sent = Counter[bytes]()
    for number in count():
        if seen >= set(members) and not sent:
            return
        payload = b"probe %d" % number
        sent[payload] += 1
        publish(brokers[number % len(brokers)], f"probe-{number % 24}", "t/probe", [payload])
        while sent:
            name, _, payload = got.get(timeout=HANG_S)
            seen.add(name)
            sent.pop(payload, None)


def collected(got: "queue.Queue[Got]", wanted: int) -> list[Got]:
    """What has come when so many different payloads have."""
    found: list[Got] = []
    while len({payload for _, _, payload in found}) < wanted:
        each = got.get(timeout=HANG_S)
        if each[1] != "t/probe":
            found.append(each)
    return found


@pytest.mark.slow
def test_what_is_published_on_any_broker_comes_to_one_member_of_all_in_order_and_once(
    tmp_path: Path,
) -> None:
    server, groups = shared_kafka(), new_prefix()
    got: queue.Queue[Got] = queue.Queue()
    with (
        broker_of(tmp_path, server, groups, "a") as a,
        broker_of(tmp_path, server, groups, "b") as b,
    ):
        members = [Member(a, "app-a", got), Member(b, "app-b", got)]
        probe([a, b], ["app-a", "app-b"], got)
        for index in range(PUBLISHERS):
            broker = (a, b)[index % 2]
            payloads = numbers(index * MESSAGES, (index + 1) * MESSAGES)
            publish(broker, f"p{index}", f"t/{index}", payloads)
        found = collected(got, PUBLISHERS * MESSAGES)
        for member in members:
            member.close()
    assert len(found) == PUBLISHERS * MESSAGES
    assert {name for name, _, _ in found} == {"app-a", "app-b"}
    for index in range(PUBLISHERS):
        of_one = [int(payload) for _, topic, payload in found if topic == f"t/{index}"]
        assert of_one == list(range(index * MESSAGES, (index + 1) * MESSAGES))
