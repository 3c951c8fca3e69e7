"""Retained messages that are owed to a durable session: stored before they are sent, and owed until
they have come, whatever ends its connections."""

import pytest

from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.packets import Pubcomp, Pubrec, Pubrel, Subscribe
from flowguard.config import MIB
from flowguard.records import PutSubscription
from flowguard.session.chores import FILTERS_PIECE
from flowguard.types import MQTT_5, Publish, SubscriptionOptions
from tests.support.stage import Client, Stage, StoreOnDisk

JOURNAL_OPS = 2_000


def retain(stage: Stage, *topics: str, qos: int = 1, payload: bytes = b"kept") -> None:
    publisher = stage.connect()
    for topic in topics:
        publisher.publish(topic, payload, qos=qos, retain=True)


def ask(client: Client, *filters: str, qos: int = 1) -> None:
    """SUBSCRIBE, whatever the answer."""
    options = SubscriptionOptions(qos)
    client.send(Subscribe(1, tuple((filter, options) for filter in filters)))


# --- before they are sent --------------------------------------------------------------------


@pytest.mark.spec("MQTT-4.4.0-1", "v3:MQTT-4.4.0-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_retained_message_leaves_only_when_the_store_has_its_position(
    version: int, qos: int
) -> None:
    stage = Stage()
    retain(stage, "a", "b", qos=2)
    client = stage.connect_durable("s", version=version)
    stage.hold_commits = True
    ask(client, "+", qos=qos)
    assert stage.finish_commit()
    assert client.publishes() == []
    assert stage.finish_commit()
    sent = client.publishes(acknowledge=False)
    assert [entry.packet_id for entry in stage.store.fetch("s", 0, 10)] == [
        message.packet_id for message in sent
    ]
    assert len(sent) == 2


@pytest.mark.spec("MQTT-4.3.3-10", "v3:MQTT-4.4.0-1")
@pytest.mark.parametrize("commits", [1, 2, 3])
def test_no_crash_gives_the_identifier_of_a_retained_message_to_another(
    version: int, commits: int
) -> None:
    """A receiver that has sent PUBREC, and seen no PUBREL, takes it for the same message."""
    stage = Stage()
    retain(stage, "state", qos=2)
    client = stage.connect_durable("s", version=version)
    stage.hold_commits = True
    ask(client, "state", "command", qos=2)
    for _ in range(commits):
        stage.finish_commit()
    owned = {message.packet_id: message.topic for message in client.publishes(acknowledge=False)}
    stage.restart()
    client = stage.connect_durable("s", version=version)
    stage.connect("p").publish("command", b"open", qos=2)
    for message in client.publishes():
        assert owned.setdefault(message.packet_id, message.topic) == message.topic
    assert "command" in owned.values()


def test_one_that_is_overtaken_by_its_successor_comes_before_it() -> None:
    stage = Stage()
    retain(stage, "t", payload=b"old")
    client = stage.connect_durable("s")
    stage.hold_commits = True
    ask(client, "t")
    stage.finish_commit()
    stage.connect("p").send(Publish("t", b"new", 1, packet_id=1))
    stage.release_commits()
    assert [message.payload for message in client.publishes()] == [b"old", b"new"]


@pytest.mark.parametrize("queue_policy", ["drop-new", "drop-oldest", "block"])
@pytest.mark.parametrize("store", [None, StoreOnDisk])
def test_more_come_than_its_queue_may_have(
    queue_policy: str, store: type[StoreOnDisk] | None
) -> None:
    stage = Stage(
        {"session": {"queue_messages_max": 7, "queue_policy": queue_policy}},
        store=store() if store else None,
    )
    topics = [f"t/{number}" for number in range(100)]
    retain(stage, *topics)
    client = stage.connect_durable("s", receive_maximum=30)
    client.subscribe("t/#", qos=1)
    assert sorted(message.topic for message in client.publishes()) == sorted(topics)
    assert stage.node.counters.dropped == {}


def test_those_of_many_sessions_fill_no_journal_and_all_of_them_come() -> None:
    """A fleet subscribes again: messages on their way to the store are bounded for all clients
    together, so that the journal is not full for other clients."""
    stage = Stage({"flow": {"journal_ops_max": JOURNAL_OPS}})
    retain(stage, *(f"r/{number}" for number in range(300)))
    fleet = [stage.connect_durable(f"s{number}") for number in range(40)]
    stage.hold_commits = True
    for client in fleet:
        ask(client, "r/+")
    came = dict.fromkeys(fleet, 0)
    while any(count < 300 for count in came.values()):
        assert stage.finish_commit()
        assert not stage.node.guard.window.closed
        assert stage.node.journal.depth <= JOURNAL_OPS
        for client in fleet:
            came[client] += len(client.publishes())
        stage.now_s += 0.1
        stage.node.tick(stage.now_s)
    assert set(came.values()) == {300}
    assert (stage.node.state.moving.count, stage.node.state.later) == (0, {})


