"""Retained messages: every node has all of them, in the order of their topics' owners."""

import pytest

from flowguard.codec.packets import Puback, Suback, Subscribe
from flowguard.node.subscribe.searches import SESSIONS_PIECE
from flowguard.node.upkeep.sys_topics import SysTopics
from flowguard.types import SubscriptionOptions
from tests.support.machine import Machine, answers
from tests.support.stage import TICK_S


def retained(machine: Machine) -> list[dict[str, bytes]]:
    """Return the retained messages of each node, without `$SYS`."""
    found = []
    for worker in machine.workers.values():
        messages = worker.node.router.retained
        entries = [messages.get(topic) for topic in sorted(messages.topics())]
        found.append(
            {
                each.publish.topic: each.publish.payload
                for each in entries
                if each is not None and not each.publish.topic.startswith("$SYS/")
            }
        )
    return found


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("owner", ["a", "b", "c"])
def test_every_node_has_a_retained_message(owner: str, qos: int) -> None:
    machine = Machine("a", "b", "c")
    topic = machine.owned_by(owner)
    publisher = machine["a"].connect("p")
    publisher.publish(topic, b"x", qos=qos, retain=True)
    assert retained(machine) == [{topic: b"x"}] * 3
    subscriber = machine["c"].connect("s")
    subscriber.subscribe(topic, qos=2)
    (received,) = subscriber.publishes()
    assert (received.payload, received.qos, received.retain) == (b"x", qos, True)
    publisher.publish(topic, b"", qos=qos, retain=True)
    assert retained(machine) == [{}] * 3


def test_live_retained_message_is_delivered_once() -> None:
    machine = Machine("a", "b", "c")
    topic = machine.owned_by("b")
    subscribers = [machine[name].connect(f"s-{name}") for name in "abc"]
    for subscriber in subscribers:
        subscriber.subscribe(topic, qos=2)
    for qos in (0, 1, 2):
        machine["a"].connect("p").publish(topic, b"%d" % qos, qos=qos, retain=True)
    for subscriber in subscribers:
        assert [each.payload for each in subscriber.publishes()] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("owner", ["a", "b", "c"])
def test_two_changes_at_once_end_equal_on_all_nodes(owner: str) -> None:
    machine = Machine("a", "b", "c")
    topic = machine.owned_by(owner)
    first, second = machine["a"].connect("p"), machine["b"].connect("q")
    machine.is_carrying = False
    first.publish(topic, b"1", qos=1, retain=True)
    second.publish(topic, b"2", qos=1, retain=True)
    machine.is_carrying = True
    machine.settle()
    found = retained(machine)
    assert found[0] == found[1] == found[2]
    assert found[0][topic] in (b"1", b"2")
    assert len(answers(first, Puback)) == len(answers(second, Puback)) == 1


def test_node_that_was_down_gets_what_changed() -> None:
    machine = Machine("a", "b")
    topics = [machine.owned_by(owner, what) for what in ("kept", "dropped") for owner in "ab"]
    publisher = machine["a"].connect("p")
    for topic in topics:
        publisher.publish(topic, b"1", qos=1, retain=True)
    machine.kill("b")
    for topic in topics[:2]:
        publisher.publish(topic, b"2", retain=True)
    for topic in topics[2:]:
        publisher.publish(topic, b"", retain=True)
    machine.start("b")
    machine.advance(0.5)
    found = retained(machine)
    assert found == [dict.fromkeys(topics[:2], b"2")] * 2


def test_change_of_a_node_that_ended_before_the_owner_had_it_is_undone() -> None:
    """It was not acknowledged, and all nodes have the same again."""
    machine = Machine("a", "b")
    topic = machine.owned_by("b")
    publisher = machine["a"].connect("p")
    machine.cut.add("b")
    machine.drop_links("b")
    publisher.publish(topic, b"x", qos=1, retain=True)
    assert answers(publisher, Puback) == []
    machine.kill("a")
    machine.cut.clear()
    machine.start("a")
    machine.advance(0.5)
    assert retained(machine) == [{}, {}]


