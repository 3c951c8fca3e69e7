"""`flowguard serve --kafka-servers` as processes: what an application gets, what is refused."""

import re
import signal
import sys
import time
from pathlib import Path

import pytest

from flowguard.codec.packets import Connack, Puback, Suback, Subscribe
from flowguard.types import Properties, Publish, ReasonCode, SubscriptionOptions
from store_tools.rocks.copying import back_up_files
from tests.flowguard.cli.test_serve import refused
from tests.flowguard.stores.kafka.deletion import delete_topic
from tests.flowguard.stores.kafka.retention import delete_before
from tests.interop.broker import PATIENCE_S, Broker, running_broker, start
from tests.support.caller import Caller
from tests.support.kafka import shared_kafka

QUEUE_MAX = 50
MESSAGES = 600
"""Number of messages, many more than fit into a queue."""
PIECE = 100
KILLED = -signal.SIGKILL


def settings(folder: Path, prefix: str) -> tuple[str, str]:
    """`--config FILE` in which clients are applications by their names."""
    file = folder / "config.toml"
    file.write_text(
        f'[session]\napplication_client_ids = ["app-*"]\nqueue_messages_max = {QUEUE_MAX}\n'
        f'[kafka]\nprefix = "{prefix}"\n'
    )
    return "--config", str(file)


def durable(broker: Broker, client_id: str, **more: int) -> Caller:
    """A client whose session survives: it is in; told to come back, it comes back."""
    properties = Properties(session_expiry_interval=1_000, **more)
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        caller = Caller(broker, client_id=client_id, clean_start=False, properties=properties)
        connack = caller.read()
        assert isinstance(connack, Connack)
        if connack.reason_code == 0:
            return caller
        caller.close()
        assert connack.reason_code in (ReasonCode.SERVER_UNAVAILABLE, ReasonCode.SERVER_BUSY)
        assert time.monotonic() < deadline_s, "it is never let in"
        time.sleep(0.1)


def subscribe(broker: Broker, *client_ids: str) -> None:
    for client_id in client_ids:
        with durable(broker, client_id) as caller:
            caller.send(Subscribe(1, (("t", SubscriptionOptions(1)),)))
            assert isinstance(caller.read(), Suback)


def publish(broker: Broker, first: int, last: int) -> None:
    """Messages with these numbers, all of them acknowledged."""
    with Caller(broker, client_id="p") as publisher:
        assert isinstance(publisher.read(), Connack)
        for start in range(first, last, PIECE):
            numbers = range(start, min(start + PIECE, last))
            for number in numbers:
                publisher.send(Publish("t", b"%d" % number, 1, packet_id=number + 1))
            for _ in numbers:
                answer = publisher.read()
                assert isinstance(answer, Puback)


def received(broker: Broker, client_id: str, count: int) -> list[int]:
    """The numbers of the next messages of a client that acknowledges each."""
    numbers = []
    with durable(broker, client_id) as caller:
        while len(numbers) < count:
            message = caller.read()
            assert isinstance(message, Publish)
            numbers.append(int(message.payload))
            caller.send(Puback(message.packet_id))
    return numbers


def kill(broker: Broker) -> None:
    broker.process.kill()
    broker.process.wait(PATIENCE_S)


