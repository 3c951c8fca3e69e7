"""Queues of shared subscriptions: what waits, waits for the group, not for one of its members."""

import pytest

from flowguard.codec.packets import Puback, Unsubscribe
from flowguard.flow import Reason
from flowguard.records import Append, is_group
from tests.flowguard.node.ledger import end_all_sessions
from tests.support.stage import Client, Stage, StoreOnDisk

FILTER = "$share/g/a"


@pytest.fixture(params=[False, True], ids=["in memory", "on disk"])
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(store=StoreOnDisk() if request.param else None)


def member(stage: Stage, name: str, *, qos: int = 1, **properties: int) -> Client:
    """A member of the group, its session durable unless its expiry is 0."""
    client = stage.connect_durable(name, **properties)
    client.subscribe(FILTER, qos=qos)
    return client


def publish(stage: Stage, *payloads: bytes, qos: int = 1) -> None:
    publisher = stage.connect("p")
    for payload in payloads:
        publisher.publish("a", payload, qos=qos)
    publisher.disconnect()


def taken(client: Client) -> list[bytes]:
    """Return the payloads received, without acknowledging them."""
    return [message.payload for message in client.publishes(acknowledge=False)]


def payloads(client: Client) -> list[bytes]:
    """Return the payloads received, and those that follow after acknowledgements."""
    return [message.payload for message in client.publishes()]


def groups(stage: Stage) -> dict[str, int]:
    """Queues in the store: how many messages are in them."""
    return {
        record.client_id[1:]: record.unsettled_count
        for record in stage.store.sessions()
        if is_group(record.client_id)
    }


def waiting(stage: Stage) -> int:
    """Messages that no member has."""
    (queue,) = stage.node.router.queues._queues.values()
    return queue.queue.count


# --- who gets what ------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_goes_to_the_next_member_with_room_in_order(stage: Stage, qos: int) -> None:
    first, second = (member(stage, name, qos=qos, receive_maximum=1) for name in ("1st", "2nd"))
    publish(stage, *(b"%d" % number for number in range(5)), qos=qos)
    (held,) = first.publishes(acknowledge=False)
    assert held.payload == b"0"
    assert payloads(second) == [b"1", b"2", b"3", b"4"]
    assert groups(stage) == {FILTER: 1 if qos == 1 else 0}


def test_a_slow_member_holds_nobody_up(stage: Stage) -> None:
    slow, quick = member(stage, "slow"), member(stage, "quick")
    slow.reads = False
    publish(stage, *(b"%d" % number for number in range(40)))
    assert len(payloads(quick)) == 20
    slow.close()
    assert len(payloads(quick)) == 20


def test_a_message_is_sent_before_anybody_else_acknowledges_or_connects(stage: Stage) -> None:
    client = member(stage, "m")
    publish(stage, b"x")
    assert taken(client) == [b"x"]
    assert waiting(stage) == 0


def test_a_new_member_gets_what_waits(stage: Stage) -> None:
    member(stage, "away").close()
    publish(stage, b"x")
    assert payloads(member(stage, "new")) == [b"x"]


def test_a_message_on_disk_takes_no_memory_while_no_member_is_connected() -> None:
    stage = Stage(store=StoreOnDisk())
    clients = [member(stage, name, receive_maximum=1) for name in ("1st", "2nd")]
    publish(stage, b"0", b"1", b"2")
    assert stage.node.state.queue_budget.used_bytes > 0
    for client in clients:
        taken(client)
        client.close()
    held_bytes = stage.node.state.queue_budget.used_bytes
    publish(stage, *(b"%d" % number for number in range(3, 100)))
    assert stage.node.state.queue_budget.used_bytes == held_bytes
    assert payloads(stage.connect_durable("1st")) == [b"%d" % number for number in range(100)]