def test_many_retained_messages_reach_a_new_node_piece_by_piece() -> None:
    machine = Machine("a", "b")
    machine.kill("b")
    publisher = machine["a"].connect("p")
    count = 0
    owned = machine["a"].mesh.members.owner_of
    for number in range(2_000):
        if owned(f"t/{number}") == "a":
            publisher.publish(f"t/{number}", b"x", qos=1, retain=True)
            count += 1
    machine.start("b")
    machine.advance(0.1)
    machine.advance(2)
    assert retained(machine)[1].keys() == retained(machine)[0].keys()
    assert len(retained(machine)[1]) == count


def test_node_keeps_its_own_sys_topics_when_a_peer_sends_all_of_its_topics() -> None:
    machine = Machine("a", "b")
    node = machine["a"].node
    SysTopics(node, machine.now_s).publish(machine.now_s)
    before = len(node.router.retained)
    machine.kill("b")
    machine.start("b")
    machine.advance(0.5)
    assert len(node.router.retained) == before > 0


def test_subscriber_of_a_node_that_starts_gets_what_changed_while_it_was_down() -> None:
    machine = Machine("a", "b", "c")
    owned = machine["a"].mesh.members.owner_of
    topics = [topic for topic in map("t/{}".format, range(6_000)) if owned(topic) != "b"]
    publisher = machine["a"].connect("p")
    for topic in topics[::2]:
        publisher.publish(topic, b"1", retain=True)
    machine.kill("b")
    for topic in topics:
        publisher.publish(topic, b"2", retain=True)
    machine.is_carrying = False
    machine.start("b")
    clients = [machine["b"].connect(f"s{qos}") for qos in (0, 1)]
    clients.append(machine["b"].connect_durable("s2"))
    for qos, client in enumerate(clients):
        for topic in topics[:10]:
            client.send(Subscribe(1, ((topic, SubscriptionOptions(qos)),)))
    machine.is_carrying = True
    machine.settle()
    for client in clients:
        assert len(answers(client, Suback)) == 10
    machine.advance(0.2)
    for client in clients:
        received = {each.topic: each.payload for each in client.publishes()}
        assert received == dict.fromkeys(topics[:10], b"2")


def test_clients_that_have_left_are_forgotten_in_pieces_while_others_wait() -> None:
    machine = Machine("a", "b")
    topic = machine.owned_by("a")
    machine["a"].connect("p").publish(topic, b"1", retain=True)
    machine.kill("b")
    machine.is_carrying = False
    machine.start("b").hold_chores = True  # It does not compare the messages of its store yet.
    machine.is_carrying = True
    clients = [machine["b"].connect(f"s{n}") for n in range(2 * SESSIONS_PIECE)]
    for client in clients:
        client.subscribe(topic)
    for client in clients[::2]:
        client.disconnect()
    waiting = machine["b"].node.subscriptions.searches._waiting
    machine.advance(TICK_S)
    assert len(waiting) == 3 * SESSIONS_PIECE // 2
    machine.advance(TICK_S)
    assert len(waiting) == SESSIONS_PIECE
    machine["b"].hold_chores = False
    machine.advance(2 * TICK_S)
    for client in clients[1::2]:
        assert [each.payload for each in client.publishes()] == [b"1"]


def test_nodes_that_have_died_are_not_waited_for() -> None:
    machine = Machine("a", "b", "c")
    topic = machine.owned_by("a")
    machine["a"].connect("p").publish(topic, b"1", retain=True)
    for name in "bc":
        machine.kill(name)
    worker = machine.start("b")
    worker.mesh.died("c", machine.incarnation_of("c"), machine.now_s)
    machine.advance(0.2)
    subscriber = worker.connect("s")
    subscriber.subscribe(topic)
    assert [each.payload for each in subscriber.publishes()] == [b"1"]


def test_change_that_a_full_link_to_the_owner_did_not_take_comes_later() -> None:
    machine = Machine("a", "b", "c")
    kept, dropped, other = (machine.owned_by("b", what) for what in ("k", "d", "o"))
    publisher = machine["a"].connect("p")
    publisher.publish(dropped, b"1", retain=True)
    machine.is_carrying = False
    while machine["a"].mesh.outgoing["b"].has_capacity():
        publisher.publish(other, b"x", retain=True)
    publisher.publish(kept, b"2", retain=True)
    publisher.publish(dropped, b"", retain=True)
    machine.is_carrying = True
    machine.advance(0.2)
    assert retained(machine) == [{kept: b"2", other: b"x"}] * 3