@pytest.mark.slow
def test_an_application_gets_all_that_was_acknowledged_though_the_broker_was_killed(
    tmp_path: Path,
) -> None:
    server = shared_kafka()
    words = (*settings(tmp_path, "killed"), "--kafka-servers", server.servers)
    with running_broker(tmp_path, *words, exit_code=KILLED) as first:
        subscribe(first, "app-1", "device")
        publish(first, 0, MESSAGES)
        kill(first)
    with running_broker(tmp_path, *words, exit_code=KILLED) as second:
        half = received(second, "app-1", MESSAGES // 2)
        assert half == list(range(MESSAGES // 2))
        # A device has the queue of all, in the data directory.
        assert received(second, "device", QUEUE_MAX) == list(range(QUEUE_MAX))
        publish(second, MESSAGES, 2 * MESSAGES)
        kill(second)
    with running_broker(tmp_path, *words) as third:
        with durable(third, "app-1") as caller:
            got: list[int] = []
            while not got or got[-1] < 2 * MESSAGES - 1:
                message = caller.read()
                assert isinstance(message, Publish)
                got.append(int(message.payload))
                caller.send(Puback(message.packet_id))
        # Acknowledged messages may come again; the later ones are complete and in order.
        assert got[0] <= MESSAGES // 2
        assert got == list(range(got[0], 2 * MESSAGES))


@pytest.mark.slow
def test_what_retention_has_taken_from_an_application_is_counted_and_the_rest_comes(
    tmp_path: Path,
) -> None:
    from flowguard.stores.kafka.topics import topic_of

    gone = 100
    server = shared_kafka()
    words = (*settings(tmp_path, "taken"), "--kafka-servers", server.servers)
    with running_broker(tmp_path, *words) as broker:
        subscribe(broker, "app-1")
        publish(broker, 0, MESSAGES)
        topics = server.call(lambda admin: admin.list_topics())
        (topic,) = [each for each in topics if each.startswith(topic_of("taken", "app-1"))]
        delete_before(server, topic, gone)
        assert received(broker, "app-1", MESSAGES - gone) == list(range(gone, MESSAGES))
        publish(broker, MESSAGES, MESSAGES + PIECE)
        more = range(MESSAGES, MESSAGES + PIECE)
        assert received(broker, "app-1", PIECE) == list(more)
    said = broker.log.read_text()
    assert "application lost messages" in said
    assert f"count={gone}" in said
    assert "client=app-1" in said


@pytest.mark.slow
def test_a_topic_that_was_deleted_while_no_broker_ran_is_named_in_the_log(tmp_path: Path) -> None:
    from flowguard.stores.kafka.topics import topic_of

    server = shared_kafka()
    words = (*settings(tmp_path, "gone"), "--kafka-servers", server.servers)
    with running_broker(tmp_path, *words) as broker:
        subscribe(broker, "app-1", "app-2")
        publish(broker, 0, PIECE)
    assert "missing in kafka" not in broker.log.read_text()
    topics = server.call(lambda admin: admin.list_topics())
    (topic,) = [each for each in topics if each.startswith(topic_of("gone", "app-2"))]
    delete_topic(server, topic)
    with running_broker(tmp_path, *words) as broker:
        broker.wait_for_log("topics of applications missing in kafka")
        assert received(broker, "app-1", PIECE) == list(range(PIECE))
    said = broker.log.read_text()
    assert "applications=1 first=app-2" in said


@pytest.mark.slow
def test_what_waits_in_the_data_directory_comes_along_to_kafka_and_is_not_left_there(
    tmp_path: Path,
) -> None:
    server = shared_kafka()
    patterns = settings(tmp_path, "moved")
    with running_broker(tmp_path, *patterns) as before:
        subscribe(before, "app-1")
        publish(before, 0, 2 * QUEUE_MAX)
    words = (*patterns, "--kafka-servers", server.servers)
    with running_broker(tmp_path, *words) as broker:
        publish(broker, 2 * QUEUE_MAX, 3 * QUEUE_MAX)
        assert sorted(received(broker, "app-1", 3 * QUEUE_MAX)) == list(range(3 * QUEUE_MAX))
    code, said = refused("--data", str(tmp_path / "data"))
    assert code == 2, said
    assert "are in Kafka: start with --kafka-servers" in said
    other = ("--data", str(tmp_path / "other"))
    code, said = refused(*words, *other)
    assert code == 2, said
    assert "choose another prefix" in said


@pytest.mark.slow
def test_a_copy_without_kafka_does_not_start_and_takes_its_topics_over_when_told(
    tmp_path: Path,
) -> None:
    server = shared_kafka()
    words = (*settings(tmp_path, "copied"), "--kafka-servers", server.servers)
    with running_broker(tmp_path, *words) as broker:
        subscribe(broker, "app-1")
        publish(broker, 0, PIECE)
    copy = tmp_path / "restored" / "data"
    copy.parent.mkdir()
    back_up_files(tmp_path / "data", copy)
    code, said = refused("--data", str(copy))
    assert code == 2, said
    assert "are in Kafka: start with --kafka-servers" in said
    code, said = refused(*words, "--data", str(copy))
    assert code == 2, said
    (mark,) = re.findall(r"deleting the topic (\S+)", said)
    elsewhere = (*settings(copy.parent, "elsewhere"), *words[2:])
    with running_broker(copy.parent, *elsewhere) as broker:
        broker.wait_for_log("topics of applications missing in kafka")
    delete_topic(server, mark)
    with running_broker(copy.parent, *words) as broker:
        assert received(broker, "app-1", PIECE) == list(range(PIECE))
    code, said = refused(*words, "--data", str(tmp_path / "data"))
    assert code == 2, said
    assert "another data directory" in said


def test_without_a_server_or_with_another_store_it_says_so_and_does_not_start(
    tmp_path: Path,
) -> None:
    pytest.importorskip("aiokafka", reason="aiokafka is missing")
    data = ("--data", str(tmp_path / "data"))
    code, said = refused("--kafka-servers", "127.0.0.1:1", *data)
    assert code == 2, said
    assert "no Kafka answers at 127.0.0.1:1" in said
    code, said = refused("--kafka-servers", "nowhere", *data)
    assert code == 2, said
    assert "expected HOST:PORT" in said
    code, said = refused("--kafka-servers", "127.0.0.1:1", "--store", "memory", *data)
    assert code == 2, said
    assert "needs store.kind rocks" in said
    large = {"FLOWGUARD_SESSION__PACKET_SIZE_MAX": str(64 * 1024 * 1024)}
    code, said = refused("--kafka-servers", "127.0.0.1:1", *data, environment=large)
    assert code == 2, said
    assert "larger than what store.application_store kafka takes" in said


def test_without_the_driver_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "aiokafka.py").write_text(
        "raise ModuleNotFoundError('No module', name='aiokafka')\n"
    )
    data = ("--data", str(tmp_path / "data"))
    environment = {"PYTHONPATH": str(tmp_path)}
    words = ("serve", "--listen", "127.0.0.1:0", "--kafka-servers", "127.0.0.1:1", *data)
    with start(*words, environment=environment) as process:
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2, said
    assert f"needs: {sys.executable} -m pip install 'flowguard-mqtt[kafka]'" in said
