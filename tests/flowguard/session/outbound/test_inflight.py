"""In-flight bytes of the whole node: beyond the budget messages wait, but each client may have
one."""

import pytest

from flowguard.codec.packets import Puback, Pubcomp, Pubrec, Pubrel
from flowguard.flow import Reason
from flowguard.session.outbound.inflight import INFLIGHT_BYTES
from flowguard.types import Publish
from tests.flowguard.session.sessions import Client, Sessions
from tests.support.readings import received

KIB = 1024
MIB = 1024 * KIB
LARGE = bytes(100 * KIB)


def tight_sessions(limit_bytes: int = MIB) -> Sessions:
    sessions = Sessions({"node": {"inflight_bytes_max": MIB}})
    sessions.node.inflight.budget.limit_bytes = limit_bytes
    return sessions


def subscribers(
    sessions: Sessions, count: int, version: int, topic: str = "t{}", qos: int = 1
) -> list[Client]:
    clients = [sessions.connect_durable(f"s{number}", version=version) for number in range(count)]
    for number, client in enumerate(clients):
        client.subscribe(topic.format(number), qos=qos)
    return clients


def deliver(sessions: Sessions, topic: str, payload: bytes, qos: int = 1) -> None:
    sessions.publish(Publish(topic, payload, qos))
    sessions.settle()


def check(sessions: Sessions, clients: list[Client]) -> int:
    """Check the budgets, and return the bytes in flight."""
    sessions.check([client.connection for client in clients])
    return sessions.node.inflight.budget.used_bytes


@pytest.mark.parametrize("size_bytes", [0, 50, 5_000, 100_000])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_in_flight_is_charged_until_its_exchange_ends(
    version: int, qos: int, size_bytes: int
) -> None:
    sessions = tight_sessions()
    clients = subscribers(sessions, 1, version, qos=qos)
    deliver(sessions, "t0", bytes(size_bytes), qos)
    (message,) = received(clients[0])
    assert check(sessions, clients) > INFLIGHT_BYTES + size_bytes - 1
    if qos == 2:
        clients[0].send(Pubrec(message.packet_id))
        clients[0].expect(Pubrel)
        assert check(sessions, clients) == INFLIGHT_BYTES
        clients[0].send(Pubcomp(message.packet_id))
    else:
        clients[0].send(Puback(message.packet_id))
    assert check(sessions, clients) == 0


def test_one_content_in_flight_to_many_clients_counts_once(version: int) -> None:
    sessions = tight_sessions(len(LARGE) * 4)
    clients = subscribers(sessions, 20, version, "t")
    deliver(sessions, "t", LARGE)
    messages = [received(client) for client in clients]
    assert [len(each) for each in messages] == [1] * 20
    in_flight_bytes = check(sessions, clients)
    assert 20 * INFLIGHT_BYTES < in_flight_bytes - 2 * len(LARGE) < 21 * INFLIGHT_BYTES
    for client, (message,) in zip(clients, messages, strict=True):
        assert sessions.node.inflight.budget.used_bytes > 2 * len(LARGE)
        client.send(Puback(message.packet_id))
    assert check(sessions, clients) == 0


@pytest.mark.parametrize("payload", [LARGE, b"small"])
def test_beyond_the_budget_messages_wait_and_nothing_is_lost(version: int, payload: bytes) -> None:
    sessions = tight_sessions(limit_bytes=3 * (INFLIGHT_BYTES + 2 * len(payload)))
    clients = subscribers(sessions, 4, version)
    for number in range(12):
        deliver(sessions, f"t{number % 4}", payload + b"%d" % number)
    in_flight = [received(client) for client in clients]
    assert max(len(messages) for messages in in_flight) <= 3
    check(sessions, clients)
    for number, client in enumerate(clients):
        got = []
        while in_flight[number]:
            got += in_flight[number]
            client.send(*(Puback(message.packet_id) for message in in_flight[number]))
            in_flight[number] = received(client)
            check(sessions, clients)
        assert [m.payload for m in got] == [payload + b"%d" % n for n in range(number, 12, 4)]
    assert not sessions.node.counters.dropped
    assert check(sessions, clients) == 0