def test_deliveries_of_one_message_to_many_groups_share_their_memory() -> None:
    stage = Stage(store=StoreOnDisk())
    client = stage.connect_durable("m")
    client.subscribe(*(f"$share/g{number}/a" for number in range(50)), qos=1)
    client.close()
    publisher = stage.connect("p")
    stage.hold_commits = True
    publisher.publish("a", b"x", qos=1)
    assert stage.held is not None
    deliveries = [op.delivery for op in stage.held.ops if isinstance(op, Append)]
    assert len(deliveries) == 50
    assert len(set(map(id, deliveries))) == 1


@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_survives_a_restart(stage: Stage, qos: int) -> None:
    member(stage, "m", qos=2).close()
    publish(stage, b"x", b"y", qos=qos)
    stage.restart()
    assert payloads(stage.connect_durable("m")) == [b"x", b"y"]
    assert groups(stage) == {FILTER: 0}


def test_a_member_gets_messages_of_all_its_groups_in_turn(stage: Stage) -> None:
    client = stage.connect_durable("m", receive_maximum=1)
    client.subscribe(FILTER, "$share/h/b", qos=1)
    publisher = stage.connect("p")
    for topic in ("a", "a", "a", "b", "b"):
        publisher.publish(topic, topic.encode(), qos=1)
    assert payloads(client) == [b"a", b"a", b"b", b"a", b"b"]


def test_a_group_that_found_no_room_is_told_though_another_has_nothing_any_more(
    stage: Stage,
) -> None:
    client, other = (member(stage, name, receive_maximum=1) for name in ("m", "other"))
    client.subscribe("$share/h/b", qos=1)
    publisher = stage.connect("p")
    for topic in ("a", "a", "a", "b"):
        publisher.publish(topic, topic.encode(), qos=1)
    assert payloads(other) == [b"a", b"a"]
    assert payloads(client) == [b"a", b"b"]


def test_a_member_gets_its_own_messages_before_those_of_its_group(stage: Stage) -> None:
    client = stage.connect_durable("m", receive_maximum=1)
    client.subscribe(FILTER, "own", qos=1)
    publisher = stage.connect("p")
    for topic in ("own", "a", "own"):
        publisher.publish(topic, topic.encode(), qos=1)
    assert payloads(client) == [b"own", b"own", b"a"]


def test_a_backlog_is_sent_no_faster_than_the_window_allows(stage: Stage) -> None:
    member(stage, "m").close()
    publish(stage, *(b"%d" % number for number in range(9)))
    stage.node.guard.window.resize(2)
    client = stage.connect_durable("m")
    assert taken(client) == [b"0", b"1"]


def test_what_expires_while_it_waits_is_dropped(stage: Stage) -> None:
    member(stage, "m").close()
    stage.connect("p").publish("a", b"x", qos=1, message_expiry_interval=5)
    publish(stage, b"y")
    stage.now_s += 6
    assert payloads(stage.connect_durable("m")) == [b"y"]
    assert stage.node.counters.dropped == {Reason.MESSAGE_EXPIRED: 1}
    assert groups(stage) == {FILTER: 0}


@pytest.mark.spec("MQTT-3.1.2-25")
def test_a_message_too_large_for_its_member_is_dropped_as_if_acknowledged(stage: Stage) -> None:
    client = member(stage, "m", maximum_packet_size=100)
    publish(stage, bytes(100), b"x")
    assert payloads(client) == [b"x"]
    assert stage.node.counters.dropped == {Reason.PACKET_TOO_LARGE: 1}
    assert groups(stage) == {FILTER: 0}


@pytest.mark.parametrize(("policy", "kept"), [("drop-new", b"01"), ("drop-oldest", b"34")])
def test_the_queue_has_the_limits_of_a_client(policy: str, kept: bytes) -> None:
    stage = Stage({"session": {"queue_messages_max": 2, "queue_policy": policy}})
    member(stage, "m").close()
    publish(stage, *(b"%d" % number for number in range(5)))
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 3}
    assert b"".join(payloads(stage.connect_durable("m"))) == kept


