"""Shared subscriptions of applications: messages that do not fit into their queue wait in the
log."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from flowguard.flow import Reason
from flowguard.node.applications import log_readers
from flowguard.records import AppendToLog
from tests.flowguard.node.test_applications import come, drained, staged
from tests.flowguard.node.test_log_readers import payloads, publish, store_of
from tests.support.stage import Client, Stage

FILTER = "$share/g/a/#"


def member(stage: Stage, client_id: str, user: str = "spark", **more: Any) -> Client:
    client = come(stage, client_id, user, **more)
    client.subscribe(FILTER, qos=2)
    return client


def count_here(stage: Stage) -> int:
    """Messages in the queue of the group."""
    (queue,) = stage.node.router.queues._queues.values()
    return queue.queue.count


@pytest.mark.parametrize("is_here", [False, True])
def test_nothing_is_dropped_where_nobody_takes_it(is_here: bool) -> None:
    stage = staged(queue_messages_max=10)
    reader = member(stage, "s", receive_maximum=1)
    if not is_here:
        reader.close()
    sent = [b"%d" % number for number in range(200)]
    publish(stage, "a/b", *sent)
    assert count_here(stage) <= 10
    if not is_here:
        reader = come(stage, "s", "spark", receive_maximum=1)
    assert drained(stage, reader, 100) == sent
    assert sum(stage.node.counters.dropped.values()) == 0


def test_the_queue_of_devices_drops_what_it_has_no_room_for() -> None:
    stage = staged(queue_messages_max=10)
    member(stage, "s", "hadoop").close()
    publish(stage, "a/b", *[b"%d" % number for number in range(50)])
    assert store_of(stage).count(AppendToLog) == 0
    assert stage.node.counters.dropped[Reason.QUEUE_MESSAGES] == 40


def test_it_is_an_applications_from_the_first_such_member_on_also_after_a_restart() -> None:
    stage = staged(queue_messages_max=10)
    member(stage, "s", "hadoop").close()
    first = [b"%d" % number for number in range(5)]
    publish(stage, "a/b", *first)
    member(stage, "t").close()
    more = [b"more %d" % number for number in range(50)]
    publish(stage, "a/b", *more[:30])
    stage.restart()
    publish(stage, "a/b", *more[30:])
    assert drained(stage, come(stage, "s", "hadoop"), 20) == first + more
    stage = staged(queue_messages_max=10)
    member(stage, "s", "hadoop").close()
    come(stage, "s", "spark").close()  # One that was a member before is an application now.
    publish(stage, "a/b", *more)
    assert drained(stage, come(stage, "s", "spark"), 20) == more


def test_who_has_room_gets_more_and_nobody_is_robbed() -> None:
    """A member that goes gives back what it has not acknowledged; others keep theirs."""
    stage = staged(queue_messages_max=20)
    slow = member(stage, "slow", receive_maximum=2)
    quick = member(stage, "quick", receive_maximum=5)
    sent = [b"%d" % number for number in range(300)]
    publish(stage, "a/b", *sent)
    kept = [each.payload for each in slow.publishes(acknowledge=False)]
    got = drained(stage, quick, 100)
    assert len(kept) == 2
    assert sorted(got + kept, key=int) == sent
    slow.close()
    assert drained(stage, quick) == kept


def test_unsubscribing_ends_it_and_what_was_logged_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_readers, "QUEUE_MAX", 5)
    stage = staged()
    reader = member(stage, "s", receive_maximum=1)
    publish(stage, "a/b", *[b"%d" % number for number in range(50)])
    assert stage.node.router.log.catching_up_count == 1
    reader.unsubscribe(FILTER)
    assert stage.node.router.log.catching_up_count == 0
    logged = store_of(stage).count(AppendToLog)
    publish(stage, "a/b", b"for nobody")
    assert store_of(stage).count(AppendToLog) == logged
    reader.subscribe(FILTER, qos=1)
    publish(stage, "a/b", b"new")
    assert drained(stage, reader)[-1] == b"new"


MEMBERS = ["s", "t", "u"]


class Group(RuleBasedStateMachine):
    """Every message comes to one of the members, and at QoS 2 once."""

    @initialize(threshold=st.sampled_from([0, 1]))
    def start(self, threshold: int) -> None:
        self.stage = staged(log_threshold=threshold)
        self.members: dict[str, Client] = {}
        self.owed: list[bytes] = []
        self.got: list[bytes] = []
        member(self.stage, "u").close()
        self.stage.connect("beside").subscribe("a/#", qos=1)  # So it takes several pieces.

    @rule(name=st.sampled_from(MEMBERS), user=st.sampled_from(["spark", "hadoop"]))
    def come(self, name: str, user: str) -> None:
        if name not in self.members:
            self.members[name] = member(self.stage, name, user, receive_maximum=3)

    @rule(name=st.sampled_from(MEMBERS))
    def leave(self, name: str) -> None:
        client = self.members.pop(name, None)
        if client is not None:
            client.close()

    @rule(count=st.integers(1, 8), qos=st.integers(1, 2))
    def publish(self, count: int, qos: int) -> None:
        payloads = [b"%d %d" % (qos, len(self.owed) + number) for number in range(count)]
        publish(self.stage, "a/b", *payloads, qos=qos)
        self.owed += payloads

    @rule(name=st.sampled_from(MEMBERS))
    def read(self, name: str) -> None:
        if name in self.members:
            self.got += payloads(self.members[name])

    @rule(holds=st.booleans())
    def hold(self, holds: bool) -> None:
        self.stage.hold_fetches = holds
        self.stage.settle()

    @rule()
    def crash(self) -> None:
        for name in list(self.members):
            self.read(name)
        self.members.clear()
        self.stage.restart()
        self.stage.connect("beside").subscribe("a/#", qos=1)

    @rule(seconds=st.sampled_from([0.1, 0.5]))
    def pass_time(self, seconds: float) -> None:
        self.stage.advance(seconds)

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        self.stage.hold_fetches = False
        for name in MEMBERS:
            self.come(name, "spark")
        for _ in range(50):
            for name in MEMBERS:
                self.read(name)
            self.stage.advance(0.1)
        assert set(self.got) == set(self.owed)
        exact = [each for each in self.got if each.startswith(b"2")]
        assert len(exact) == len(set(exact))
        assert sum(self.stage.node.counters.dropped.values()) == 0


def test_every_message_comes_to_one_member_whatever_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_readers, "PAGE_MAX", 4)
    monkeypatch.setattr(log_readers, "TAIL_MAX", 3)
    monkeypatch.setattr(log_readers, "QUEUE_MAX", 3)
    monkeypatch.setattr("flowguard.node.publish.plans.WIDE_DELIVERIES", 1)
    monkeypatch.setattr("flowguard.node.publish.plans.DELIVERIES_PIECE", 1)
    run_state_machine_as_test(Group)
