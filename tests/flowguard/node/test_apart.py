"""The store of applications stops: applications and their publishers wait, devices go on."""

from itertools import product
from typing import Any

import pytest

from flowguard.codec.packets import (
    Connack,
    Connect,
    Packet,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Will,
)
from flowguard.flow import Reason
from flowguard.node.upkeep.holdings import held_bytes
from flowguard.ops.explain import explain
from flowguard.ops.explain_words import sentences
from flowguard.ops.metrics import registry_of
from flowguard.ops.view import View
from flowguard.records import OWED, Append, Forward
from flowguard.types import MQTT_5, Properties, Publish, ReasonCode, SubscriptionOptions
from tests.support.stage import Client, Stage
from tests.support.store_apart import StoreApart

PATTERNS = {"application_client_ids": ("app-*",), "application_users": ("spark",)}
AWAY_S = 1.2


def staged(**settings: Any) -> Stage:
    session = PATTERNS | settings.pop("session", {})
    return Stage({"session": session, **settings}, store=StoreApart())


def come(stage: Stage, client_id: str, user: str | None = None, **properties: Any) -> Client:
    """A client with a session that lasts; what it is answered is its business."""
    properties = {"session_expiry_interval": 3_600} | properties
    return stage.attempt(
        Connect(client_id, MQTT_5, False, username=user, properties=Properties(**properties))
    )


def subscribed(stage: Stage, client_id: str, *filters: str) -> Client:
    client = come(stage, client_id)
    assert client.expect(Connack).reason_code == 0
    client.subscribe(*filters, qos=2)
    return client


def acknowledge(client: Client) -> list[bytes]:
    """Answer all that has come, and what comes then; the payloads."""
    found = []
    while client.inbox and not client.is_closed:
        answers: list[Packet] = []
        for packet in client.take():
            if isinstance(packet, Publish):
                found.append(packet.payload)
                if packet.qos:
                    answers.append((Puback if packet.qos == 1 else Pubrec)(packet.packet_id))
            elif isinstance(packet, Pubrel):
                answers.append(Pubcomp(packet.packet_id))
            elif isinstance(packet, Pubrec):
                answers.append(Pubrel(packet.packet_id))
        if answers:
            client.send(*answers)
    return found


def kinds(client: Client) -> list[type[Packet]]:
    return [type(packet) for packet in client.take()]


def reasons(stage: Stage, client_id: str) -> list[str]:
    found = explain(stage.node, client_id, stage.now_s)
    assert found is not None
    return [cause["reason"] for cause in found["paused"]]


# --- devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_devices_go_on_among_themselves_and_who_publishes_to_an_application_waits(qos: int) -> None:
    stage = staged()
    application = subscribed(stage, "app-1", "both", "far")
    device = subscribed(stage, "d", "both", "near")
    to_both, to_device = stage.connect_durable("p"), stage.connect_durable("q")
    stage.hold_apart = True
    for number in range(5):
        to_both.publish("both", b"%d" % number, qos=qos)
        to_device.publish("near", b"near %d" % number, qos=qos)
    assert acknowledge(device) == [b"near %d" % number for number in range(5)]
    assert kinds(to_device) == [Puback if qos == 1 else Pubrec] * 5
    assert not to_both.inbox
    assert not application.inbox
    stage.advance(60.0)
    to_device.publish("near", b"late", qos=qos)
    assert acknowledge(device) == [b"late"]
    new = subscribed(stage, "new", "near")
    new.close()
    assert not to_both.inbox
    stage.release_apart()
    expected = [b"%d" % number for number in range(5)]
    assert acknowledge(application) == expected
    assert acknowledge(device) == expected
    assert kinds(to_both) == [Puback if qos == 1 else Pubrec] * 5


def test_a_publisher_is_answered_in_order_though_only_some_of_it_is_for_applications() -> None:
    stage = staged()
    subscribed(stage, "app-1", "far")
    device = subscribed(stage, "d", "near")
    publisher = stage.connect("p")
    stage.hold_apart = True
    order = [publisher.publish(topic, b"x", qos=1) for topic in ("near", "far", "near", "none")]
    assert [publisher.expect(Puback).packet_id] == order[:1]
    assert not publisher.inbox
    assert len(acknowledge(device)) == 1
    stage.release_apart()
    assert [publisher.expect(Puback).packet_id for _ in order[1:]] == order[1:]
    assert len(acknowledge(device)) == 1


