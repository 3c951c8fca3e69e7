"""The store of applications takes nothing: clients that change their class, and groups of both."""

import pytest

from flowguard.codec.packets import Puback, Pubrec
from flowguard.records import NEVER_S, Append, Delivery, PutSession
from flowguard.types import SESSION_NEVER_EXPIRES, Publish
from tests.flowguard.node.test_apart import acknowledge, come, kinds, owed, staged, subscribed


def test_a_queue_that_changes_sides_waits_for_what_is_before_it() -> None:
    stage = staged()
    device = subscribed(stage, "c", "t")
    device.close()
    publisher = stage.connect("p")
    stage.hold_commits = True
    publisher.publish("t", b"1", qos=1)
    come(stage, "c", "spark", receive_maximum=1)
    publisher.publish("t", b"2", qos=1)
    stage.release_commits()
    stage.settle()
    back = come(stage, "c", "spark")
    assert acknowledge(back) == [b"1", b"2"]
    back.close()
    stage.hold_apart = True
    publisher.publish("t", b"3", qos=1)
    device = come(stage, "c")
    stage.advance(0.5)
    assert not device.inbox
    other = stage.connect("q")
    other.publish("t", b"4", qos=1)
    assert not other.inbox
    stage.release_apart()
    assert acknowledge(device) == [b"3", b"4"]
    stage.advance(0.2)
    stage.hold_apart = True
    publisher.publish("t", b"5", qos=1)
    assert acknowledge(device) == [b"5"]


def test_a_device_in_a_group_of_applications_gets_its_messages_and_waits_for_nobody() -> None:
    stage = staged()
    subscribed(stage, "app-1", "$share/g/t").close()
    member = come(stage, "d", receive_maximum=1)
    member.subscribe("$share/g/t", "near", qos=2)
    publisher, other = stage.connect("p"), stage.connect("q")
    waiting = [b"%d" % number for number in range(5)]
    near = [b"near %d" % number for number in range(5)]
    for payload in waiting:
        publisher.publish("t", payload, qos=2)
    acknowledge(publisher)
    stage.hold_apart = True
    for payload in near:
        other.publish("near", payload, qos=2)
    got = acknowledge(member)
    assert [each for each in got if each in waiting] == waiting
    assert [each for each in got if each in near] == near
    stage.release_apart()
    member.close()
    stage.restart()
    assert acknowledge(come(stage, "d")) == []


@pytest.mark.parametrize("crash", ["before", "between", "after"])
def test_a_crash_gives_nobody_twice_what_a_group_of_applications_handed_to_a_device(
    crash: str,
) -> None:
    stage = staged()
    for name in ("app-1", "d"):
        subscribed(stage, name, "$share/g/t").close()
    publisher = stage.connect("p")
    waiting = [b"%d" % number for number in range(5)]
    for payload in waiting:
        publisher.publish("t", payload, qos=2)
    acknowledge(publisher)
    stage.hold_apart = crash != "after"
    stage.hold_commits = crash == "before"
    got = acknowledge(come(stage, "d", receive_maximum=2))
    assert got == ([] if crash == "before" else waiting)
    stage.advance(0.5)
    for _ in range(2):
        stage.restart()
        for name in ("app-1", "d"):
            member = come(stage, name)
            got += acknowledge(member)
            member.close()
        stage.advance(0.5)
    assert sorted(got) == waiting
    assert not owed(stage)


def test_restart_releases_what_a_store_of_an_earlier_version_says_is_owed() -> None:
    stage = staged()
    subscribed(stage, "app-1", "$share/g/t").close()
    publisher = stage.connect("p")
    for payload in (b"1", b"2", b"3"):
        publisher.publish("t", payload, qos=1)
    assert kinds(publisher) == [Puback] * 3
    entry = Delivery(Publish("\0$share/g/t", b"2", 1), 1, False, (), NEVER_S)
    key = "\0owed"
    stage.store.commit([PutSession(key, SESSION_NEVER_EXPIRES, None), Append(key, 1, entry)])
    stage.restart()
    assert acknowledge(come(stage, "app-1")) == [b"1", b"3"]
    stage.advance(0.5)
    assert not owed(stage)


def test_a_wide_message_reaches_applications_first_and_its_publisher_is_answered_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flowguard.node.publish.plans.DELIVERIES_PIECE", 1)
    stage = staged()
    clients = [subscribed(stage, name, "t") for name in ("app-1", "d", "app-2", "e")]
    publisher, other = stage.connect("p"), stage.connect("q")
    stage.hold_apart = True
    publisher.publish("t", b"wide", qos=2)
    subscribed(stage, "f", "near")
    other.publish("near", b"x", qos=1)
    assert kinds(other) == [Puback]
    assert not any(client.inbox for client in [publisher, *clients])
    assert stage.node.guard.window.in_process == 0
    stage.release_apart()
    assert kinds(publisher) == [Pubrec]
    assert all(acknowledge(client) == [b"wide"] for client in clients)
