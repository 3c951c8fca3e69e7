"""Messages wait in the durable log until their reader has capacity; none of them is dropped."""

import pytest

from flowguard.access.rules_toml import parse_toml
from flowguard.config import KIB, MIB
from flowguard.flow import Reason
from flowguard.node.connect.authentication import Hooks
from tests.flowguard.node.blocking import acknowledged
from tests.flowguard.node.test_log_readers import CountingStore, away, payloads, publish, staged
from tests.support.stage import Client, Stage


def take_slowly(stage: Stage, client: Client, count: int) -> list[bytes]:
    """Return the payloads of `count` messages, or of fewer if no more arrive."""
    found: list[bytes] = []
    for _ in range(4 * count):
        found += payloads(client)
        stage.advance(0.1)
        if len(found) >= count:
            break
    return found


POLICIES = pytest.mark.parametrize("policy", ["drop-new", "drop-oldest"])
OF_A_ROLE = """
[roles.anyone]
anonymous = true
publish = ["#"]
receive = ["#"]
queue_messages_max = 5
"""


@POLICIES
def test_large_messages_wait_in_the_log_until_a_slow_reader_has_room(policy: str) -> None:
    limits = {"queue_bytes_max": 64 * KIB, "packet_size_max": 16 * KIB, "queue_policy": policy}
    stage = staged(**limits)
    away(stage, "s")
    messages = [b"%04d" % number * KIB for number in range(100)]
    publish(stage, "a", *messages)
    client = stage.connect_durable("s", receive_maximum=1)
    assert take_slowly(stage, client, 100) == messages
    assert stage.node.counters.dropped == {}


@POLICIES
def test_messages_of_the_largest_size_come_one_by_one(policy: str) -> None:
    limits = {"queue_bytes_max": 16 * KIB, "packet_size_max": 16 * KIB, "queue_policy": policy}
    stage = staged(**limits)
    away(stage, "s")
    messages = [bytes([number]) * 15 * KIB for number in range(10)]
    publish(stage, "a", *messages)
    client = stage.connect_durable("s", receive_maximum=1)
    assert take_slowly(stage, client, 10) == messages
    assert stage.node.counters.dropped == {}


@POLICIES
def test_of_what_is_logged_a_queue_has_no_more_than_its_role_may_have(policy: str) -> None:
    settings = {"session": {"log_threshold": 1, "queue_policy": policy}}
    hooks = Hooks(rules=parse_toml(OF_A_ROLE, "acl.toml"))
    stage = Stage(settings, store=CountingStore(), hooks=hooks)
    away(stage, "s")
    numbers = [b"%d" % number for number in range(30)]
    publish(stage, "a", *numbers)
    client = stage.connect_durable("s", receive_maximum=1)
    assert take_slowly(stage, client, 30) == numbers
    assert stage.node.counters.dropped == {}


def test_what_is_logged_waits_there_where_the_node_has_no_room_for_queues() -> None:
    settings = {
        "session": {"log_threshold": 2, "queue_bytes_max": MIB},
        "node": {"queue_bytes_max": MIB, "disk_queue_bytes_max": MIB},
    }
    stage = Stage(settings, store=CountingStore())
    away(stage, "s", "t", filter="a")
    for name in "abcdefgh":
        away(stage, name, filter=f"of/{name}")
        publish(stage, f"of/{name}", *[bytes(50 * KIB)] * 10)
    dropped = dict(stage.node.counters.dropped)
    assert Reason.NODE_DISK_QUEUE_BYTES in dropped
    messages = [b"%04d" % number * 8 * KIB for number in range(60)]
    publish(stage, "a", *messages)
    client = stage.connect_durable("s", receive_maximum=1)
    assert take_slowly(stage, client, 60) == messages
    assert stage.node.counters.dropped == dropped


def test_who_has_no_room_for_what_is_logged_meanwhile_reads_on() -> None:
    stage = staged(queue_messages_max=10)
    away(stage, "s")
    publish(stage, "a", b"0")
    stage.hold_replays = True
    client = stage.connect_durable("s", receive_maximum=1)
    numbers = [b"%d" % number for number in range(1, 31)]
    publish(stage, "a", *numbers)
    stage.hold_replays = False
    stage.advance(1)
    assert take_slowly(stage, client, 31) == [b"0", *numbers]
    assert stage.node.counters.dropped == {}


def with_a_full_queue(stage: Stage) -> Client:
    """A client with a full queue that has taken one message; `a` is logged."""
    away(stage, "other", filter="a")
    reader = stage.connect_durable("s", receive_maximum=1)
    reader.subscribe("a", "own", qos=1)
    publish(stage, "own", *[b"%d" % number for number in range(3)])
    return reader


def test_nobody_waits_for_room_in_the_queue_of_who_reads_the_log() -> None:
    stage = staged(2, queue_policy="block", queue_messages_max=2)
    with_a_full_queue(stage).close()
    publisher = stage.connect("p")
    publisher.publish("a", b"logged", qos=1)
    assert len(acknowledged(publisher)) == 1
    reader = stage.connect_durable("s")
    assert take_slowly(stage, reader, 4) == [b"0", b"1", b"2", b"logged"]


def test_who_waits_for_room_goes_on_when_the_log_has_taken_its_place() -> None:
    stage = staged(2, queue_policy="block", queue_messages_max=2)
    reader = with_a_full_queue(stage)
    publisher = stage.connect("p")
    publisher.publish("a", b"logged", qos=1)
    assert acknowledged(publisher) == []
    reader.close()
    assert len(acknowledged(publisher)) == 1