def test_what_waits_takes_nothing_of_what_all_clients_may_have_in_process() -> None:
    stage = staged()
    subscribed(stage, "app-1", "far")
    publishers = [stage.connect(f"p{number}") for number in range(50)]
    stage.hold_apart = True
    for publisher in publishers:
        for _ in range(10):
            publisher.publish("far", b"x" * 100, qos=1)
    window = stage.node.guard.window
    assert (window.in_process, window.in_process_bytes) == (0, 0)
    assert not window.shared
    stage.release_apart()
    assert (window.in_process, window.in_process_bytes) == (0, 0)
    assert all(kinds(publisher) == [Puback] * 10 for publisher in publishers)


def test_qos_0_goes_on_and_so_does_what_applications_say_to_devices() -> None:
    stage = staged()
    application = subscribed(stage, "app-1", "far")
    device = subscribed(stage, "d", "near")
    publisher = stage.connect("p")
    stage.hold_apart = True
    publisher.publish("far", b"1", qos=1)
    stage.advance(AWAY_S)
    other = stage.connect("other")
    other.publish("far", b"fleeting")
    assert acknowledge(application) == [b"fleeting"]
    application.publish("near", b"command", qos=2)
    assert kinds(application) == [Pubrec]
    assert acknowledge(device) == [b"command"]


# --- what waits has an end and a reason ----------------------------------------------------------


def test_whose_message_waits_for_the_store_is_told_so_though_it_may_send_more() -> None:
    stage = staged()
    subscribed(stage, "app-1", "t")
    publisher = stage.connect("p")
    stage.hold_apart = True
    publisher.publish("t", b"1", qos=1)
    assert reasons(stage, "p") == []
    stage.advance(2)
    assert reasons(stage, "p") == ["applications"]
    stage.release_apart()
    assert reasons(stage, "p") == []


def test_while_it_is_away_they_wait_outside_with_a_reason_and_go_on_in_order() -> None:
    stage = staged()
    application = subscribed(stage, "app-1", "far")
    first, late = stage.connect("first"), stage.connect("late")
    stage.hold_apart = True
    first.publish("far", b"1", qos=1)
    stage.advance(AWAY_S)
    depth = stage.lane.depth
    for number in range(2, 12):
        late.publish("far", b"%d" % number, qos=1)
    assert stage.lane.depth == depth
    assert reasons(stage, "late") == ["applications"]
    first.publish("near", b"behind", qos=1)
    assert reasons(stage, "first") == ["applications"]
    metrics = registry_of(View(stage.node, lambda: stage.now_s, lambda: None))
    assert metrics.get_sample_value("flowguard_applications_publishers_waiting") == 2
    assert metrics.get_sample_value("flowguard_applications_operations") == depth
    away_s = metrics.get_sample_value("flowguard_applications_away_seconds")
    assert away_s == pytest.approx(AWAY_S)
    stage.release_apart()
    assert acknowledge(application) == [b"%d" % number for number in range(1, 12)]
    assert kinds(late) == [Puback] * 10
    assert kinds(first) == [Puback] * 2
    assert reasons(stage, "late") == []


@pytest.mark.parametrize("bound", ["ops", "bytes"])
def test_the_journal_of_applications_is_bounded_in_both_and_the_other_one_stays_open(
    bound: str,
) -> None:
    bounds = {"journal_ops_max": 40} if bound == "ops" else {"journal_bytes_max": 40_000}
    stage = staged(flow=bounds)
    application = subscribed(stage, "app-1", "far")
    device = subscribed(stage, "d", "near")
    publishers = [stage.connect(f"p{number}") for number in range(100)]
    stage.hold_apart = True
    for publisher in publishers:
        publisher.publish("far", b"x" * 1_000, qos=1)
    journal = stage.lane.journal
    assert journal.depth <= 40 if bound == "ops" else journal.size_bytes <= 41_100
    assert not stage.node.guard.window.closed
    stage.connect("q").publish("near", b"goes on", qos=1)
    assert acknowledge(device) == [b"goes on"]
    stage.release_apart()
    assert len(acknowledge(application)) == 100


def test_what_only_keeps_its_place_behind_a_message_for_applications_is_bounded_too() -> None:
    stage = staged(flow={"journal_bytes_max": 40_000})
    subscribed(stage, "app-1", "far")
    device = subscribed(stage, "d", "near")
    publishers = [stage.connect(f"p{number}") for number in range(20)]
    stage.hold_apart = True
    before_bytes = held_bytes(stage.node)
    for publisher in publishers:
        publisher.publish("far", b"x", qos=1)
        for _ in range(10):
            publisher.publish("near", b"x" * 1_000, qos=1)
    apart = stage.lane.apart
    assert apart.in_process_bytes <= 41_000
    assert held_bytes(stage.node) - before_bytes >= apart.in_process_bytes
    stage.release_apart()
    assert len(acknowledge(device)) == 200
    assert apart.in_process_bytes == 0


