"""A client that reads and acknowledges at once gets all acknowledged messages, of any size."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import DataObject, booleans, data, integers, lists, sampled_from

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Puback, Pubcomp, Pubrec, Pubrel
from flowguard.flow import Reason
from flowguard.stores import MemoryStore
from flowguard.types import MQTT_5, MQTT_311, Publish
from tests.flowguard.node.ledger import check_budgets, end_all_sessions
from tests.support.stage import Client, Stage, StoreOnDisk

KIB = 1024
MIB = 1024 * KIB
SILENT = 20
QUOTA_EXCEEDED = 0x97
FULL = (Reason.NODE_QUEUE_BYTES, Reason.NODE_DISK_QUEUE_BYTES)


def small_stage(store: MemoryStore | None = None, policy: str = "drop-new") -> Stage:
    """A hundredth of the defaults, for a hundredth of the clients."""
    limits: dict[str, Any] = {
        "session": {"queue_bytes_max": MIB, "queue_policy": policy},
        "node": {
            "queue_bytes_max": 10 * MIB,
            "disk_queue_bytes_max": 10 * MIB,
            "inflight_bytes_max": 5 * MIB,
        },
    }
    return Stage(limits, store=store)


def silent_clients(stage: Stage, count: int, topic: str, qos: int = 1) -> list[Client]:
    """Clients that subscribe and acknowledge nothing after that."""
    clients = [stage.connect(f"{topic}{number}") for number in range(count)]
    for client in clients:
        client.subscribe(topic, qos=qos)
    return clients


def fill(stage: Stage) -> list[Client]:
    """Those who are silent hold what they may, in memory and on the disk."""
    clients = silent_clients(stage, SILENT, "silent")
    durable = [stage.connect_durable(f"durable{number}") for number in range(SILENT)]
    for client in durable:
        client.subscribe("silent", qos=1)
    flooder = stage.connect("flooder")
    wanted = set(FULL) if durable[0].connection.session.queue.spills else {FULL[0]}
    for _ in range(5_000):
        if wanted <= stage.node.counters.dropped.keys():
            return [*clients, *durable]
        flooder.publish("silent", bytes(2 * KIB), qos=1)
    raise AssertionError("silent clients do not fill the node")


def refused_codes(client: Client) -> list[int]:
    """Return the reason codes of its PUBLISHes, after completing their exchanges."""
    codes = []
    for packet in client.take():
        assert isinstance(packet, Puback | Pubrec), packet
        codes.append(packet.reason_code)
        if isinstance(packet, Pubrec) and packet.reason_code < 0x80:
            client.send(Pubrel(packet.packet_id))
            client.expect(Pubcomp)
    return codes


def publish(client: Client, topic: str, *sizes: int, qos: int = 1) -> list[int]:
    """Messages in one chunk; the reason codes they are answered with."""
    messages = [
        Publish(topic, bytes(size), qos, packet_id=client.next_packet_id()) for size in sizes
    ]
    client.send_bytes(b"".join(encode(message, client.version) for message in messages))
    return refused_codes(client)


def reader(stage: Stage, client_id: str, filter: str, *, durable: bool, qos: int) -> Client:
    client = stage.connect_durable(client_id) if durable else stage.connect(client_id)
    client.subscribe(filter, qos=qos)
    return client


@pytest.mark.parametrize("filter", ["here", "$share/group/here"])
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_is_larger_than_a_share_gets_to_who_keeps_up(
    store: MemoryStore, version: int, qos: int, durable: bool, filter: str
) -> None:
    stage = small_stage(store)
    fill(stage)
    client = reader(stage, "polite", filter, durable=durable, qos=qos)
    publisher = stage.connect("publisher", version=version)
    before = dict(stage.node.counters.dropped)
    for number in range(20):
        size_bytes = 200 * KIB if number % 4 == 0 else 100
        assert publish(publisher, "here", size_bytes, qos=qos) == [0]
        assert [len(message.payload) for message in client.publishes()] == [size_bytes]
    assert stage.node.counters.dropped == before
    check_budgets(stage.node, [])
    end_all_sessions(stage.node, stage.now_s)


def take_what_is_spare(stage: Stage) -> None:
    """Newcomers get one large message each, until none is left for the next, and keep it."""
    publisher = stage.connect("spender")
    for number in range(200):
        client = stage.connect(f"taker{number}")
        client.subscribe(f"taker/{number}", qos=1)
        publisher.publish(f"taker/{number}", bytes(50 * KIB), qos=1)
        if not client.publishes(acknowledge=False):
            return
    raise AssertionError("what is spare has no end")


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_is_told_that_who_keeps_up_goes_without(version: int, qos: int) -> None:
    stage = small_stage()
    fill(stage)
    take_what_is_spare(stage)
    client = reader(stage, "polite", "here", durable=False, qos=qos)
    other = reader(stage, "other", "here", durable=False, qos=0)
    publisher = stage.connect_durable("publisher", version=version)
    refused = QUOTA_EXCEEDED if version == MQTT_5 else 0
    dropped = stage.node.counters.dropped[Reason.NODE_QUEUE_BYTES]
    for number in range(1, 4):
        assert publish(publisher, "here", 300 * KIB, qos=qos) == [refused]
        assert stage.node.counters.dropped[Reason.NODE_QUEUE_BYTES] == dropped + number
        assert len(other.publishes()) == 1, "who has room has got it"
    assert publish(publisher, "here", 100, qos=qos) == [0]
    assert len(client.publishes()) == 1
    assert len(other.publishes()) == 1
    assert not publisher.connection.session.inbound_ids
    check_budgets(stage.node, [])


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("filter", ["here", "$share/group/here"])
def test_it_is_told_when_the_queue_is_durable(store: MemoryStore, filter: str, qos: int) -> None:
    """And a QoS 2 identifier that was refused is forgotten on the disk, too."""
    stage = small_stage(store)
    fill(stage)
    client = reader(stage, "polite", filter, durable=True, qos=qos)
    for budget in (stage.node.state.queue_budget, stage.node.state.disk_queue_budget):
        budget.limit_bytes = budget.used_bytes
    publisher = stage.connect_durable("publisher")
    assert publish(publisher, "here", 300 * KIB, qos=qos) == [QUOTA_EXCEEDED]
    assert not client.publishes()
    stage.restart()
    publisher = stage.connect_durable("publisher")
    assert not publisher.connection.session.inbound_ids


def test_it_is_told_when_that_shows_only_after_the_commit() -> None:
    """A clean session's place is looked for when those of others are on the disk."""
    stage = small_stage()
    fill(stage)
    take_what_is_spare(stage)
    reader(stage, "polite", "here", durable=False, qos=2)
    kept = reader(stage, "kept", "here", durable=True, qos=2)
    publisher = stage.connect_durable("publisher")
    stage.hold_commits = True
    publisher.publish("here", bytes(50), qos=2)
    node = stage.node
    node.state.queue_budget.limit_bytes = node.state.queue_budget.used_bytes
    node.state.inflight.budget.limit_bytes = node.state.inflight.budget.used_bytes
    stage.release_commits()
    assert refused_codes(publisher) == [QUOTA_EXCEEDED]
    assert len(kept.publishes()) == 1
    stage.advance(1)
    stage.restart()
    publisher = stage.connect_durable("publisher")
    assert not publisher.connection.session.inbound_ids, "its packet id is free again"