def test_while_the_disk_is_full_they_wait_and_then_they_come() -> None:
    stage = Stage()
    retain(stage, "a", "b", qos=1)
    retain(stage, "c", qos=0)
    client = stage.connect_durable("s")
    stage.hold_commits = True
    ask(client, "#")
    stage.node.state.read_only = True
    stage.release_commits()
    assert client.publishes() == []
    stage.advance(0.3)
    assert client.publishes() == []
    stage.node.state.read_only = False
    stage.advance(0.1)
    assert sorted(message.topic for message in client.publishes()) == ["a", "b", "c"]
    assert not stage.node.state.later


def test_a_message_larger_than_a_queue_is_dropped_and_counted() -> None:
    stage = Stage({"session": {"queue_bytes_max": 9_000, "packet_size_max": 9_000}})
    retain(stage, "a", payload=b"x" * 8_900)
    retain(stage, "b")
    client = stage.connect_durable("s", version=MQTT_5)
    client.subscribe("#", qos=1)
    assert [message.topic for message in client.publishes()] == ["b"]
    assert stage.node.counters.dropped == {"queue_bytes": 1}


# --- until they have come --------------------------------------------------------------------


def topics_of(count: int) -> list[str]:
    return [f"r/{number % 7}/{number}" for number in range(count)]


def leave(stage: Stage, client: Client, how: str) -> None:
    """The connection of `s` ends."""
    if how == "break":
        client.close()
    elif how == "disconnect":
        client.disconnect()
    elif how == "restart":
        stage.settle()
        stage.restart()
    elif how == "crash":
        stage.hold_commits = True
        stage.settle()
        stage.restart()
    else:
        assert how == "take-over"


ENDS = ["break", "disconnect", "take-over", "restart", "crash"]


@pytest.mark.spec("MQTT-3.3.1-9", "v3:MQTT-3.3.1-6")
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("store", [None, StoreOnDisk])
def test_whatever_ends_its_connections_a_session_gets_each_once(
    version: int, how: str, store: type[StoreOnDisk] | None
) -> None:
    settings = {"session": {"inflight_max": 3, "queue_messages_max": 5}}
    stage = Stage(settings, store=store() if store else None)
    topics = topics_of(60)
    retain(stage, *topics, qos=2)
    client = stage.connect_durable("s", version=version)
    client.subscribe("r/+/+", "r/3/#", qos=2)
    wanted = sorted(topics + [topic for topic in topics if topic.startswith("r/3/")])
    seen: list[str] = []
    for _ in range(len(wanted)):
        if len(seen) == len(wanted):
            break
        sent = [each for each in client.inbox if isinstance(each, Publish)]
        client.inbox.clear()
        for message in sent[:1]:
            client.send(Pubrec(message.packet_id))
            client.expect(Pubrel)
            client.send(Pubcomp(message.packet_id))
            seen.append(message.topic)
        leave(stage, client, how)
        client = stage.connect_durable("s", version=version)
        assert client.connack.session_present
    seen += [message.topic for message in client.publishes()]
    assert sorted(seen) == wanted
    assert stage.node.counters.dropped == {}
    assert stage.node.registry.sessions["s"].subscriptions.retained_after is None
    (record,) = stage.store.sessions()
    assert record.retained_after == {}


@pytest.mark.parametrize("how", ["break", "restart"])
def test_of_what_changed_meanwhile_the_newest_comes_and_of_what_was_cleared_nothing(
    how: str,
) -> None:
    stage = Stage()
    retain(stage, "t/1", "t/2", "t/3", "t/4")
    client = stage.connect_durable("s", receive_maximum=1)
    client.subscribe("t/+", qos=1)
    leave(stage, client, how)
    retain(stage, "t/3", payload=b"new")
    retain(stage, "t/1", "t/4", payload=b"")
    client = stage.connect_durable("s")
    found = [(message.topic, message.payload, message.retain) for message in client.publishes()]
    live = [("t/3", b"new", False), ("t/1", b"", False), ("t/4", b"", False)]
    owed = [("t/2", b"kept", True), ("t/3", b"new", True)]
    assert found == [("t/1", b"kept", True), *live, *owed]


@pytest.mark.spec("MQTT-3.10.4-2")
@pytest.mark.parametrize("how", ["break", "restart"])
def test_nothing_is_owed_to_a_subscription_that_has_ended(how: str) -> None:
    stage = Stage()
    retain(stage, "t/1", "t/2", "u/1", "u/2")
    client = stage.connect_durable("s", receive_maximum=1)
    client.subscribe("t/+", "u/+", qos=1)
    client.unsubscribe("t/+")
    leave(stage, client, how)
    client = stage.connect_durable("s")
    assert [message.topic for message in client.publishes()] == ["t/1", "u/1", "u/2"]


def test_a_session_that_ends_is_owed_nothing_and_its_successor_neither() -> None:
    stage = Stage()
    retain(stage, "t/1", "t/2")
    stage.connect_durable("s", receive_maximum=1).subscribe("t/+", qos=1)
    client = stage.connect("s", session_expiry_interval=100)
    assert client.publishes() == []
    (record,) = stage.store.sessions()
    assert (record.subscriptions, record.retained_after) == ({}, {})