def test_a_message_of_the_nodes_own_passes_applications_over_where_there_is_no_room() -> None:
    stage = staged(flow={"journal_ops_max": 20})
    subscribed(stage, "app-1", "#")
    device = subscribed(stage, "d", "will")
    publishers = [stage.connect(f"p{number}") for number in range(20)]
    leaver = stage.connect("leaver", will=Will("will", b"gone", 1))
    stage.hold_apart = True
    for publisher in publishers:
        publisher.publish("x", b"x", qos=1)
    leaver.close()
    assert stage.node.counters.dropped[Reason.QUEUE_MESSAGES] == 1
    stage.release_apart()
    assert acknowledge(device) == [b"gone"]


def test_devices_get_the_slots_of_applications_that_gave_up_while_it_is_away() -> None:
    stage = staged(flow={"connects_in_process_max": 1})
    stage.hold_apart = True
    stage.attempt(Connect("app-1", properties=Properties(session_expiry_interval=60))).close()
    device = stage.attempt(Connect("d", properties=Properties(session_expiry_interval=60)))
    assert stage.node.guard.gate.buffered == 1
    stage.advance(AWAY_S + 1.0)
    assert device.expect(Connack).reason_code == ReasonCode.SUCCESS


def test_devices_are_not_rejected_for_devices_that_gave_up_while_it_is_away() -> None:
    stage = staged()
    stage.hold_apart = stage.hold_commits = True
    kept = Properties(session_expiry_interval=60)
    stage.attempt(Connect("app-1", properties=kept)).close()
    stage.attempt(Connect("d", properties=kept)).close()
    stage.advance(AWAY_S + 1.0)
    device = stage.attempt(Connect("d", properties=kept))
    stage.release_commits()
    assert device.expect(Connack).reason_code == ReasonCode.SUCCESS


def owed(stage: Stage) -> list[bytes]:
    """Return the payloads that the store keeps for applications."""
    return [
        entry.delivery.message.payload
        for entry in stage.store.fetch(OWED, 0, 100)
        if entry.delivery is not None
    ]


def tear(stage: Stage) -> None:
    """Applications' part of a commit is stored, the rest is not, and so it ends."""
    while True:
        batch, stage.held_apart = stage.held_apart, None
        assert batch is not None
        if any(isinstance(op, Forward) for op in batch.ops):
            break
        stage.store.commit(batch.ops)
        stage.lane.journal.durable(batch, stage.now_s, 0.0)
        stage.settle()
    stage.store.commit([op for op in batch.ops if isinstance(op, (Append, Forward))])


@pytest.mark.parametrize("leaver", ["leaver", "app-leaver"])
@pytest.mark.parametrize("how", ["at once", "delayed", "with its session"])
@pytest.mark.parametrize("crash", ["before", "between", "torn", "after"])
def test_a_crash_takes_a_will_from_nobody_and_gives_it_to_nobody_twice(
    leaver: str, how: str, crash: str
) -> None:
    stage = staged()
    for name in ("app-1", "d"):
        subscribed(stage, name, "will").close()
    delay_s = {"at once": 0, "delayed": 5, "with its session": 60}[how]
    will = Will("will", b"gone", 2, properties=Properties(will_delay_interval=delay_s))
    expiry_s = 3 if how == "with its session" else 60
    client = stage.connect(leaver, will=will, session_expiry_interval=expiry_s)
    stage.hold_apart = True
    stage.hold_commits = crash == "before"
    client.close()
    stage.advance(6.0)
    if crash == "after":
        stage.release_apart()
    elif crash == "torn":
        tear(stage)
    for _ in range(2):
        stage.restart()
        stage.advance(6.0)
    assert not owed(stage)
    assert acknowledge(come(stage, "d")) == [b"gone"]
    assert acknowledge(come(stage, "app-1")) == [b"gone"]


def test_who_left_a_will_to_applications_comes_back_while_they_are_away() -> None:
    stage = staged()
    application = subscribed(stage, "app-1", "will")
    device = subscribed(stage, "d", "will")
    stage.hold_apart = True
    for number in range(3):
        will = Will("will", b"%d" % number, 2)
        leaver = stage.connect("leaver", will=will, session_expiry_interval=60)
        leaver.close()
    assert acknowledge(device) == [b"0", b"1", b"2"]
    assert owed(stage) == [b"0", b"1", b"2"]
    stage.release_apart()
    assert acknowledge(application) == [b"0", b"1", b"2"]
    stage.advance(0.2)
    assert not owed(stage)


