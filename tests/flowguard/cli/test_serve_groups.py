"""Several `flowguard serve` on one Kafka: shared subscriptions of applications that they share."""

import queue
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from flowguard.codec.packets import (
    Connack,
    Disconnect,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from flowguard.stores.kafka.connection.link import KafkaMessage
from flowguard.types import Publish, ReasonCode, SubscriptionOptions
from tests.flowguard.cli.test_serve_kafka import durable
from tests.flowguard.stores.kafka.benches import new_prefix, open_link
from tests.interop.broker import Broker
from tests.support.caller import Caller
from tests.support.group_brokers import broker_of
from tests.support.kafka import Kafka, shared_kafka
from tests.support.patience import HANG_S

FILTER = "$share/g/t/#"
MESSAGES = 300
PUBLISHERS = 6
KILLED = -signal.SIGKILL
Got = tuple[str, str, bytes]
"""Member, topic, payload."""


class Member:
    """An application that acknowledges all it gets, or nothing, in a thread of its own."""

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        got: "queue.Queue[Got]",
        qos: int = 1,
        *,
        answers: bool = True,
    ) -> None:
        self._answers = answers
        self._got = got
        self._name = client_id
        self._caller = durable(broker, client_id)
        self._caller.send(Subscribe(1, ((FILTER, SubscriptionOptions(qos)),)))
        self._is_subscribed, self._has_left = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._is_subscribed.wait(HANG_S)

    def _run(self) -> None:
        try:
            while (packet := self._caller.read()) is not None:
                match packet:
                    case Suback():
                        self._is_subscribed.set()
                    case Unsuback():
                        self._has_left.set()
                    case Publish():
                        answer = Puback if packet.qos == 1 else Pubrec
                        if self._answers:
                            self._caller.send(answer(packet.packet_id))
                        # After that, because a client that has seen it may send DISCONNECT at once.
                        self._got.put((self._name, packet.topic, packet.payload))
                    case Pubrel():
                        self._caller.send(Pubcomp(packet.packet_id))
        except OSError:
            return  # The broker was killed, or the member has ended.

    def leave(self) -> None:
        """It is a member no more."""
        self._caller.send(Unsubscribe(2, (FILTER,)))
        assert self._has_left.wait(HANG_S)

    def close(self) -> None:
        """Disconnect; the session stays."""
        with suppress(OSError):
            self._caller.send(Disconnect())
        self._thread.join(HANG_S)
        self._caller.close()


@pytest.fixture
def got() -> "queue.Queue[Got]":
    """A queue of the messages that members got."""
    return queue.Queue()


@contextmanager
def pair_of(
    tmp_path: Path, server: Kafka, groups: str, **options: Any
) -> Iterator[tuple[Broker, Broker]]:
    """Two brokers that have their groups together; `options` as of `broker_of`."""
    with (
        broker_of(tmp_path, server, groups, "a", **options) as a,
        broker_of(tmp_path, server, groups, "b", **options) as b,
    ):
        yield a, b


def publish(broker: Broker, client_id: str, topic: str, payloads: Sequence[bytes]) -> bool:
    """Publish with QoS 1 until all are acknowledged. Return True if each had a subscriber."""
    codes = set[int]()
    with Caller(broker, client_id=client_id) as publisher:
        assert isinstance(publisher.read(), Connack)
        for packet_id, payload in enumerate(payloads, 1):
            publisher.send(Publish(topic, payload, 1, packet_id=packet_id))
        for _ in payloads:
            answer = publisher.read()
            assert isinstance(answer, Puback)
            codes.add(answer.reason_code)
    return ReasonCode.NO_MATCHING_SUBSCRIBERS not in codes


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def probe(brokers: Sequence[Broker], members: Sequence[str], got: "queue.Queue[Got]") -> None:
    """Return when each of these members has got a message, so that the distributor is decided."""
    seen: set[str] = set()
    sent = Counter[bytes]()
    for number in count():
        if seen >= set(members) and not sent:
            return
        payload = b"probe %d" % number
        sent[payload] += 1
        broker, publisher = brokers[number % len(brokers)], f"probe-{number % 24}"
        while not publish(broker, publisher, "t/probe", [payload]):
            pass  # It has not heard of the group yet.
        while sent:
            name, _, payload = got.get(timeout=HANG_S)
            seen.add(name)
            sent.pop(payload, None)


