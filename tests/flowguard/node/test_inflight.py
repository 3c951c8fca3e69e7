"""In-flight bytes of the whole node: beyond the budget messages wait, but each client may have
one."""

import pytest

from flowguard.codec.packets import Puback, Pubrec
from flowguard.records import DELIVERY_BYTES
from flowguard.session.outbound.dispatch import LARGE_INFLIGHT_MAX
from flowguard.session.outbound.inflight import INFLIGHT_BYTES
from flowguard.session.session import KEEPS_UP_MAX
from flowguard.types import Publish
from tests.flowguard.node.ledger import check_budgets, end_all_sessions, used_bytes
from tests.support.readings import received
from tests.support.stage import Client, Stage

KIB = 1024
MIB = 1024 * KIB
LARGE = bytes(100 * KIB)


def tight_stage(limit_bytes: int = MIB) -> Stage:
    stage = Stage({"node": {"inflight_bytes_max": MIB}})
    stage.node.state.inflight.budget.limit_bytes = limit_bytes
    return stage


def subscribers(
    stage: Stage, count: int, version: int, topic: str = "t{}", qos: int = 1
) -> list[Client]:
    clients = [stage.connect_durable(f"s{number}", version=version) for number in range(count)]
    for number, client in enumerate(clients):
        client.subscribe(topic.format(number), qos=qos)
    return clients


def deliver(stage: Stage, topic: str, payload: bytes, qos: int = 1) -> None:
    stage.node.router.publish_own(Publish(topic, payload, qos), stage.now_s)
    stage.settle()


def check(stage: Stage, clients: list[Client]) -> int:
    """Check the budgets, and return the bytes in flight."""
    check_budgets(stage.node, [client.connection for client in clients])
    return stage.node.state.inflight.budget.used_bytes


@pytest.mark.parametrize("qos", [1, 2])
def test_a_restart_takes_what_was_in_flight_into_account_whatever_the_limit(
    version: int, qos: int
) -> None:
    stage = tight_stage()
    clients = subscribers(stage, 1, version, qos=qos)
    for payload in (LARGE, b"small", LARGE):
        deliver(stage, "t0", payload, qos)
    if qos == 2:
        clients[0].send(Pubrec(received(clients[0])[0].packet_id))
    stage.restart()
    stage.node.state.inflight.budget.limit_bytes = 0
    again = stage.connect_durable("s0", version=version)
    assert check(stage, [again]) > len(LARGE)
    got = received(again)
    assert len(got) == (3 if qos == 1 else 2)
    end_all_sessions(stage.node, stage.now_s)


@pytest.mark.parametrize("limit_bytes", [MIB, 0])
def test_retained_messages_without_a_place_in_flight_wait_in_the_queue(
    version: int, limit_bytes: int
) -> None:
    stage = tight_stage(limit_bytes)
    publisher = stage.connect("p", version=version)
    count = LARGE_INFLIGHT_MAX + 5
    for number in range(count):
        publisher.publish(f"r/{number}", bytes(5 * KIB), qos=1, retain=True)
    client = stage.connect("s", version=version)
    client.subscribe("r/#", qos=1)
    topics = set()
    while messages := received(client):
        topics |= {message.topic for message in messages}
        client.send(*(Puback(message.packet_id) for message in messages))
    assert len(topics) == count
    assert not stage.node.counters.dropped
    assert used_bytes(stage.node)["inflight"] == used_bytes(stage.node)["queue"] == 0


@pytest.mark.parametrize("size_bytes", [0, 100, 3_000, 10_000])
def test_the_last_quarter_is_shared_by_those_who_have_anything_in_flight(size_bytes: int) -> None:
    """A client that joins while silent ones hold three quarters gets its share in flight, or
    two."""
    stage = tight_stage()
    silent = subscribers(stage, 5, 5, "silent")
    for _ in range(1_500):
        deliver(stage, "silent", b"x")
    budget = stage.node.state.inflight.budget
    assert budget.common_bytes <= budget.used_bytes + INFLIGHT_BYTES
    left_bytes = budget.limit_bytes - budget.used_bytes
    client = stage.connect_durable("c")
    client.subscribe("t", qos=1)
    while not stage.node.registry.sessions["c"].queue.count:
        deliver(stage, "t", bytes(size_bytes))
    held_bytes = budget.used_bytes - (budget.limit_bytes - left_bytes)
    message_bytes = INFLIGHT_BYTES + 2 * (DELIVERY_BYTES + 1 + size_bytes)
    assert received(client)
    most_bytes = max(left_bytes // 7, KEEPS_UP_MAX * message_bytes)
    assert held_bytes <= most_bytes
    assert left_bytes // 7 < held_bytes + message_bytes
    check(stage, [*silent, client])
