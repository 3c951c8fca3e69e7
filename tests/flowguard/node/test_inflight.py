"""In-flight bytes of the whole node: beyond the budget messages wait, everybody may have one."""

import pytest

from flowguard.codec.packets import Puback, Pubcomp, Pubrec, Pubrel
from flowguard.flow import Reason
from flowguard.records import DELIVERY_BYTES
from flowguard.session.dispatch import LARGE_INFLIGHT_MAX
from flowguard.session.inflight import INFLIGHT_BYTES
from flowguard.session.session import KEEPS_UP_MAX
from flowguard.types import Publish
from tests.flowguard.node.ledger import check_budgets, end_all_sessions, used_bytes
from tests.support.stage import Client, Stage

KIB = 1024
MIB = 1024 * KIB
LARGE = bytes(100 * KIB)


def tight_stage(limit_bytes: int = MIB) -> Stage:
    stage = Stage({"node": {"inflight_bytes_max": MIB}})
    stage.node.inflight.budget.limit_bytes = limit_bytes
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


def received(client: Client) -> list[Publish]:
    return client.publishes(acknowledge=False)


def check(stage: Stage, clients: list[Client]) -> int:
    """What is in flight, bytes."""
    check_budgets(stage.node, [client.connection for client in clients])
    return stage.node.inflight.budget.used_bytes


@pytest.mark.parametrize("size_bytes", [0, 50, 5_000, 100_000])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_in_flight_is_charged_until_its_exchange_ends(
    version: int, qos: int, size_bytes: int
) -> None:
    stage = tight_stage()
    clients = subscribers(stage, 1, version, qos=qos)
    deliver(stage, "t0", bytes(size_bytes), qos)
    (message,) = received(clients[0])
    assert check(stage, clients) > INFLIGHT_BYTES + size_bytes - 1
    if qos == 2:
        clients[0].send(Pubrec(message.packet_id))
        clients[0].expect(Pubrel)
        assert check(stage, clients) == INFLIGHT_BYTES
        clients[0].send(Pubcomp(message.packet_id))
    else:
        clients[0].send(Puback(message.packet_id))
    assert check(stage, clients) == 0


def test_one_content_in_flight_to_many_clients_counts_once(version: int) -> None:
    stage = tight_stage(len(LARGE) * 4)
    clients = subscribers(stage, 20, version, "t")
    deliver(stage, "t", LARGE)
    messages = [received(client) for client in clients]
    assert [len(each) for each in messages] == [1] * 20
    in_flight_bytes = check(stage, clients)
    assert 20 * INFLIGHT_BYTES < in_flight_bytes - 2 * len(LARGE) < 21 * INFLIGHT_BYTES
    for client, (message,) in zip(clients, messages, strict=True):
        assert stage.node.inflight.budget.used_bytes > 2 * len(LARGE)
        client.send(Puback(message.packet_id))
    assert check(stage, clients) == 0


@pytest.mark.parametrize("payload", [LARGE, b"small"])
def test_beyond_the_budget_messages_wait_and_nothing_is_lost(version: int, payload: bytes) -> None:
    stage = tight_stage(limit_bytes=3 * (INFLIGHT_BYTES + 2 * len(payload)))
    clients = subscribers(stage, 4, version)
    for number in range(12):
        deliver(stage, f"t{number % 4}", payload + b"%d" % number)
    in_flight = [received(client) for client in clients]
    assert max(len(messages) for messages in in_flight) <= 3
    check(stage, clients)
    for number, client in enumerate(clients):
        got = []
        while in_flight[number]:
            got += in_flight[number]
            client.send(*(Puback(message.packet_id) for message in in_flight[number]))
            in_flight[number] = received(client)
            check(stage, clients)
        assert [m.payload for m in got] == [payload + b"%d" % n for n in range(number, 12, 4)]
    assert not stage.node.counters.dropped
    assert check(stage, clients) == 0


@pytest.mark.parametrize("payload", [LARGE, b"small"])
def test_a_client_with_nothing_in_flight_always_gets_one(version: int, payload: bytes) -> None:
    """On the account of the queues: silent clients stop nobody, and what they hold is bounded."""
    stage = tight_stage(limit_bytes=0)
    clients = subscribers(stage, 3, version)
    for number in range(3):
        deliver(stage, f"t{number}", payload)
        deliver(stage, f"t{number}", payload)
    assert [len(received(client)) for client in clients] == [1, 1, 1]
    assert stage.node.queue_budget.used_bytes > 6 * len(payload)
    check(stage, clients)
    end_all_sessions(stage.node, stage.now_s)