def collected(got: "queue.Queue[Got]", wanted: int, before: Sequence[Got] = ()) -> list[Got]:
    """Return the messages received when `wanted` different payloads are there, including
    `before`."""
    found = list(before)
    while len({payload for _, _, payload in found}) < wanted:
        each = got.get(timeout=HANG_S)
        if each[1] != "t/probe":
            found.append(each)
    return found


@pytest.mark.slow
def test_what_is_published_on_any_broker_comes_to_one_member_of_all_in_order_and_once(
    tmp_path: Path, got: "queue.Queue[Got]"
) -> None:
    server, groups = shared_kafka(), new_prefix()
    with pair_of(tmp_path, server, groups) as (a, b):
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


def group_topics(server: Kafka, groups: str) -> list[str]:
    found = server.call(lambda admin: admin.list_topics())
    return [each for each in found if each.startswith(f"{groups}.group.")]


def group_topic(server: Kafka, groups: str) -> str:
    """Return the topic of the one group, which may exist before all asked nodes have it."""
    while not (found := group_topics(server, groups)):
        pass
    (topic,) = found
    return topic


@pytest.mark.slow
def test_when_a_broker_is_killed_the_other_one_hands_out_what_it_had_and_nothing_is_lost(
    tmp_path: Path, got: "queue.Queue[Got]"
) -> None:
    server, groups = shared_kafka(), new_prefix()
    with broker_of(tmp_path, server, groups, "a") as a:
        with broker_of(tmp_path, server, groups, "b", exit_code=KILLED) as b:
            members = [Member(a, "app-a", got), Member(b, "app-b", got, answers=False)]
            probe([a, b], ["app-a", "app-b"], got)
            for index in range(PUBLISHERS):
                payloads = numbers(index * MESSAGES, (index + 1) * MESSAGES)
                publish((a, b)[index % 2], f"p{index}", f"t/{index}", payloads)
            b.process.kill()
            b.process.wait(HANG_S)
        # All partitions of the topic.
        for index in range(24):
            publish(a, f"after {index}", "t/after", [b"after %d" % index])
        found: list[Got] = []
        while (
            len({payload for name, _, payload in found if name == "app-a"})
            < PUBLISHERS * MESSAGES + 24
        ):
            each = got.get(timeout=HANG_S)
            if each[1] != "t/probe":
                found.append(each)
        for member in members:
            member.close()
    for index in range(PUBLISHERS):
        of_one = [
            int(payload)
            for name, topic, payload in found
            if name == "app-a" and topic == f"t/{index}"
        ]
        assert of_one == list(range(index * MESSAGES, (index + 1) * MESSAGES))


@pytest.mark.slow
def test_a_broker_without_members_writes_for_a_group_of_which_it_has_heard(
    tmp_path: Path, got: "queue.Queue[Got]"
) -> None:
    server, groups = shared_kafka(), new_prefix()
    with pair_of(tmp_path, server, groups) as (a, b):
        member = Member(a, "app-a", got, qos=2)
        probe([b], ["app-a"], got)
        publish(b, "p", "t/1", numbers(0, MESSAGES))
        assert [int(each) for _, _, each in collected(got, MESSAGES)] == list(range(MESSAGES))
        # It waits for offline members, which are still known after a start.
        member.close()
        publish(b, "p", "t/1", numbers(MESSAGES, 2 * MESSAGES))
        assert b.terminate() == 0
        with broker_of(tmp_path, server, groups, "b") as again:
            publish(again, "p", "t/1", numbers(2 * MESSAGES, 3 * MESSAGES))
        member = Member(a, "app-a", got, qos=2)
        found = [int(each) for _, _, each in collected(got, 2 * MESSAGES)]
        assert found == list(range(MESSAGES, 3 * MESSAGES))
        member.close()