@pytest.mark.spec("MQTT-4.8.2-3")
def test_a_member_with_qos_0_gets_what_waits_too(stage: Stage) -> None:
    member(stage, "away").close()
    publish(stage, b"x", b"y")
    client = stage.connect("m")
    client.subscribe(FILTER, qos=0)
    assert [(message.payload, message.qos) for message in client.publishes()] == [
        (b"x", 0),
        (b"y", 0),
    ]
    assert groups(stage) == {FILTER: 0}


# --- what comes back ----------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["connection", "session", "restart"])
def test_what_a_member_has_not_acknowledged_goes_to_others_in_its_place(
    stage: Stage, end: str
) -> None:
    first = member(stage, "first")
    second = member(stage, "second", receive_maximum=1)
    publish(stage, *(b"%d" % number for number in range(6)))
    assert taken(second) == [b"1"]
    assert taken(first) == [b"0", b"2", b"3", b"4", b"5"]
    if end == "connection":
        first.close()
    elif end == "session":
        first.disconnect(session_expiry_interval=0)
    else:
        stage.restart()
        second = stage.connect_durable("second")
        assert payloads(second) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        return
    session = second.connection.session
    assert session is not None
    second.send(Puback(*session.inflight.messages))
    assert payloads(second) == [b"0", b"2", b"3", b"4", b"5"]
    assert groups(stage) == {FILTER: 0}


def test_what_comes_back_from_several_members_is_in_order_again(stage: Stage) -> None:
    first, second = (member(stage, name, receive_maximum=2) for name in ("first", "second"))
    publish(stage, *(b"%d" % number for number in range(6)))
    assert taken(first) == [b"0", b"2"]
    assert taken(second) == [b"1", b"3"]
    first.close()
    second.close()
    assert payloads(stage.connect_durable("first")) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_what_comes_back_goes_on_at_once_not_when_its_member_does(stage: Stage) -> None:
    first, second = member(stage, "first"), member(stage, "second")
    publish(stage, b"x")
    assert taken(first) == [b"x"]
    first.close()
    assert payloads(second) == [b"x"]
    assert payloads(stage.connect_durable("first")) == []


def test_what_comes_back_with_nobody_there_is_not_sent_as_a_repetition(stage: Stage) -> None:
    client = member(stage, "m")
    publish(stage, b"x")
    assert taken(client) == [b"x"]
    client.close()
    (again,) = stage.connect_durable("m").publishes()
    assert (again.payload, again.dup) == (b"x", False)


def test_what_was_acknowledged_before_does_not_come_back(stage: Stage) -> None:
    client = member(stage, "m")
    publish(stage, b"x", b"y")
    message, _ = client.publishes(acknowledge=False)
    client.send(Puback(message.packet_id))
    client.close()
    assert payloads(stage.connect_durable("m")) == [b"y"]


def test_a_clean_session_gives_back_what_it_has(stage: Stage) -> None:
    member(stage, "away").close()
    clean = member(stage, "clean", session_expiry_interval=0)
    publish(stage, b"x")
    assert taken(clean) == [b"x"]
    stage.restart()
    clean = member(stage, "clean", session_expiry_interval=0)
    assert taken(clean) == [b"x"]
    clean.close()
    assert payloads(stage.connect_durable("away")) == [b"x"]


def test_limits_do_not_count_for_what_comes_back() -> None:
    stage = Stage({"session": {"queue_messages_max": 1}})
    client = member(stage, "m")
    publish(stage, b"1", b"2", b"3")
    client.close()
    assert payloads(stage.connect_durable("m")) == [b"1", b"2", b"3"]
    assert not stage.node.counters.dropped


