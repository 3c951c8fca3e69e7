"""`flowguard explain`: sentences for people, JSON for programs, and unknown clients."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowguard.codec.packets import Connack, Disconnect, Puback, Suback, Subscribe
from flowguard.config import MIB
from flowguard.ops.condition import NO_ROOM
from flowguard.ops.explain import Cause, Explanation, explain
from flowguard.ops.explain_words import DROPS, sentences
from flowguard.stores import MemoryStore
from flowguard.types import Properties, Publish, SubscriptionOptions
from tests.flowguard.cli.http_port import http_address, run
from tests.flowguard.cli.test_serve import Caller
from tests.interop.broker import Broker, running_broker
from tests.support.stage import Stage, StoreOnDisk


def explanation(stage: Stage, client_id: str) -> Explanation:
    found = explain(stage.node, client_id, stage.now_s)
    assert found is not None
    return found


def test_a_client_that_waits_for_nothing() -> None:
    stage = Stage()
    stage.connect("c")
    assert sentences(explanation(stage, "c"))[:2] == [
        "c is connected (MQTT 5.0).",
        "It is not paused: its packets are processed at once.",
    ]


def test_a_pause_is_a_sentence() -> None:
    stage = Stage()
    stage.connect("c")
    found = explanation(stage, "c")
    found["paused"] = [Cause(reason="window", text="its window is full: 1 of 1 packets")]
    found["why"] = "cut to 50 %: store at 4.0 of its objective"
    assert "It is paused: its window is full: 1 of 1 packets." in sentences(found)
    found["window"] = 50.0
    assert sentences(found)[-1] == (
        "The window of each client is 50 packets (cut to 50 %: store at 4.0 of its objective)."
    )


@pytest.mark.parametrize(
    ("window", "why", "said"),
    [
        (100, "at its maximum of 100", "100 packets (at its maximum of 100)."),
        (1, "grows: calm for 4 ticks", "1 packet (grows: calm for 4 ticks)."),
        (0.25, "in the dead band", "less than 1 packet (in the dead band)."),
    ],
)
def test_the_window_is_one_sentence(window: float, why: str, said: str) -> None:
    stage = Stage()
    stage.connect("c")
    found = explanation(stage, "c")
    found["window"], found["why"] = window, f"{NO_ROOM}; {why}"
    assert sentences(found)[-2:] == [
        "The store is full: durable messages and new durable sessions are rejected.",
        f"The window of each client is {said}",
    ]


def test_a_client_that_is_away_and_whose_queue_is_full() -> None:
    stage = Stage({"session": {"queue_messages_max": 1}})
    client = stage.connect_durable("c")
    client.subscribe("t", qos=1)
    client.close()
    stage.connect("p").publish("t", b"x", qos=1)
    first, *rest = sentences(explanation(stage, "c"))
    assert first.startswith("c is not connected; its session is kept until ")
    assert (
        "Dropped for it now: QoS 1 and 2 messages, because its queue has its maximum of messages."
        in rest
    )


def test_what_a_slow_client_waits_for() -> None:
    stage = Stage()
    client = stage.connect("c", receive_maximum=1)
    client.subscribe("t", qos=1)
    publisher = stage.connect("p")
    for _ in range(3):
        publisher.publish("t", b"x", qos=1)
    assert (
        "2 messages wait for it: it has not acknowledged 1 of the 1 messages that may be in flight."
        in sentences(explanation(stage, "c"))
    )


@pytest.mark.parametrize("store", [MemoryStore(), StoreOnDisk()], ids=["memory", "disk"])
def test_a_client_that_has_its_share_of_all_queues(store: MemoryStore) -> None:
    stage = Stage({"node": {"queue_bytes_max": MIB, "disk_queue_bytes_max": MIB}}, store=store)
    client = stage.connect_durable("c")
    client.subscribe("t", qos=1)
    client.close()
    publisher = stage.connect("p")
    for _ in range(20):
        publisher.publish("t", bytes(100 * 1024), qos=1)
    (dropped,) = [line for line in sentences(explanation(stage, "c")) if "all queues" in line]
    assert dropped.endswith("has its share.")
    assert ("on the disk" in dropped) == store.on_disk


def test_every_reason_to_drop_has_words() -> None:
    stage = Stage()
    stage.connect("c")
    found = explanation(stage, "c")
    found["dropped"] = [str(reason) for reason in DROPS]
    assert len([line for line in sentences(found) if line.startswith("Dropped")]) == len(DROPS)


# --- the command -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("explain")) as running:
        yield running


@pytest.fixture(scope="module")
def address(broker: Broker) -> str:
    return http_address(broker)


@pytest.mark.slow
@pytest.mark.parametrize("client_id", ["plain", "with/slash", "[red]50 % [/red]"])
def test_a_real_client(broker: Broker, address: str, client_id: str) -> None:
    with Caller(broker, client_id=client_id) as caller:
        assert isinstance(caller.read(), Connack)
        code, stdout, stderr = run("explain", client_id, "--url", address)
    assert code == 0, stderr
    assert re.search(
        rf"{re.escape(client_id)} is connected from 127\.0\.0\.1:\d+ \(MQTT 5\.0\)\.", stdout
    )
    assert "subscriptions" in stdout
    assert "of 1,000 PUBLISH packets; CONNACK allowed 32" in " ".join(stdout.split())


@pytest.mark.slow
def test_json_for_programs(broker: Broker, address: str) -> None:
    with Caller(broker, client_id="c") as caller:
        assert isinstance(caller.read(), Connack)
        code, stdout, _ = run("explain", "c", "--json", "--url", f"http://{address}")
    assert code == 0
    assert json.loads(stdout)["client_id"] == "c"


@pytest.mark.slow
def test_an_unknown_client(address: str) -> None:
    code, stdout, stderr = run("explain", "nobody", "--url", address)
    assert code == 1
    assert stdout == ""
    assert "no session of a client 'nobody'" in stderr


@pytest.mark.slow
def test_no_broker_there() -> None:
    code, _, stderr = run("explain", "c", "--url", "127.0.0.1:1")
    assert code == 1
    assert "no answer from 127.0.0.1:1" in stderr or "no answer from http://127.0.0.1:1" in stderr
    assert "flowguard explain --url http://HOST:PORT" in stderr


@pytest.mark.slow
def test_messages_in_the_durable_log_are_counted(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    environment = {"FLOWGUARD_SESSION__LOG_THRESHOLD": "1"}
    with running_broker(tmp_path, *data, environment=environment) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        kept = Properties(session_expiry_interval=1_000)
        with Caller(broker, client_id="absent", properties=kept) as caller:
            assert isinstance(caller.read(), Connack)
            caller.send(Subscribe(1, (("t", SubscriptionOptions(1)),)))
            assert isinstance(caller.read(), Suback)
            caller.send(Disconnect())
            assert caller.read() is None
        assert "In the durable log: 0 messages for it." in run("explain", "absent", *url)[1]
        with Caller(broker, client_id="publisher") as caller:
            assert isinstance(caller.read(), Connack)
            for number in range(1, 4):
                caller.send(Publish("t", b"x", 1, packet_id=number))
                assert isinstance(caller.read(), Puback)
        code, said, _ = run("explain", "absent", *url)
        assert code == 0
        assert "No message waits in its queue: it is not connected." in said
        assert "In the durable log: 3 messages for it." in said
        assert "durable log" not in run("explain", "publisher", *url)[1]
