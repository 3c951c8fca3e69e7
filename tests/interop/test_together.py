"""All clients and versions at one broker, at once."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.interop.broker import PATIENCE_S, Broker, running_broker
from tests.interop.clients import all_installed
from tests.interop.mosquitto_peer import program
from tests.interop.peer import Engines, Message, Subscription

pytestmark = pytest.mark.peers

SERVER_SHUTTING_DOWN = 0x8B


def test_every_client_hears_every_other(broker: Broker, engines: Engines, topic: str) -> None:
    """Each subscribes, each publishes with each QoS."""
    with all_installed(broker.port, engines, broker.ports) as peers:
        subscribers = [peer.open(Subscription(f"{topic}/#", 2)) for peer in peers]
        sent = []
        for number, peer in enumerate(peers):
            messages = [Message(f"{topic}/{number:02}", b"%d" % qos, qos) for qos in range(3)]
            peer.open().publish(*messages)
            sent += messages
        for subscriber in subscribers:
            got = [subscriber.receive() for _ in sent]
            assert sorted(got, key=lambda each: (each.topic, each.qos)) == sent


def test_a_group_of_strangers_shares_the_work(broker: Broker, engines: Engines, topic: str) -> None:
    with all_installed(broker.port, engines, broker.ports) as peers:
        members = [
            peer.open(
                Subscription(f"$share/strangers/{topic}/work", 1), Subscription(f"{topic}/end", 1)
            )
            for peer in peers
        ]
        work = [b"%d" % number for number in range(100)]
        publisher = peers[0].open()
        publisher.publish(*(Message(f"{topic}/work", each, 1) for each in work))
        publisher.publish(Message(f"{topic}/end", b"end", 1))
        done = []
        for member in members:
            while (got := member.receive()).payload != b"end":
                done.append(got.payload)
        assert sorted(done, key=int) == work


@pytest.mark.slow
def test_idle_clients_keep_themselves_alive(broker: Broker, engines: Engines, topic: str) -> None:
    """Two keep-alive intervals without a message: only PINGREQ and PINGRESP."""
    keep_alive_s = 10  # So that a client may be paused for five seconds and is not late yet.
    with all_installed(broker.port, engines) as peers:
        idle = [peer.open(Subscription(topic, 1), keep_alive_s=keep_alive_s) for peer in peers]
        time.sleep(2 * keep_alive_s)
        peers[0].open().publish(Message(topic, b"still there?", 1))
        for each in idle:
            assert each.receive().payload == b"still there?"
            assert each.ended.empty()


def test_sigterm_says_goodbye(tmp_path: Path, engines: Engines) -> None:
    """5.0 clients hear why; the broker does not wait until they have left."""
    with running_broker(tmp_path) as own, all_installed(own.port, engines) as peers:
        connected = [(peer, peer.open("nothing")) for peer in peers]
        assert own.terminate() == 0
        for peer, connection in connected:
            if peer.notices_the_end:
                assert connection.wait_ended() == (SERVER_SHUTTING_DOWN if peer.is_5 else None)


def test_mosquitto_rr_gets_an_answer(broker: Broker, engines: Engines, topic: str) -> None:
    """The program for requests, answered by whoever is there."""
    with all_installed(broker.port, engines) as peers:
        responder_peer = next((peer for peer in peers if peer.is_5), None)
        assert responder_peer is not None
        responder = responder_peer.open(Subscription(topic, 1))
        words = ["-h", "127.0.0.1", "-p", str(broker.port), "-V", "mqttv5", "-q", "1"]
        words += ["-t", topic, "-e", f"{topic}/answer", "-m", "6 * 7?"]
        with subprocess.Popen(
            [program("mosquitto_rr"), *words], stdout=subprocess.PIPE, text=True
        ) as asking:
            asked = responder.receive()
            properties = {
                name: value
                for name, value in asked.properties.items()
                if name == "correlation_data"
            }
            responder.publish(
                Message(asked.properties["response_topic"], b"42", 1, properties=properties)
            )
            answer, _ = asking.communicate(timeout=PATIENCE_S)
        assert (asked.payload, answer) == (b"6 * 7?", "42\n")
