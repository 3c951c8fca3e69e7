"""Shared subscriptions with members on several nodes: each message reaches one member."""

from collections import Counter

import pytest

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