@pytest.mark.slow
def test_a_group_ends_with_its_last_member_on_any_broker_and_may_begin_anew(
    tmp_path: Path, got: "queue.Queue[Got]"
) -> None:
    server, groups = shared_kafka(), new_prefix()
    with pair_of(tmp_path, server, groups) as (a, b):
        members = [Member(a, "app-a", got), Member(b, "app-b", got)]
        probe([a, b], ["app-a", "app-b"], got)
        topic = group_topic(server, groups)
        members[0].leave()
        publish(a, "p", "t/1", numbers(0, MESSAGES))
        found = collected(got, MESSAGES)
        assert {name for name, _, _ in found} == {"app-b"}
        members[1].leave()
        publish(a, "p", "t/1", numbers(MESSAGES, 2 * MESSAGES))
        while topic in group_topics(server, groups):
            assert a.process.poll() is None
        for member in members:
            member.close()
        again = Member(b, "app-b", got)
        probe([a, b], ["app-b"], got)
        publish(a, "p", "t/1", numbers(2 * MESSAGES, 3 * MESSAGES))
        found = collected(got, MESSAGES)
        assert [int(each) for _, _, each in found] == list(range(2 * MESSAGES, 3 * MESSAGES))
        again.close()


@pytest.mark.slow
def test_what_is_wrong_with_a_group_is_in_the_log_once_and_it_goes_on(
    tmp_path: Path, got: "queue.Queue[Got]"
) -> None:
    server, groups = shared_kafka(), new_prefix()
    with broker_of(tmp_path, server, groups, "a") as a:
        member = Member(a, "app-a", got)
        topic = group_topic(server, groups)
        link = open_link(server)
        for partition in range(2):
            link.append({(topic, partition): [KafkaMessage(b"key", b"damaged")]})
        link.close()
        for index in range(24):  # Behind them, too.
            publish(a, f"p{index}", "t/1", numbers(index, index + 1))
        found = collected(got, 24)
        a.wait_for_log("application lost messages")
        member.close()
    assert {payload for _, _, payload in found} == set(numbers(0, 24))
    text = a.log.read_text()
    assert text.count("damaged group record lost") == 1
    (line,) = [each for each in text.splitlines() if "damaged group record lost" in each]
    assert f"of {topic}, offset 0" in line


@pytest.mark.slow
def test_without_a_prefix_for_groups_each_broker_has_its_own(
    tmp_path: Path, got: "queue.Queue[Got]"
) -> None:
    server, groups = shared_kafka(), new_prefix()
    with pair_of(tmp_path, server, groups, shares=False) as (a, b):
        members = [Member(a, "app-a", got), Member(b, "app-b", got)]
        publish(a, "p", "t/1", numbers(0, MESSAGES))
        assert {name for name, _, _ in collected(got, MESSAGES)} == {"app-a"}
        publish(b, "p", "t/1", numbers(0, MESSAGES))
        assert {name for name, _, _ in collected(got, MESSAGES)} == {"app-b"}
        for member in members:
            member.close()
    topics = server.call(lambda admin: admin.list_topics())
    assert not [each for each in topics if each.startswith(f"{groups}.group")]


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_where_a_broker_is_killed_and_comes_back_while_others_publish(
    tmp_path: Path, got: "queue.Queue[Got]"
) -> None:
    server, groups = shared_kafka(), new_prefix()
    rounds, of_each = 8, 50

    def publish_rounds(broker: Broker, index: int) -> None:
        for number in range(rounds):
            first = (index * rounds + number) * of_each
            publish(broker, f"p{index}", f"t/{index}", numbers(first, first + of_each))

    with broker_of(tmp_path, server, groups, "a") as a:
        member = Member(a, "app-a", got, qos=2)
        with broker_of(tmp_path, server, groups, "b", exit_code=KILLED) as b:
            other = Member(b, "app-b", got)
            probe([a, b], ["app-a", "app-b"], got)
            publishers = [
                threading.Thread(target=publish_rounds, args=(a, index))
                for index in range(PUBLISHERS)
            ]
            for thread in publishers:
                thread.start()
            begun = collected(got, 1)
            b.process.kill()
            b.process.wait(HANG_S)
        with broker_of(tmp_path, server, groups, "b") as b:
            again = Member(b, "app-b", got)
            found = collected(got, PUBLISHERS * rounds * of_each, begun)
            for thread in publishers:
                thread.join(HANG_S)
            for each in (member, other, again):
                each.close()
    come = {payload for _, _, payload in found}
    assert come == set(numbers(0, PUBLISHERS * rounds * of_each))