def test_an_identifier_that_a_restart_freed_does_not_come_back_with_another_message(
    stage: Stage,
) -> None:
    """A client that acknowledges late would settle what it has not got."""
    first = member(stage, "first")
    member(stage, "second").close()
    publish(stage, b"v", b"w")
    former = {message.packet_id for message in first.publishes(acknowledge=False)}
    stage.restart()
    assert taken(stage.connect_durable("second")) == [b"v", b"w"]
    first = stage.connect_durable("first")
    publish(stage, b"x", b"y")
    (message,) = first.publishes(acknowledge=False)
    assert message.packet_id not in former


# --- QoS 2: never to two ------------------------------------------------------------------------


@pytest.mark.spec("MQTT-4.8.2-4")
def test_a_qos_2_message_that_was_sent_waits_for_its_member_even_over_a_restart(
    stage: Stage,
) -> None:
    first = member(stage, "first", qos=2)
    publish(stage, b"x", qos=2)
    (message,) = first.publishes(acknowledge=False)
    stage.restart()
    assert payloads(member(stage, "second", qos=2)) == []
    (again,) = stage.connect_durable("first").publishes()
    assert (again.payload, again.packet_id, again.dup) == (b"x", message.packet_id, True)


def begin_to_move(stage: Stage, client: Client) -> None:
    """A QoS 2 message is on its way into the queue of `client`; the store is being told."""
    publisher = stage.connect("p")
    stage.hold_commits = True
    publisher.publish("a", b"x", qos=2)
    stage.finish_commit()
    session = client.connection.session
    assert session is not None
    assert session.queue.count == 1
    assert taken(client) == []


@pytest.mark.spec("MQTT-4.8.2-4")
def test_a_qos_2_message_that_moves_to_a_member_that_leaves_waits_for_it(stage: Stage) -> None:
    first, second = member(stage, "first", qos=2), member(stage, "second", qos=2)
    begin_to_move(stage, first)
    first.close()
    stage.release_commits()
    assert payloads(second) == []
    assert payloads(stage.connect_durable("first")) == [b"x"]


@pytest.mark.parametrize("durable", [False, True])
def test_a_qos_2_message_that_moves_to_a_member_whose_session_ends_goes_to_another(
    stage: Stage, durable: bool
) -> None:
    away = member(stage, "away", qos=2)
    first = member(stage, "first", qos=2, session_expiry_interval=3_600 if durable else 0)
    away.close()
    begin_to_move(stage, first)
    first.disconnect(session_expiry_interval=0)
    stage.release_commits()
    assert payloads(stage.connect_durable("away")) == [b"x"]
    stage.restart()
    assert payloads(stage.connect_durable("away")) == []
    assert groups(stage) == {FILTER: 0}


def test_qos_2_messages_that_move_find_a_place_in_flight_to_a_member(stage: Stage) -> None:
    """Messages that do not fit are left to other members, which need not wait for this one."""
    first = member(stage, "first", qos=2, receive_maximum=2)
    begin_to_move(stage, first)
    stage.release_commits()
    publish(stage, b"1", b"2", b"3", qos=2)
    assert taken(first) == [b"x", b"1"]
    assert waiting(stage) == 2
    assert payloads(member(stage, "second", qos=2)) == [b"2", b"3"]


def test_a_full_queue_of_its_own_keeps_a_member_from_qos_2_messages_no_longer_than_it_is() -> None:
    """The queue is full of messages on their way through the store: no other event wakes the
    member."""
    stage = Stage({"session": {"queue_messages_max": 1}})
    client = member(stage, "m", qos=2)
    client.subscribe("own", qos=1)
    publisher = stage.connect("p")
    stage.hold_commits = True
    publisher.publish("a", b"x", qos=2)
    publisher.publish("own", b"y", qos=1)
    for _ in range(2):
        stage.finish_commit()
    stage.release_commits()
    assert sorted(payloads(client)) == [b"x", b"y"]
    assert not stage.node.counters.dropped