@pytest.mark.parametrize("payload", [LARGE, b"small"])
def test_a_client_with_nothing_in_flight_always_gets_one(version: int, payload: bytes) -> None:
    """It counts in the budget of the queues: silent clients stop no other, and their bytes are
    bounded."""
    sessions = tight_sessions(limit_bytes=0)
    clients = subscribers(sessions, 3, version)
    for number in range(3):
        deliver(sessions, f"t{number}", payload)
        deliver(sessions, f"t{number}", payload)
    assert [len(received(client)) for client in clients] == [1, 1, 1]
    assert sessions.node.queue_budget.used_bytes > 6 * len(payload)
    check(sessions, clients)
    sessions.end_all()


def test_where_the_queues_are_full_as_well_a_message_is_dropped_and_counted(version: int) -> None:
    sessions = tight_sessions(limit_bytes=0)
    sessions.node.queue_budget.limit_bytes = 5 * len(LARGE)
    clients = subscribers(sessions, 20, version)
    for number in range(20):
        deliver(sessions, f"t{number}", LARGE)
    assert sum(len(received(client)) for client in clients) == 4
    assert sessions.node.counters.dropped == {Reason.NODE_QUEUE_BYTES: 16}
    check(sessions, clients)


def test_who_waits_is_served_though_the_queues_are_full_to_the_last_byte(version: int) -> None:
    sessions = tight_sessions()
    clients = subscribers(sessions, 1, version)
    deliver(sessions, "t0", LARGE)
    sessions.node.inflight.budget.limit_bytes = 0
    deliver(sessions, "t0", LARGE)
    sessions.node.queue_budget.limit_bytes = sessions.node.queue_budget.used_bytes
    (first,) = received(clients[0])
    clients[0].send(Puback(first.packet_id))
    assert len(received(clients[0])) == 1
    check(sessions, clients)


def test_properties_and_long_topics_are_charged_too() -> None:
    sessions = tight_sessions()
    clients = subscribers(sessions, 1, 5, "#")
    publisher = sessions.connect("p")
    publisher.publish("t", b"", qos=1, user_properties=(("", ""),) * 20)
    with_properties = check(sessions, clients)
    assert with_properties > INFLIGHT_BYTES + 20 * 100
    publisher.publish("t" * 2_000, b"", qos=1)
    assert check(sessions, clients) > with_properties + 2_000
    clients[0].publishes()
    assert check(sessions, clients) == 0


def test_a_session_keeps_its_account_while_its_client_is_away(version: int) -> None:
    sessions = tight_sessions()
    clients = subscribers(sessions, 1, version)
    deliver(sessions, "t0", LARGE)
    deliver(sessions, "t0", b"small")
    before = check(sessions, clients)
    clients[0].close()
    assert check(sessions, clients) == before
    again = sessions.connect_durable("s0", version=version)
    assert check(sessions, [again]) == before
    assert len(again.publishes()) == 2
    assert check(sessions, [again]) == 0


def test_a_message_too_large_for_a_returning_client_leaves_the_account() -> None:
    sessions = tight_sessions()
    clients = subscribers(sessions, 1, 5)
    deliver(sessions, "t0", LARGE)
    clients[0].close()
    again = sessions.connect_durable("s0", maximum_packet_size=60)
    assert sessions.node.counters.dropped == {Reason.PACKET_TOO_LARGE: 1}
    assert check(sessions, [again]) == 0


def test_a_message_that_has_to_wait_defines_no_alias() -> None:
    sessions = tight_sessions(limit_bytes=0)
    client = sessions.connect("s", topic_alias_maximum=5)
    client.subscribe("#", qos=1)
    deliver(sessions, "first", b"")
    deliver(sessions, "second", b"")
    deliver(sessions, "second", b"")
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
    check(sessions, [client])
