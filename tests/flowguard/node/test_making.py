"""A plan of more subscriptions than one stretch takes is made piece by piece, and is the same.

Work is counted in pieces; nothing is timed.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowguard.codec.packets import Puback, Pubrec
from flowguard.flow import Reason
from flowguard.node.publish.fan_out import FanOut
from flowguard.node.publish.grouping import Group
from flowguard.node.publish.incoming import Incoming
from flowguard.node.publish.plans import DELIVERIES_PIECE, MATCHES_PIECE, Plan
from flowguard.session.session import Session
from flowguard.types import MQTT_311, Publish, SubscriptionOptions
from tests.flowguard.node.blocking import blocking, fill, slow
from tests.flowguard.node.ledger import check_plans
from tests.flowguard.node.test_plans import reached, tracing
from tests.support.stage import Client, Stage

COUNT = MATCHES_PIECE + 100


def crowded(count: int = COUNT, qos: int = 1) -> Stage:
    """A stage with `count` clean sessions that subscribe to `wide/t`; only the first is
    connected."""
    stage = Stage({"node": {"plans_bytes_max": 1024 * 1024}})
    stage.connect("s0", version=MQTT_311).subscribe("wide/t", qos=qos)
    node = stage.node
    for number in range(1, count):
        session = Session.create(f"s{number}", node.state, 0)
        node.router.queues.subscribe("wide/t", session, SubscriptionOptions(qos=qos))
    return stage


def make(plan: Plan) -> int:
    """To the end; in how many pieces."""
    pieces = 0
    while plan.making is not None:
        plan.making.step()
        pieces += 1
    return pieces


def test_as_many_as_one_stretch_takes_are_made_at_once() -> None:
    stage = crowded(MATCHES_PIECE)
    assert stage.node.router.plans.find("wide/t").making is None


def test_a_burst_whose_plan_is_not_made_yet_reaches_everybody() -> None:
    """Handled as one it would reach no client, because the plan has no groups yet."""
    stage = crowded(qos=0)
    subscriber = stage.connect("first", version=MQTT_311)
    subscriber.subscribe("wide/t", qos=0)
    publisher = stage.connect("p", version=MQTT_311)
    publisher.publish("wide/t", b"before")
    stage.connect("second").subscribe("wide/+")  # The plan is not right any more.
    publisher.send(*[Publish("wide/t", bytes((number,))) for number in range(3)])
    received = [packet.payload for packet in subscriber.publishes()]
    assert received == [b"before", b"\0", b"\1", b"\2"]


@pytest.mark.slow
@settings(max_examples=max(1, settings.default.max_examples // 5))
@given(
    overlapping=st.sampled_from([0, 1, 7, COUNT]),
    identified=st.booleans(),
    mixed=st.booleans(),
    shared=st.integers(0, 3),
)
def test_a_plan_made_in_pieces_is_the_one_made_at_once(
    overlapping: int, identified: bool, mixed: bool, shared: int
) -> None:
    stage = Stage()
    node = stage.node
    put = node.router.queues.subscribe
    for number in range(COUNT):
        session = Session.create(f"s{number}", node.state, number % 2)
        identifier = 1 + number if identified else 0
        put("wide/t", session, SubscriptionOptions(number % 3, identifier=identifier))
        if number < overlapping:
            put("wide/+", session, SubscriptionOptions(2, no_local=mixed, identifier=identifier))
        if number < shared:
            put(f"$share/{number}/wide/#", session, SubscriptionOptions(1))
    plans = node.router.plans
    plan = plans.find("wide/t")
    assert plan.making is not None
    assert plan.is_wide
    assert "wide/t" not in plans.by_topic
    pieces = make(plan)
    assert pieces >= (COUNT + overlapping) // MATCHES_PIECE + COUNT // MATCHES_PIECE
    assert plans.find("wide/t") is plan
    whole = plans.make("wide/t")
    assert reached(plan) == reached(whole)
    assert [sorted(s.client_id for s in group.sessions) for group in plan.own] == [
        sorted(s.client_id for s in group.sessions) for group in whole.own
    ]
    assert bool(plan.own) == (mixed and overlapping > 0)
    for one, other in ((plan, whole),):
        assert (one.extra, one.is_heavy, one.is_wide) == (
            other.extra,
            other.is_heavy,
            other.is_wide,
        )
        assert (one.durable, one.is_empty, one.size_bytes) == (
            other.durable,
            other.is_empty,
            other.size_bytes,
        )
    check_plans(node)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_makes_the_plan_it_needs_and_others_wait_for_a_piece_of_it(qos: int) -> None:
    stage = crowded()
    first, second = stage.connect("first"), stage.connect("second")
    stage.hold_chores = True
    first.publish("wide/t", b"1", qos=qos)
    second.publish("wide/t", b"2", qos=qos)
    plan = stage.node.router.plans.find("wide/t")
    assert plan.making is not None
    stage.node.state.chores.step(stage.now_s)
    assert plan.making is not None
    stage.hold_chores = False
    stage.settle()
    assert stage.node.router.plans.by_topic["wide/t"] is plan
    for client in (first, second):
        kinds = [type(packet) for packet in client.take()]
        assert kinds == [[], [Puback], [Pubrec]][qos]
    assert len(subscriber(stage).publishes()) == 2
    for client in (first, second):
        client.disconnect()
    assert not stage.node.guard.window.in_process


def subscriber(stage: Stage) -> Client:
    outbound = stage.node.registry.sessions["s0"].outbound
    assert outbound is not None
    client = outbound.connection.transport
    assert isinstance(client, Client)
    return client


@pytest.mark.parametrize("filter", ["wide/t", "wide/+"])
def test_who_subscribes_while_a_plan_is_made_gets_the_next_message(filter: str) -> None:
    stage = crowded()
    publisher, late = stage.connect("publisher"), stage.connect("late")
    stage.hold_chores = True
    publisher.publish("wide/t", b"1")
    late.subscribe(filter)
    plan = stage.node.router.plans.find("wide/t")
    stage.hold_chores = False
    stage.settle()
    assert not late.publishes()
    assert len(subscriber(stage).publishes()) == 1
    publisher.publish("wide/t", b"2")
    assert [each.payload for each in late.publishes()] == [b"2"]
    assert stage.node.router.plans.find("wide/t") is plan
    check_plans(stage.node)


def test_publishers_that_wait_for_room_wait_for_it_in_every_queue() -> None:
    """They also wait for the queues of a plan that is not made yet."""
    stage = blocking()
    node = stage.node
    slow(stage)
    fill(stage)
    for number in range(COUNT):
        session = Session.create(f"x{number}", node.state, 0)
        node.router.queues.subscribe("a", session, SubscriptionOptions(qos=1))
    publisher = stage.connect("p")
    publisher.publish("a", b"new", qos=1)
    assert not publisher.inbox
    assert not node.counters.dropped
    assert stage.node.state.paused_count == 1


def test_a_will_is_allowed_or_not_without_a_plan() -> None:
    stage = crowded()
    plans = stage.node.router.plans
    assert plans.refusal("wide/t") is None
    assert plans.refusal("$SYS/x") is not None
    assert not plans.by_topic
    assert not plans._making


@pytest.mark.slow
@pytest.mark.parametrize(("identified", "expiry_s"), [(False, 0), (True, 60)])
def test_what_is_under_way_is_counted(identified: bool, expiry_s: int) -> None:
    stage = Stage()
    node = stage.node
    for number in range(COUNT):
        session = Session.create(f"s{number}", node.state, expiry_s)
        options = SubscriptionOptions(1, identifier=identified * (1 + number))
        node.router.queues.subscribe("wide/t", session, options)
    publisher = stage.connect("publisher")
    stage.hold_chores = stage.hold_commits = True
    with tracing() as taken_bytes:
        publisher.publish("wide/t", b"x", qos=1)
        plan = node.router.plans.find("wide/t")
        counted_bytes = node.guard.window.in_process_bytes
        while len(node.state.chores):
            node.state.chores.step(stage.now_s)
            held_bytes = 0 if plan.making is not None else plan.size_bytes
            assert taken_bytes() < 1.1 * (counted_bytes + held_bytes)
        assert node.guard.window.in_process_bytes == counted_bytes
    stage.hold_chores = False
    stage.release_commits()
    assert publisher.expect(Puback)
    assert not node.guard.window.in_process_bytes


# --- places ----------------------------------------------------------------------------------


def test_what_breaks_midway_gives_all_places_back() -> None:
    """Independently of the publisher, which is the node itself in this test."""
    stage = Stage()
    node = stage.node
    sessions = [
        Session.create(f"d{number}", node.state, 60) for number in range(2 * DELIVERIES_PIECE)
    ]
    broken: list[Session] = [*sessions[:-10], object()]  # type: ignore[list-item]
    plan = Plan([Group(1, False, False, (), broken)], [], ops=len(broken), deliveries=len(broken))
    wide = FanOut(
        node.router.deliveries,
        node.router.lane,
        Incoming(None, Publish("t", b"x", 1), stage.now_s),
        plan,
    )
    node.state.chores.add(wide.step, wide.failed)
    node.state.chores.step(stage.now_s)
    assert sum(session.queue.count for session in sessions) == DELIVERIES_PIECE
    with pytest.raises((AttributeError, TypeError)):
        node.state.chores.step(stage.now_s)
    assert sum(session.queue.count for session in sessions) == 0
    assert node.state.queue_budget.used_bytes == 0
    assert node.journal.depth == 0
    assert node.counters.dropped.get(Reason.QUEUE_MESSAGES, 0) == 0