def test_who_is_silent_is_no_reason_to_refuse(version: int) -> None:
    stage = small_stage()
    fill(stage)
    publisher = stage.connect("publisher", version=version)
    for _ in range(20):
        assert publish(publisher, "silent", 200 * KIB) == [0]


def test_who_acknowledges_nothing_has_two_of_them_and_no_more(version: int) -> None:
    stage = small_stage()
    fill(stage)
    late = silent_clients(stage, 1, "late")[0]
    publisher = stage.connect("publisher", version=version)
    codes = [publish(publisher, "late", 150 * KIB)[0] for _ in range(10)]
    assert len(late.publishes(acknowledge=False)) <= 2
    assert codes[2:] == [0] * 8
    check_budgets(stage.node, [])


def test_with_block_nobody_waits_for_who_keeps_up(version: int) -> None:
    stage = small_stage(policy="block")
    silent = silent_clients(stage, SILENT, "silent")
    flooders = [stage.connect(f"flooder{number}") for number in range(4)]
    for _ in range(500):
        for flooder in flooders:
            if not flooder.connection.inbound.blocked:
                flooder.publish("silent", bytes(2 * KIB), qos=1)
    assert all(flooder.connection.inbound.blocked for flooder in flooders)
    client = reader(stage, "polite", "here", durable=False, qos=1)
    publisher = stage.connect("publisher", version=version)
    for _ in range(10):
        assert publish(publisher, "here", 200 * KIB) == [0]
        assert len(client.publishes()) == 1
    check_budgets(stage.node, [each.connection for each in silent])


