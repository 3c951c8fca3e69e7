"""A real Kafka stops answering: devices go on, clients that need it wait, and nothing is lost."""

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowguard.codec.packets import (
    Connack,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from flowguard.types import Properties, Publish, ReasonCode, SubscriptionOptions
from spark_analysis.runs import topic
from spark_analysis.runs.examination import examine, find_runs
from tests.flowguard.cli import test_serve_groups as groups
from tests.flowguard.cli.test_serve_kafka import KILLED, durable, kill, publish, received, settings
from tests.flowguard.stores.kafka.benches import new_prefix
from tests.flowguard.telemetry.test_recorder import MESSAGES, rows, talk
from tests.flowguard.telemetry.test_topic import read
from tests.interop.broker import Broker, running_broker
from tests.support.caller import Caller
from tests.support.kafka import Kafka, KafkaNode, kafka
from tests.support.patience import HANG_S

pytestmark = pytest.mark.slow
BACKLOG = 600
"""More than one page."""
NEAR = 100
WAITS = "kafka unavailable"


@pytest.fixture(scope="module")
def only_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture
def server(only_server: Kafka) -> Iterator[Kafka]:
    """A Kafka that may be killed. The next test starts it again."""
    if not only_server.nodes[0].is_running:
        only_server.start()
    yield only_server
    if only_server.nodes[0].is_running:
        only_server.nodes[0].resume()  # A test that failed may have left it paused.


def subscribe(broker: Broker, client_id: str, *topics: str) -> Caller:
    caller = durable(broker, client_id)
    options = SubscriptionOptions(2)
    caller.send(Subscribe(1, tuple((topic, options) for topic in topics)))
    assert isinstance(caller.read(), Suback)
    return caller


def exchange(publisher: Caller, device: Caller, first: int) -> None:
    """Messages of QoS 1 and 2 between devices, both acknowledged to the end, and one of QoS 0."""
    for number in range(first, first + NEAR):
        qos = 1 + number % 2
        publisher.send(Publish("near", b"%d" % number, qos, packet_id=number + 1))
        if qos == 2:
            assert isinstance(publisher.read(), Pubrec)
            publisher.send(Pubrel(number + 1))
        assert isinstance(publisher.read(), (Puback, Pubcomp))
        message = device.read()
        assert isinstance(message, Publish)
        assert message.payload == b"%d" % number
        if qos == 1:
            device.send(Puback(message.packet_id))
        else:
            device.send(Pubrec(message.packet_id))
            assert isinstance(device.read(), Pubrel)
            device.send(Pubcomp(message.packet_id))
    publisher.send(Publish("near", b"fleeting"))
    message = device.read()
    assert isinstance(message, Publish)
    assert message.payload == b"fleeting"


@pytest.mark.parametrize(
    ("take_away", "bring_back"),
    [
        pytest.param(KafkaNode.kill, KafkaNode.start, id="killed"),
        pytest.param(KafkaNode.pause, KafkaNode.resume, id="silent"),
    ],
)
def test_devices_go_on_and_who_publishes_to_an_application_is_answered_when_it_is_back(
    server: Kafka,
    tmp_path: Path,
    take_away: Callable[[KafkaNode], None],
    bring_back: Callable[[KafkaNode], None],
) -> None:
    words = (*settings(tmp_path, new_prefix()), "--kafka-servers", server.servers)
    environment = {"FLOWGUARD_FLOW__CONNECT_PATIENCE_S": "1.5"}
    with running_broker(tmp_path, *words, environment=environment) as broker:
        subscribe(broker, "app-1", "t").close()
        publish(broker, 0, BACKLOG)
        device, near = subscribe(broker, "d", "near"), durable(broker, "n")
        # It reads its backlog: the next pages are asked for while Kafka is silent.
        reader = durable(broker, "app-1", receive_maximum=1)
        take_away(server.nodes[0])
        with Caller(broker, client_id="q") as publisher:
            assert isinstance(publisher.read(), Connack)
            last = b"%d" % BACKLOG
            publisher.send(Publish("t", last, 1, packet_id=1))
            for turn in range(3):
                exchange(near, device, turn * NEAR)
            broker.wait_for_log(WAITS)
            exchange(near, device, 3 * NEAR)
            publisher.send(Pingreq())
            assert isinstance(publisher.read(), Pingresp)  # And no PUBACK.
            properties = Properties(session_expiry_interval=1_000)
            for client_id in ("app-1", "app-2"):
                with Caller(broker, client_id=client_id, properties=properties) as caller:
                    connack = caller.read()
                    assert isinstance(connack, Connack)
                    assert connack.reason_code == ReasonCode.SERVER_UNAVAILABLE
            durable(broker, "d-2").close()
            bring_back(server.nodes[0])
            answer = publisher.read()
            assert isinstance(answer, Puback)
            assert answer.reason_code == 0
        exchange(near, device, 4 * NEAR)
        for caller in (reader, device, near):
            caller.close()
        rest = received(broker, "app-1", BACKLOG + 1)
        assert rest == list(range(BACKLOG + 1))
    assert "kafka available again" in broker.log.read_text()


def test_nothing_acknowledged_is_lost_where_the_broker_is_killed_while_kafka_is_away(
    server: Kafka,
    tmp_path: Path,
) -> None:
    words = (*settings(tmp_path, new_prefix()), "--kafka-servers", server.servers)
    with running_broker(tmp_path, *words, exit_code=KILLED) as first:
        subscribe(first, "app-1", "t").close()
        subscribe(first, "d", "near", "t").close()
        publish(first, 0, 10)
        server.nodes[0].kill()
        with Caller(first, client_id="q") as unanswered, durable(first, "n") as near:
            assert isinstance(unanswered.read(), Connack)
            unanswered.send(Publish("t", b"10", 2, packet_id=1))
            for number in range(10, 20):
                near.send(Publish("near", b"%d" % number, 1, packet_id=number))
                assert isinstance(near.read(), Puback)
            kill(first)
    server.nodes[0].start()
    server.wait_until_ready()
    with running_broker(tmp_path, *words) as second:
        publish(second, 10, 11)  # The publisher sends it again.
        assert received(second, "app-1", 11) == list(range(11))
        expected = [*range(10), *range(10, 20), 10]
        assert received(second, "d", len(expected)) == expected


def test_while_kafka_is_away_devices_go_on_and_then_the_group_does(
    server: Kafka, tmp_path: Path
) -> None:
    got: queue.Queue[groups.Got] = queue.Queue()
    first, second, third = (groups.numbers(at, at + NEAR) for at in (0, NEAR, 2 * NEAR))
    with groups.pair_of(tmp_path, server, new_prefix()) as (a, b):
        members = [groups.Member(a, "app-a", got), groups.Member(b, "app-b", got)]
        groups.probe([a, b], ["app-a", "app-b"], got)
        server.nodes[0].kill()
        waiting = [
            threading.Thread(target=groups.publish, args=(broker, f"p{index}", "t/1", payloads))
            for index, (broker, payloads) in enumerate(((a, first), (b, second)))
        ]
        for thread in waiting:
            thread.start()
        for broker in (a, b):
            broker.wait_for_log(WAITS)
            groups.publish(broker, "device", "other", first)
        server.nodes[0].start()
        found = groups.collected(got, 2 * NEAR)
        for thread in waiting:
            thread.join(HANG_S)
        groups.publish(a, "p", "t/2", third)
        found = groups.collected(got, 3 * NEAR, found)
        for member in members:
            member.close()
    assert {payload for _, _, payload in found} == set(groups.numbers(0, 3 * NEAR))


def test_the_recording_goes_on_when_kafka_was_away(server: Kafka, tmp_path: Path) -> None:
    (node,) = server.nodes
    place = f"kafka://{server.servers}/away"
    with running_broker(tmp_path, "--record", place) as broker:
        talk(broker, "before")
        node.kill()
        talk(broker, "meanwhile")
        node.start()
        server.wait_until_ready()
    topic.write(tmp_path / "runs", read(server, "away"))
    found, left_out = examine(find_runs([tmp_path / "runs"]))
    assert not left_out
    (run,) = found
    samples = rows(Path(run.directory), "samples")
    assert sum(row["published_count"] for row in samples) == 2 * MESSAGES


def test_a_broker_ends_in_good_order_while_kafka_is_away(server: Kafka, tmp_path: Path) -> None:
    words = (*settings(tmp_path, new_prefix()), "--kafka-servers", server.servers)
    with running_broker(tmp_path, *words) as broker:
        subscribe(broker, "app-1", "t").close()
        publish(broker, 0, 10)
        with Caller(broker, client_id="q") as publisher, durable(broker, "app-1"):
            assert isinstance(publisher.read(), Connack)
            server.nodes[0].kill()
            publisher.send(Publish("t", b"10", 1, packet_id=1))
            broker.wait_for_log(WAITS)
            assert broker.terminate() == 0
    said = broker.log.read_text()
    assert "drained" in said
    assert "Unclosed" not in said
