"""PUBLISHes that a client sends together, to sessions of another node."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Puback
from flowguard.types import MQTT_5, MQTT_311, Publish
from tests.support.machine import Machine, answers
from tests.support.stage import Client

COUNT = 6


@pytest.fixture
def machine() -> Machine:
    return Machine("a", "b")


def send(client: Client, qos: int, count: int = COUNT, first: int = 1, topic: str = "t") -> None:
    """Send messages with numbers as payloads in one piece."""
    packets = [
        Publish(topic, b"%02d" % number, qos, packet_id=number if qos else 0)
        for number in range(first, first + count)
    ]
    client.send_bytes(b"".join([encode(each, client.version) for each in packets]))


def numbers(client: Client) -> list[int]:
    return [int(each.payload) for each in client.publishes()]


def forwarded_count(machine: Machine) -> int:
    """Number of messages that b has taken from a with numbers."""
    return machine["b"].node.router.peers.by_name["a"].incoming.taken


@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
@pytest.mark.parametrize("is_durable", [False, True])
def test_burst_of_qos_1_is_forwarded_as_one(
    machine: Machine, version: int, is_durable: bool
) -> None:
    connect = machine["b"].connect_durable if is_durable else machine["b"].connect
    subscriber = connect("s", version=version)
    subscriber.subscribe("t", qos=1)
    publisher = machine["a"].connect("p", version=version)
    publisher.publish("t", b"00", qos=1)  # The topic is known now.
    assert numbers(subscriber) == [0]
    answers(publisher, Puback)
    before = forwarded_count(machine)
    send(publisher, 1)
    assert forwarded_count(machine) == before + 1
    assert numbers(subscriber) == [1, 2, 3, 4, 5, 6]
    assert [each.packet_id for each in answers(publisher, Puback)] == [1, 2, 3, 4, 5, 6]
    assert machine["a"].node.counters.publish_received == COUNT + 1
    assert machine["b"].node.counters.publish_sent == COUNT + 1
    assert machine["a"].node.guard.window.in_process == 0


def test_burst_of_qos_0_is_forwarded_as_one(machine: Machine) -> None:
    subscriber = machine["b"].connect("s")
    subscriber.subscribe("t", qos=1)
    publisher = machine["a"].connect("p")
    publisher.publish("t", b"00")
    machine.is_carrying = False
    send(publisher, 0)
    outgoing = machine["a"].node.router.peers.by_name["b"].outgoing
    sent = outgoing.next_unnumbered()
    assert sent is not None
    (burst,) = sent.messages
    outgoing.put_unnumbered(burst, COUNT)
    machine.is_carrying = True
    machine.settle()
    assert numbers(subscriber) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("qos", [0, 1])
def test_burst_for_a_subscription_with_identifier_follows_one_by_one(
    machine: Machine, qos: int
) -> None:
    subscriber = machine["b"].connect("s")
    subscriber.subscribe("t", qos=1, identifier=7)
    publisher = machine["a"].connect("p")
    publisher.publish("t", b"00", qos=qos)
    send(publisher, qos)
    received = subscriber.publishes()
    assert [int(each.payload) for each in received] == [0, 1, 2, 3, 4, 5, 6]
    assert {each.properties.subscription_identifiers for each in received} == {(7,)}
    assert {each.qos for each in received} == {qos}


def test_pubacks_of_a_burst_wait_for_the_commit_of_the_peer(machine: Machine) -> None:
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=1)
    publisher = machine["a"].connect("p")
    publisher.publish("t", b"00", qos=1)
    answers(publisher, Puback)
    machine["b"].hold_commits = True
    send(publisher, 1, 3)
    send(publisher, 1, 3, first=4)
    assert answers(publisher, Puback) == []
    machine["b"].release_commits()
    assert numbers(subscriber) == [0, 1, 2, 3, 4, 5, 6]
    assert [each.packet_id for each in answers(publisher, Puback)] == [1, 2, 3, 4, 5, 6]


def test_burst_keeps_its_place_behind_messages_that_wait_here(machine: Machine) -> None:
    """[MQTT-4.6.0-2]"""
    local = machine["a"].connect_durable("l")
    local.subscribe("local", qos=1)
    remote = machine["b"].connect("r")
    remote.subscribe("t", qos=1)
    publisher = machine["a"].connect("p")
    publisher.publish("t", b"00", qos=1)
    answers(publisher, Puback)
    machine["a"].hold_commits = True
    send(publisher, 1, 1, topic="local")
    send(publisher, 1, 3, first=2)
    assert answers(publisher, Puback) == []
    machine["a"].release_commits()
    assert [each.packet_id for each in answers(publisher, Puback)] == [1, 2, 3, 4]


def test_unanswered_burst_is_sent_again_after_its_link_was_lost(machine: Machine) -> None:
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=1)
    publisher = machine["a"].connect("p")
    publisher.publish("t", b"00", qos=1)
    machine.cut.add("b")
    machine.drop_links("b")
    send(publisher, 1)
    answers(publisher, Puback)
    machine.cut.clear()
    machine.advance(1)
    assert numbers(subscriber) == [0, 1, 2, 3, 4, 5, 6]
    assert [each.packet_id for each in answers(publisher, Puback)] == [1, 2, 3, 4, 5, 6]


def test_offline_session_finds_the_burst_when_it_resumes(machine: Machine) -> None:
    machine["b"].connect_durable("s").subscribe("t", qos=1)
    publisher = machine["a"].connect("p")
    publisher.publish("t", b"00", qos=1)
    client = machine["b"].connect_durable("s")
    client.close()
    send(publisher, 1)
    assert [each.packet_id for each in answers(publisher, Puback)][-COUNT:] == [1, 2, 3, 4, 5, 6]
    assert numbers(machine["b"].connect_durable("s"))[-COUNT:] == [1, 2, 3, 4, 5, 6]


def test_packets_of_a_burst_count_against_the_bound_of_the_link(machine: Machine) -> None:
    machine["b"].connect("s").subscribe("t", qos=1)
    publisher = machine["a"].connect("p")
    publisher.publish("t", b"00", qos=1)
    machine.is_carrying = False
    send(publisher, 1)
    outgoing = machine["a"].node.router.peers.by_name["b"].outgoing
    assert outgoing.messages_count == COUNT
    machine.is_carrying = True
    machine.settle()
    assert outgoing.messages_count == 0


def test_burst_of_qos_0_that_is_lost_with_its_link_is_counted(machine: Machine) -> None:
    machine["b"].connect("s").subscribe("t")
    publisher = machine["a"].connect("p")
    publisher.publish("t", b"00")
    outgoing = machine["a"].node.router.peers.by_name["b"].outgoing
    machine.cut.add("b")
    machine.drop_links("b")
    send(publisher, 0)
    assert outgoing.dropped_count == COUNT


def test_burst_is_cut_at_the_window_of_the_peer(machine: Machine) -> None:
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=1)
    publisher = machine["a"].connect("p")
    publisher.publish("t", b"00", qos=1)
    peer = machine["a"].node.router.peers.by_name["b"]
    peer.window = COUNT - 2
    machine["b"].hold_commits = True
    before = forwarded_count(machine)
    send(publisher, 1)
    assert forwarded_count(machine) == before + 1
    assert peer.outgoing.messages_count == COUNT - 2
    machine["b"].release_commits()
    machine.settle()
    assert numbers(subscriber) == list(range(COUNT + 1))


wanted_by_subscribers = st.fixed_dictionaries(
    {
        "filter": st.sampled_from(("t", "u", "+", "$share/g/t")),
        "qos": st.sampled_from((0, 1, 1, 2)),
        "version": st.sampled_from((MQTT_311, MQTT_5)),
        "is_durable": st.booleans(),
        "receive_maximum": st.sampled_from((None, None, 3)),
        "node": st.sampled_from(("b", "b", "b", "a", "c")),
    }
)
sent_together = st.tuples(
    st.sampled_from(("t", "u")),
    st.sampled_from((0, 1, 1)),
    st.integers(1, 20),
    st.sampled_from((2, 2, 300)),
)
steps = st.lists(sent_together | st.sampled_from(("hold", "release", "lose", "time")), max_size=8)


def publish(client: Client, first: int, topic: str, qos: int, count: int, size: int) -> None:
    packets = [
        Publish(topic, b"%0*d" % (size, number), qos, packet_id=number + 1 if qos else 0)
        for number in range(first, first + count)
    ]
    client.send_bytes(b"".join([encode(each, client.version) for each in packets]))


def happen(machine: Machine, step: str) -> None:
    match step:
        case "hold":
            machine["b"].hold_commits = True
        case "release":
            machine["b"].release_commits()
        case "lose":
            machine.drop_links("b")
            machine.settle()
        case "time":
            machine.advance(0.2)


def play(
    version: int, wanted: list[dict[str, Any]], script: list[Any], *, one_by_one: bool
) -> list[object]:
    """Return all that clients have received, and accounts of the nodes in the end."""
    machine = Machine("a", "b", "c", settings={"session": {"inflight_max": 12}})
    machine["a"].node.router.asks = one_by_one  # This ends all bursts.
    clients = []
    for number, each in enumerate(wanted):
        node = machine[each["node"]]
        connect = node.connect_durable if each["is_durable"] else node.connect
        is_5 = each["version"] == MQTT_5
        limit = {"receive_maximum": each["receive_maximum"]} if is_5 else {}
        client = connect(f"s{number}", version=each["version"], **limit)
        client.subscribe(each["filter"], qos=each["qos"])
        clients.append(client)
    publisher = machine["a"].connect("p", version=version)
    for topic in ("t", "u"):
        publisher.publish(topic)
    number = 0
    for step in script:
        if isinstance(step, tuple):
            publish(publisher, number, *step)
            number += step[2]
        else:
            happen(machine, step)
    machine["b"].release_commits()
    machine.advance(0.5)
    told: list[object] = [[each.packet_id for each in answers(publisher, Puback)]]
    for client in clients:
        received = [(each.topic, each.payload, each.qos) for each in client.publishes()]
        told.append({topic: [m for m in received if m[0] == topic] for topic in ("t", "u")})
    for worker in machine.workers.values():
        node, counters = worker.node, worker.node.counters
        told.append(
            (counters.publish_received, counters.publish_sent, node.guard.window.in_process)
        )
        told.append((node.state.queue_budget.used_bytes, node.state.inflight.budget.used_bytes))
        told += [peer.outgoing.messages_count for peer in node.router.peers.by_name.values()]
    return told


@given(
    version=st.sampled_from((MQTT_311, MQTT_5)),
    wanted=st.lists(wanted_by_subscribers, min_size=1, max_size=3),
    script=steps,
)
def test_burst_comes_to_the_same_as_its_packets_one_by_one(
    version: int, wanted: list[dict[str, Any]], script: list[Any]
) -> None:
    together = play(version, wanted, script, one_by_one=False)
    assert together == play(version, wanted, script, one_by_one=True)