def test_where_the_queues_are_full_as_well_a_message_is_dropped_and_counted(version: int) -> None:
    stage = tight_stage(limit_bytes=0)
    stage.node.queue_budget.limit_bytes = 5 * len(LARGE)
    clients = subscribers(stage, 20, version)
    for number in range(20):
        deliver(stage, f"t{number}", LARGE)
    assert sum(len(received(client)) for client in clients) == 4
    assert stage.node.counters.dropped == {Reason.NODE_QUEUE_BYTES: 16}
    check(stage, clients)


def test_who_waits_is_served_though_the_queues_are_full_to_the_last_byte(version: int) -> None:
    stage = tight_stage()
    clients = subscribers(stage, 1, version)
    deliver(stage, "t0", LARGE)
    stage.node.inflight.budget.limit_bytes = 0
    deliver(stage, "t0", LARGE)
    stage.node.queue_budget.limit_bytes = stage.node.queue_budget.used_bytes
    (first,) = received(clients[0])
    clients[0].send(Puback(first.packet_id))
    assert len(received(clients[0])) == 1
    check(stage, clients)


def test_properties_and_long_topics_are_charged_too() -> None:
    stage = tight_stage()
    clients = subscribers(stage, 1, 5, "#")
    publisher = stage.connect("p")
    publisher.publish("t", b"", qos=1, user_properties=(("", ""),) * 20)
    with_properties = check(stage, clients)
    assert with_properties > INFLIGHT_BYTES + 20 * 100
    publisher.publish("t" * 2_000, b"", qos=1)
    assert check(stage, clients) > with_properties + 2_000
    clients[0].publishes()
    assert check(stage, clients) == 0


def test_a_session_keeps_its_account_while_its_client_is_away(version: int) -> None:
    stage = tight_stage()
    clients = subscribers(stage, 1, version)
    deliver(stage, "t0", LARGE)
    deliver(stage, "t0", b"small")
    before = check(stage, clients)
    clients[0].close()
    assert check(stage, clients) == before
    again = stage.connect_durable("s0", version=version)
    assert check(stage, [again]) == before
    assert len(again.publishes()) == 2
    assert check(stage, [again]) == 0


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
    stage.node.inflight.budget.limit_bytes = 0
    again = stage.connect_durable("s0", version=version)
    assert check(stage, [again]) > len(LARGE)
    got = received(again)
    assert len(got) == (3 if qos == 1 else 2)
    end_all_sessions(stage.node, stage.now_s)


def test_a_message_too_large_for_a_returning_client_leaves_the_account() -> None:
    stage = tight_stage()
    clients = subscribers(stage, 1, 5)
    deliver(stage, "t0", LARGE)
    clients[0].close()
    again = stage.connect_durable("s0", maximum_packet_size=60)
    assert stage.node.counters.dropped == {Reason.PACKET_TOO_LARGE: 1}
    assert check(stage, [again]) == 0


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


def test_a_message_that_has_to_wait_defines_no_alias() -> None:
    stage = tight_stage(limit_bytes=0)
    client = stage.connect("s", topic_alias_maximum=5)
    client.subscribe("#", qos=1)
    deliver(stage, "first", b"")
    deliver(stage, "second", b"")
    deliver(stage, "second", b"")
    known: dict[int | None, str] = {}
    topics = []
    while messages := received(client):
        for message in messages:
            alias = message.properties.topic_alias
            if message.topic:
                known[alias] = message.topic
            topics.append(message.topic or known[alias])
            client.send(Puback(message.packet_id))
    assert topics == ["first", "second", "second"]
    check(stage, [client])


@pytest.mark.parametrize("size_bytes", [0, 100, 3_000, 10_000])
def test_the_last_quarter_is_shared_by_those_who_have_anything_in_flight(size_bytes: int) -> None:
    """Whoever comes while silent clients hold three quarters gets its share in flight, or two."""
    stage = tight_stage()
    silent = subscribers(stage, 5, 5, "silent")
    for _ in range(1_500):
        deliver(stage, "silent", b"x")
    budget = stage.node.inflight.budget
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