@pytest.mark.parametrize("policy", ["drop-new", "drop-oldest"])
def test_what_has_not_been_sent_yet_is_no_sign_of_not_keeping_up(
    store: MemoryStore, policy: str
) -> None:
    """Two messages in one chunk: the first of them is all that the outbox takes."""
    stage = small_stage(store, policy)
    fill(stage)
    client = reader(stage, "polite", "here", durable=False, qos=1)
    publisher = stage.connect("publisher")
    sizes = [290 * KIB, 90 * KIB]
    assert publish(publisher, "here", *sizes) == [0, 0]
    assert [len(message.payload) for message in client.publishes()] == sizes


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples // 2)
@given(examples=data(), on_disk=booleans(), policy=sampled_from(["drop-new", "drop-oldest"]))
def test_what_is_acknowledged_gets_to_all_who_keep_up(
    examples: DataObject, on_disk: bool, policy: str
) -> None:
    """Beside any number of newcomers who do not, one or two messages of any size at a time."""
    stage = small_stage(StoreOnDisk() if on_disk else MemoryStore(), policy)
    fill(stage)
    readers = [
        reader(stage, f"reader{number}", "here", durable=number % 2 == 1, qos=1 + number // 2)
        for number in range(4)
    ]
    publisher = stage.connect("publisher")
    deaf = stage.connect("deaf", version=MQTT_311)
    late: list[Client] = []
    for step in range(examples.draw(integers(1, 12))):
        if examples.draw(booleans()):
            late += silent_clients(stage, 1, f"late/{step}")
            publish(deaf, f"late/{step}", examples.draw(integers(0, 900 * KIB)))
        qos = examples.draw(integers(1, 2))
        sizes = examples.draw(lists(integers(0, 900 * KIB), min_size=1, max_size=2))
        codes = publish(publisher, "here", *sizes, qos=qos)
        owed = [size for size, code in zip(sizes, codes, strict=True) if code < 0x80]
        for client in readers:
            got = [len(message.payload) for message in client.publishes()]
            assert [size for size in got if size in owed] == owed
        check_budgets(stage.node, [])
    end_all_sessions(stage.node, stage.now_s)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("kind", [MemoryStore, StoreOnDisk])
def test_a_reader_of_whom_nothing_is_in_flight_gets_a_message_though_others_hold_all_memory(
    kind: type[MemoryStore], durable: bool, version: int
) -> None:
    """Nothing else will happen to it: no acknowledgement, no socket that takes more."""
    stage = small_stage(kind())
    connect = stage.connect_durable if durable else stage.connect
    reader = connect("reader", version=version)
    reader.subscribe("t", qos=1)
    node = stage.node
    for budget in (node.state.inflight.budget, node.state.queue_budget):
        budget.hold(budget.limit_bytes if node.state.spills and durable else budget.common_bytes, 0)
    stage.connect("publisher").publish("t", b"x", qos=1)
    assert [each.payload for each in reader.publishes()] == [b"x"]