@pytest.mark.spec("MQTT-3.8.4-3")
@pytest.mark.parametrize("how", ["break", "restart"])
def test_a_subscription_replaced_without_retained_messages_keeps_those_it_is_owed(
    how: str,
) -> None:
    stage = Stage()
    retain(stage, "t/1", "t/2", "t/3")
    client = stage.connect_durable("s", receive_maximum=1)
    client.subscribe("t/+", qos=1, identifier=1)
    client.subscribe("t/+", qos=1, retain_handling=1, identifier=2)
    leave(stage, client, how)
    client = stage.connect_durable("s")
    found = [
        (message.topic, message.properties.subscription_identifiers)
        for message in client.publishes()
    ]
    assert found == [("t/1", (1,)), ("t/2", (2,)), ("t/3", (2,))]


@pytest.mark.spec("MQTT-3.8.4-3")
@pytest.mark.parametrize("how", ["break", "restart"])
def test_a_subscription_replaced_with_retained_messages_is_owed_all_of_them_again(
    how: str,
) -> None:
    stage = Stage()
    retain(stage, "t/1", "t/2", "t/3")
    client = stage.connect_durable("s", receive_maximum=1)
    client.subscribe("t/+", qos=1)
    client.subscribe("t/+", qos=1)
    leave(stage, client, how)
    client = stage.connect_durable("s")
    assert [message.topic for message in client.publishes()] == ["t/1", "t/1", "t/2", "t/3"]


def test_a_connection_that_ends_before_suback_costs_its_session_no_retained_message() -> None:
    stage = Stage()
    retain(stage, *topics_of(10))
    client = stage.connect_durable("s")
    stage.hold_commits = True
    ask(client, "r/#")
    client.close()
    stage.release_commits()
    client = stage.connect_durable("s")
    assert sorted(message.topic for message in client.publishes()) == sorted(topics_of(10))


def test_a_connection_that_ends_while_a_page_is_stored_gives_it_to_the_next() -> None:
    stage = Stage()
    retain(stage, *topics_of(10))
    client = stage.connect_durable("s")
    stage.hold_commits = True
    ask(client, "r/#")
    stage.finish_commit()
    client.close()
    stage.release_commits()
    client = stage.connect_durable("s")
    assert sorted(message.topic for message in client.publishes()) == sorted(topics_of(10))


def test_qos_0_messages_among_them_come_as_well() -> None:
    stage = Stage()
    retain(stage, "t/1", "t/3", qos=0)
    retain(stage, "t/2", "t/4", qos=1)
    client = stage.connect_durable("s", receive_maximum=1)
    client.subscribe("t/+", qos=1)
    assert [message.topic for message in client.publishes(acknowledge=False)] == ["t/1", "t/2"]
    client.close()
    client = stage.connect_durable("s")
    found = {message.topic for message in client.publishes()}
    assert found == {"t/2", "t/3", "t/4"}
    assert stage.node.registry.sessions["s"].subscriptions.retained_after is None


@pytest.mark.parametrize("how", [how for how in ENDS if how != "crash"])
def test_qos_0_messages_that_were_sent_do_not_come_again(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    topics = [f"t/{number:04}" for number in range(3_000)]
    retain(stage, *topics, qos=0, payload=bytes(100))
    client = stage.connect_durable("s")
    turns = iter([client.carry])
    # The socket takes the SUBACK, and then no more.
    monkeypatch.setattr(client, "carry", lambda: next(turns, lambda: None)())
    ask(client, "t/+")
    decoder = PacketDecoder(MIB, MQTT_5, role="client")
    decoder.feed(client.connection.outbound.outbox.take())
    sent = []
    while (packet := decoder.next()) is not None:
        sent += [packet.topic] if isinstance(packet, Publish) else []
    assert 0 < len(sent) < len(topics)
    leave(stage, client, how)
    client = stage.connect_durable("s")
    assert sent + [message.topic for message in client.publishes()] == topics


def test_a_client_with_many_filters_gets_what_all_of_them_owe_it() -> None:
    stage = Stage()
    count = 3 * FILTERS_PIECE
    topics = [f"t/{number}" for number in range(count)]
    retain(stage, *topics)
    client = stage.connect_durable("s", receive_maximum=1)
    client.subscribe(*topics, qos=1)
    client.close()
    client = stage.connect_durable("s")
    assert sorted(message.topic for message in client.publishes()) == sorted(topics)


def test_where_nothing_is_retained_nothing_is_owed() -> None:
    stage = Stage()
    retain(stage, "u")
    client = stage.connect_durable("s")
    stage.hold_commits = True
    ask(client, "t", "t/#", "+/t")
    assert stage.held is not None
    owed = [op.retained_after for op in stage.held.ops if isinstance(op, PutSubscription)]
    assert owed == [None, None, None]