@pytest.mark.parametrize("committed", [False, True])
def test_a_qos_2_message_that_moves_while_the_node_dies_is_in_one_place(
    stage: Stage, committed: bool
) -> None:
    """Before the commit it is the group's, after it the member's, though it was never sent."""
    begin_to_move(stage, member(stage, "first", qos=2))
    assert stage.held is not None
    if committed:
        stage.store.commit(stage.held.ops)
    stage.restart()
    second = member(stage, "second", qos=2)
    assert payloads(second) == ([] if committed else [b"x"])
    assert payloads(stage.connect_durable("first")) == ([b"x"] if committed else [])
    assert groups(stage) == {FILTER: 0}


# --- begin and end ------------------------------------------------------------------------------


def test_a_queue_begins_with_the_first_durable_member_and_ends_with_the_last(stage: Stage) -> None:
    clean = stage.connect("clean")
    clean.subscribe(FILTER, qos=1)
    publish(stage, b"before")
    assert groups(stage) == {}
    assert payloads(clean) == [b"before"]
    first, second = member(stage, "first"), member(stage, "second")
    assert groups(stage) == {FILTER: 0}
    clean.close()
    first.unsubscribe(FILTER)
    publish(stage, b"x")
    assert groups(stage) == {FILTER: 1}
    second.disconnect(session_expiry_interval=0)
    assert groups(stage) == {}
    assert payloads(member(stage, "third")) == []


def test_durable_sessions_with_qos_0_need_no_queue(stage: Stage) -> None:
    client = member(stage, "m", qos=0)
    assert groups(stage) == {}
    client.subscribe(FILTER, qos=1)
    assert groups(stage) == {FILTER: 0}


def test_a_queue_whose_members_are_gone_is_dropped_at_the_start(stage: Stage) -> None:
    member(stage, "durable").close()
    member(stage, "clean", session_expiry_interval=0)
    stage.connect("durable")
    publish(stage, b"x")
    assert groups(stage) == {FILTER: 1}
    stage.restart()
    stage.settle()
    assert groups(stage) == {}


@pytest.mark.spec("MQTT-3.10.4-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_last_member_has_is_delivered_though_it_unsubscribes(
    stage: Stage, qos: int
) -> None:
    client = member(stage, "m", qos=qos)
    publish(stage, b"x", qos=qos)
    (message,) = client.publishes(acknowledge=False)
    client.unsubscribe(FILTER)
    client.close()
    client = stage.connect_durable("m")
    (again,) = client.publishes()
    assert (again.payload, again.packet_id, again.dup) == (b"x", message.packet_id, True)


def test_an_acknowledgement_settles_nothing_in_the_queue_of_a_later_group(stage: Stage) -> None:
    client = member(stage, "m")
    publish(stage, b"x")
    (message,) = client.publishes(acknowledge=False)
    client.unsubscribe(FILTER)
    member(stage, "n").close()
    publish(stage, b"y")
    client.send(Puback(message.packet_id))
    assert groups(stage) == {FILTER: 1}
    assert payloads(stage.connect_durable("n")) == [b"y"]


def test_what_moves_to_the_last_member_is_delivered_though_it_unsubscribes(stage: Stage) -> None:
    client = member(stage, "m", qos=2)
    begin_to_move(stage, client)
    client.send(Unsubscribe(1, (FILTER,)))
    client.close()
    stage.release_commits()
    assert payloads(stage.connect_durable("m")) == [b"x"]
    assert groups(stage) == {}


def test_no_budget_holds_anything_when_all_have_gone(stage: Stage) -> None:
    clients = [member(stage, "m", qos=2), member(stage, "n", qos=1, receive_maximum=1)]
    publish(stage, *(b"%d" % number for number in range(20)), qos=2)
    for client in clients:
        taken(client)
    clients[0].close()
    end_all_sessions(stage.node, stage.now_s)
    stage.settle()
    assert groups(stage) == {}
