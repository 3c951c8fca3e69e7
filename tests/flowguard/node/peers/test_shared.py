"""Shared subscriptions with members on several nodes: each message reaches one member."""

from collections import Counter

import pytest

from flowguard.codec.packets import Subscribe
from flowguard.types import SubscriptionOptions
from tests.support.machine import Machine

FILTER = "$share/g/t/#"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_message_reaches_one_member_of_all_nodes(qos: int) -> None:
    machine = Machine("a", "b", "c")
    members = [machine[name].connect(f"m-{name}") for name in "abc"]
    for member in members:
        member.subscribe(FILTER, qos=2)
    for name in "abc":
        machine[name].connect(f"p-{name}").publish("t/1", name.encode(), qos=qos)
    received = Counter(each.payload for member in members for each in member.publishes())
    assert received == {b"a": 1, b"b": 1, b"c": 1}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_message_reaches_a_member_of_the_only_node_that_has_one(qos: int) -> None:
    machine = Machine("a", "b", "c")
    member = machine["c"].connect("m")
    member.subscribe(FILTER, qos=2)
    for name in "abc":
        machine[name].connect(f"p-{name}").publish("t/1", name.encode(), qos=qos)
    assert sorted(each.payload for each in member.publishes()) == [b"a", b"b", b"c"]


def test_members_beside_plain_subscriptions() -> None:
    """A node that gets a message for a plain subscription does not serve the group of another."""
    machine = Machine("a", "b", "c")
    plain = [machine[name].connect(f"s-{name}") for name in "bc"]
    members = [machine[name].connect(f"m-{name}") for name in "bc"]
    for subscriber in plain:
        subscriber.subscribe("t/1", qos=1)
    for member in members:
        member.subscribe(FILTER, qos=1)
        member.subscribe("$share/h/t/1", qos=1)
    machine["a"].connect("p").publish("t/1", b"x", qos=1)
    for subscriber in plain:
        assert [each.payload for each in subscriber.publishes()] == [b"x"]
    assert sum(len(member.publishes()) for member in members) == 2


def test_message_on_the_way_to_a_node_whose_members_have_left_goes_on() -> None:
    machine = Machine("a", "b", "c")
    members = {name: machine[name].connect(f"m-{name}") for name in "bc"}
    for member in members.values():
        member.subscribe(FILTER, qos=1)
    publisher = machine["a"].connect("p")
    machine.is_carrying = False
    publisher.publish("t/1", b"x", qos=1)
    machine.is_carrying = True
    stream = machine["a"].mesh.outgoing
    (serving,) = [name for name in "bc" if stream[name].messages_count]
    machine.is_carrying = False
    members[serving].unsubscribe(FILTER)
    machine.is_carrying = True
    machine.settle()
    other = "b" if serving == "c" else "c"
    assert [each.payload for each in members[other].publishes()] == [b"x"]


def test_two_nodes_that_the_publisher_does_not_know_yet_do_not_both_serve() -> None:
    machine = Machine("a", "b", "c")
    members = [machine[name].connect(f"m-{name}") for name in "bc"]
    for member in members:
        member.subscribe(FILTER, qos=2)
    publish_after_a_start(machine)
    received = [each.payload for member in members for each in member.publishes()]
    assert sorted(received) == [b"1", b"2"]


@pytest.mark.parametrize("name", ["b", "c"])
def test_member_on_a_node_that_the_publisher_does_not_know_yet(name: str) -> None:
    machine = Machine("a", "b", "c", "d")
    member = machine[name].connect("m")
    member.subscribe(FILTER, qos=2)
    plain = machine["d"].connect("s")
    plain.subscribe("t/1", qos=2)
    publish_after_a_start(machine)
    for subscriber in (member, plain):
        assert sorted(each.payload for each in subscriber.publishes()) == [b"1", b"2"]


def test_messages_of_a_node_that_starts_reach_members_of_nodes_that_start_as_well() -> None:
    """The nodes do not know where the members are, so the message passes all of them."""
    machine = Machine("a", "b", "c", "d")
    for name in "cd":
        member = machine[name].connect_durable(f"m-{name}")
        member.subscribe(FILTER, qos=2)
    machine.kill("d")
    for name in "abc":
        machine.kill(name)
    machine.is_carrying = False
    for name in "abcd":
        machine.start(name)
    publisher = machine["a"].connect("p")
    for qos in (1, 2):
        publisher.publish("t/1", b"%d" % qos, qos=qos)
    machine.is_carrying = True
    machine.settle()
    members = [machine[name].connect_durable(f"m-{name}") for name in "cd"]
    received = [each.payload for member in members for each in member.publishes()]
    assert sorted(received) == [b"1", b"2"]


def test_subscriptions_that_the_publisher_does_not_know_do_not_both_serve() -> None:
    """The SUBACKs have not left, so the message need not reach the members."""
    machine = Machine("a", "b", "c")
    members = [machine[name].connect(f"m-{name}") for name in "bc"]
    for member in members:
        member.subscribe("t/1", qos=2)
    machine.is_carrying = False
    machine["a"].connect("p").publish("t/1", b"x", qos=2)
    for member in members:
        member.send(Subscribe(1, ((FILTER, SubscriptionOptions(2)),)))
    machine.is_carrying = True
    machine.settle()
    for member in members:
        assert [each.payload for each in member.publishes()] == [b"x"]


def publish_after_a_start(machine: Machine) -> None:
    """Let node a start again and publish before it knows a filter of another node."""
    machine.kill("a")
    machine.is_carrying = False
    machine.start("a")
    publisher = machine["a"].connect("p")
    for qos in (1, 2):
        publisher.publish("t/1", b"%d" % qos, qos=qos)
    machine.is_carrying = True
    machine.settle()