@pytest.mark.parametrize(
    ("sleeper", "crash"),
    [("sleeper", "torn"), *product(("sleeper", "app-sleeper"), ("before", "between", "after"))],
)
def test_a_crash_takes_a_dead_letter_from_nobody_and_gives_it_to_nobody_twice(
    sleeper: str, crash: str
) -> None:
    stage = staged(session={"dead_letter_topic": "dead"})
    for name in ("app-1", "d"):
        subscribed(stage, name, "dead/#").close()
    subscribed(stage, sleeper, "x").close()
    publisher = stage.connect("p")
    publisher.publish("x", b"late", qos=2, message_expiry_interval=5)
    acknowledge(publisher)
    stage.advance(6.0)
    stage.hold_apart = crash != "after"
    stage.hold_commits = crash == "before"
    come(stage, sleeper)
    stage.advance(0.5)
    if crash == "torn":
        tear(stage)
    for _ in range(2):
        stage.restart()
        come(stage, sleeper).close()
        stage.advance(0.5)
    assert not owed(stage)
    assert acknowledge(come(stage, "d")) == [b"late"]
    assert acknowledge(come(stage, "app-1")) == [b"late"]


# --- connections ---------------------------------------------------------------------------------


def test_a_connect_of_an_application_waits_and_is_told_to_come_back_and_a_devices_is_let_in() -> (
    None
):
    stage = staged(flow={"connect_patience_s": 2.0})
    subscribed(stage, "app-1", "far").close()
    stage.hold_apart = True
    early = [come(stage, name) for name in ("app-1", "app-new")]
    told: list[str] = []
    stage.node.on_turned_away = lambda connection, reason, why: told.append(why)
    stage.advance(1.9)
    assert not any(client.inbox for client in early)
    stage.advance(0.2)
    for client in early:
        assert client.expect(Connack).reason_code == ReasonCode.SERVER_UNAVAILABLE
    assert told == ["the store of applications is unavailable"] * 2
    assert come(stage, "app-at-once").expect(Connack).reason_code == 0x88
    assert come(stage, "d").expect(Connack).reason_code == 0
    assert stage.connect("app-clean").connack.reason_code == 0  # Nothing of it is stored.
    stage.release_apart()
    assert come(stage, "app-1").expect(Connack).session_present
    assert not come(stage, "app-new").expect(Connack).session_present


def test_what_an_application_settles_while_it_is_away_it_is_not_told_again() -> None:
    stage = staged()
    application = subscribed(stage, "app-1", "far")
    publisher = stage.connect("p")
    for qos in (1, 2):
        publisher.publish("far", b"%d" % qos, qos=qos)
    stage.hold_apart = True
    assert acknowledge(application) == [b"1", b"2"]
    suback = Subscribe(9, (("more", SubscriptionOptions(1)),))
    application.send(suback)
    assert not application.inbox  # Neither PUBREL nor SUBACK before it is durable.
    stage.release_apart()
    assert kinds(application) == [Pubrel, Suback]
    application.close()
    again = come(stage, "app-1")
    assert [type(each) for each in again.take()] == [Connack, Pubrel]


def test_a_session_that_ends_and_one_that_begins_under_its_name_do_not_meet() -> None:
    stage = staged()
    application = subscribed(stage, "app-1", "far")
    application.publish("x", b"x", qos=2)
    assert kinds(application) == [Pubrec]
    stage.hold_apart = True
    application.disconnect(session_expiry_interval=0)
    assert stage.node.journal.is_ending("app-1")
    device = stage.attempt(Connect("app-1", MQTT_5, True))
    assert not device.inbox  # The end of the old session is not durable: it could be back.
    stage.release_apart()
    assert device.expect(Connack).reason_code == 0
    device.close()
    stage.restart()
    assert "app-1" not in stage.node.registry.sessions


def test_explanation_of_an_application_says_that_its_messages_wait_in_kafka() -> None:
    stage = staged()
    subscribed(stage, "app-1", "t").close()
    subscribed(stage, "device", "t").close()
    publisher = come(stage, "p")
    publisher.publish("t", b"x", qos=1)
    for client_id, place in (
        ("app-1", "In Kafka: 1 of them"),
        ("device", "On the disk: 1 of them"),
    ):
        found = explain(stage.node, client_id, stage.now_s)
        assert found is not None
        assert place in " ".join(sentences(found))
