"""SUBACK waits for peers; capacity of links; the load of peers."""

import pytest

from flowguard.cluster import PressureRecord
from flowguard.codec.packets import Puback, Suback, Subscribe
from flowguard.node.upkeep.holdings import held_bytes
from flowguard.types import ReasonCode, SubscriptionOptions
from tests.flowguard.node.test_start_time import subscribe
from tests.support.machine import BEFORE, Machine, answers


def test_suback_waits_for_a_peer_that_is_suspect() -> None:
    machine = Machine("a", "b")
    machine["b"].is_paused = True
    client = machine["a"].connect("s")
    client.send(Subscribe(1, (("t", SubscriptionOptions(qos=1)),)))
    machine.advance(5)
    assert answers(client, Suback) == []
    machine["b"].is_paused = False
    machine.settle()
    assert len(answers(client, Suback)) == 1


def test_suback_leaves_when_the_peer_is_dead() -> None:
    machine = Machine("a", "b")
    machine["b"].is_paused = True
    client = machine["a"].connect("s")
    client.send(Subscribe(1, (("t", SubscriptionOptions(qos=1)),)))
    assert answers(client, Suback) == []
    machine.kill("b")
    assert len(answers(client, Suback)) == 1


def test_publisher_is_paused_while_a_link_is_full() -> None:
    machine = Machine("a", "b", settings={"flow": {"window_max": 64}})
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=1)
    local = machine["a"].connect("l")
    local.subscribe("local", qos=1)
    stream = machine["a"].mesh.outgoing["b"]
    stream._messages_max = 5
    machine.cut.add("b")
    machine.drop_links("b")
    publisher = machine["a"].connect("p")
    other = machine["a"].connect("q")
    for number in range(20):
        publisher.publish("t", b"%d" % number, qos=1)
    other.publish("local", b"x", qos=1)
    assert stream.messages_count == 5
    assert publisher.connection.blocked
    assert [each.payload for each in local.publishes()] == [b"x"]
    machine.cut.clear()
    machine.advance(0.5)
    assert [int(each.payload) for each in subscriber.publishes()] == list(range(20))
    assert len(answers(publisher, Puback)) == 20


def test_full_journal_rejects_the_stream_and_takes_it_later() -> None:
    machine = Machine("a", "b", settings={"flow": {"journal_ops_max": 4}})
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=1)
    publisher = machine["a"].connect("p")
    machine["b"].hold_commits = True
    for number in range(10):
        publisher.publish("t", b"%d" % number, qos=1)
    machine["b"].release_commits()
    machine.advance(1)
    assert [int(each.payload) for each in subscriber.publishes()] == list(range(10))
    assert len(answers(publisher, Puback)) == 10


def test_memory_of_waiting_messages_is_counted() -> None:
    machine = Machine("a", "b")
    machine["b"].connect_durable("s").subscribe("t", qos=1)
    machine["b"].is_paused = True
    before = held_bytes(machine["a"].node)
    machine["a"].connect("p").publish("t", bytes(10_000), qos=1)
    assert machine["a"].node.router.peers.held_bytes >= 10_000
    assert held_bytes(machine["a"].node) >= before + 10_000


@pytest.mark.parametrize(("window_of_peer", "remote"), [(4.0, 4), (3.0, 3), (2.5, 2)])
def test_window_is_that_of_the_peer_for_messages_to_it(window_of_peer: float, remote: int) -> None:
    machine = Machine("a", "b", settings={"flow": {"window_max": 20}})
    for name, topic in (("b", "remote"), ("a", "local")):
        machine[name].connect_durable(f"s-{topic}").subscribe(topic, qos=1)
    machine.advance(0.5)
    machine.is_carrying = False
    machine["a"].hold_commits = True
    record = PressureRecord("b", BEFORE + 1, 1_000, window_of_peer, 0.5, None, 1)
    machine["a"].mesh._host.pressure_received(record, machine.now_s)
    machine.advance(0.1)
    in_process = {}
    for topic in ("remote", "local"):
        publisher = machine["a"].connect(f"p-{topic}", version=4)
        machine["a"].release_commits()
        machine["a"].hold_commits = True
        for _ in range(30):
            publisher.publish(topic, b"x", qos=1)
        inbound = publisher.connection.inbound
        assert inbound is not None
        in_process[topic] = inbound.unacknowledged
    assert in_process == {"remote": remote, "local": 20}


def test_start_time_is_rejected_because_peers_have_logged_other_messages() -> None:
    machine = Machine("a", "b", settings={"session": {"log_threshold": 1}})
    suback = subscribe(machine["a"].connect_durable("s"), "t", start="0")
    assert suback.reason_codes == (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,)
    assert suback.properties.reason_string == "start-time is not available with several workers"
