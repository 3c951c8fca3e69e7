"""Wills and sessions: what belongs to the owner of a session happens there, once."""

from flowguard.codec.packets import Will
from flowguard.node.upkeep.sys_topics import SysTopics
from tests.support.machine import Machine


def test_will_reaches_subscribers_of_all_nodes_once() -> None:
    machine = Machine("a", "b", "c")
    subscribers = [machine[name].connect(f"s-{name}") for name in "abc"]
    for subscriber in subscribers:
        subscriber.subscribe("w/#", qos=2)
    for qos in (0, 1, 2):
        client = machine["a"].connect("p", will=Will("w/p", b"%d" % qos, qos=qos))
        client.close()
    for subscriber in subscribers:
        assert [each.payload for each in subscriber.publishes()] == [b"0", b"1", b"2"]


def test_retained_will_is_retained_on_all_nodes() -> None:
    machine = Machine("a", "b", "c")
    for owner in "abc":
        topic = machine.owned_by(owner)
        client = machine["a"].connect("p", will=Will(topic, b"gone", qos=1, retain=True))
        client.close()
        for name in "abc":
            entry = machine[name].node.router.retained.get(topic)
            assert entry is not None
            assert entry.publish.payload == b"gone"


def test_sys_topics_are_those_of_the_own_node() -> None:
    machine = Machine("a", "b")
    subscriber = machine["b"].connect("s")
    subscriber.subscribe("$SYS/broker/uptime")
    before = machine["a"].mesh.outgoing["b"].messages_count
    for worker in machine.workers.values():
        SysTopics(worker.node, machine.now_s).publish(machine.now_s)
    machine.settle()
    assert machine["a"].mesh.outgoing["b"].messages_count == before
    assert len(subscriber.publishes()) == 1
