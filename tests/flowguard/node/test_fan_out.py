"""A PUBLISH for more subscribers than one stretch takes means what any other one means."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Disconnect, Puback, Pubrec, Pubrel, Will
from flowguard.node.journal import DELIVERIES_MAX, Journal
from flowguard.node.publish.fan_out import OFFERS_PIECE
from flowguard.node.publish.grouping import Group
from flowguard.node.publish.plans import DELIVERIES_PIECE, WIDE_DELIVERIES, Plan, Shared, cut
from flowguard.routing import SharedGroup
from flowguard.session.session import Session
from flowguard.types import MQTT_5, MQTT_311, Publish
from tests.flowguard.node.test_pieces import Pieces, names, subscribe
from tests.support.stage import Client, Stage

COUNT = WIDE_DELIVERIES + 200
SETTINGS = {"node": {"subscriptions_max": 100_000}}


def sent(stage: Stage) -> int:
    return stage.node.counters.publish_sent


STAGE = Stage()
SESSIONS = [
    Session.create(f"{number}", STAGE.node.state, 0) for number in range(2 * DELIVERIES_PIECE + 1)
]
GROUPS: list[Shared] = [SharedGroup(f"{number}", "t") for number in range(2 * DELIVERIES_PIECE + 1)]


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 2 * DELIVERIES_PIECE + 1), max_size=5),
    shared=st.integers(0, 2 * DELIVERIES_PIECE + 1),
)
def test_pieces_are_the_whole_and_none_is_too_large(sizes: list[int], shared: int) -> None:
    groups = [Group(qos % 3, False, False, (), SESSIONS[:size]) for qos, size in enumerate(sizes)]
    plan = Plan(groups, GROUPS[:shared])
    pieces = list(cut(plan))
    for piece in pieces:
        count = sum(len(group.sessions) for group in piece.groups) + len(piece.shared)
        assert count <= DELIVERIES_PIECE
    found = [session for piece in pieces for group in piece.groups for session in group.sessions]
    assert found == [session for group in groups for session in group.sessions]
    assert [each for piece in pieces for each in piece.shared] == plan.shared


@pytest.fixture(scope="module")
def crowd() -> Stage:
    """A stage with `COUNT` clean sessions that subscribe to `wide`."""
    stage = Stage(SETTINGS)
    for number in range(COUNT):
        stage.connect(f"s{number}", version=MQTT_311).subscribe("wide", qos=1)
    return stage


def clear(stage: Stage) -> list[int]:
    """How many messages each subscriber has got."""
    counts = []
    for session in stage.node.registry.sessions.values():
        if session.client_id.startswith("s") and session.outbound is not None:
            client = session.outbound.connection.transport
            assert isinstance(client, Client)
            counts.append(len(client.publishes()))
    return counts


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_everybody_gets_it_a_piece_at_a_time(crowd: Stage, qos: int) -> None:
    stage = crowd
    publisher = stage.connect("p", version=MQTT_311)
    stage.hold_chores = True
    before = sent(stage)
    publisher.publish("wide", b"x", qos=qos)
    publisher.publish("narrow", b"x", qos=1)
    publisher.publish("narrow", b"x")
    assert sent(stage) == before
    assert not publisher.inbox
    while len(stage.node.state.chores):
        at = sent(stage)
        stage.node.state.chores.step(stage.now_s)
        stage.settle()
        assert sent(stage) - at <= DELIVERIES_PIECE
    stage.hold_chores = False
    stage.settle()
    kinds = [type(packet) for packet in publisher.take()]
    assert kinds == [[Puback], [Puback, Puback], [Pubrec, Puback]][qos]
    assert set(clear(stage)) == {1}
    publisher.disconnect()
    assert not stage.node.guard.window.in_process
    assert not stage.node.guard.window.in_process_bytes


def test_who_leaves_meanwhile_gets_nothing_and_is_in_nobodys_way(crowd: Stage) -> None:
    stage = crowd
    publisher, leaving = stage.connect("p"), stage.connect("sx")
    leaving.subscribe("wide", qos=1)
    stage.hold_chores = True
    publisher.publish("wide", b"x", qos=1)
    stage.node.state.chores.step(stage.now_s)
    leaving.disconnect()
    publisher.close()
    stage.hold_chores = False
    stage.settle()
    assert set(clear(stage)) == {1}
    assert not stage.node.guard.window.in_process
    assert not stage.node.guard.window.in_process_bytes


def test_it_waits_for_what_its_client_has_in_process(crowd: Stage) -> None:
    stage = crowd
    publisher = stage.connect_durable("p")
    stage.hold_commits = True
    publisher.send(
        Publish("narrow", b"", 2, packet_id=1), Publish("wide", b""), Publish("narrow", b"")
    )
    assert not len(stage.node.state.chores)
    stage.release_commits()
    assert set(clear(stage)) == {1}
    publisher.disconnect(session_expiry_interval=0)
    assert not stage.node.guard.window.in_process
    assert not stage.node.guard.window.in_process_bytes


def test_it_does_not_wait_for_what_others_make_durable(crowd: Stage) -> None:
    stage = crowd
    publisher, other = stage.connect("p"), stage.connect_durable("other")
    stage.hold_commits = True
    other.publish("narrow", b"", qos=2)
    publisher.publish("wide", b"x", qos=1)
    assert publisher.expect(Puback).packet_id == 1
    assert set(clear(stage)) == {1}
    assert not other.inbox
    stage.release_commits()
    other.disconnect(session_expiry_interval=0)
    publisher.disconnect()
    assert not stage.node.guard.window.in_process


def test_a_will_for_very_many_is_cut_as_well(crowd: Stage) -> None:
    stage = crowd
    client = stage.connect("w", will=Will("wide", b"gone", 1))
    stage.hold_chores = True
    client.close()
    assert len(stage.node.state.chores) == 1
    stage.hold_chores = False
    stage.settle()
    assert set(clear(stage)) == {1}


def durable(count: int, journal_ops_max: int = 65_536) -> Stage:
    """Return a stage with `count` queues of one offline client."""
    stage = Stage(SETTINGS | {"flow": {"journal_ops_max": journal_ops_max}})
    client = stage.connect_durable("c", receive_maximum=65_535)
    for start in range(0, count, 200):
        filters = names(count, shared=True)[start : start + 200]
        client.send(subscribe(1, filters, qos=2))
    client.close()
    return stage


def waiting(stage: Stage) -> int:
    return sum(queue.queue.count for queue in stage.node.router.queues._queues.values())


def arrived(stage: Stage) -> int:
    """Return how many messages are durable and in their queue."""
    queues = stage.node.router.queues._queues.values()
    return sum(
        len(queue.queue._in_memory.messages if queue.queue._in_memory else ()) for queue in queues
    )


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_durable_goes_to_the_store_in_one_batch(qos: int) -> None:
    stage = durable(COUNT)
    publisher = stage.connect_durable("p")
    stage.hold_chores = stage.hold_commits = True
    publisher.publish("t", b"x", qos=qos)
    while len(stage.node.state.chores):
        assert stage.held is None
        stage.node.state.chores.step(stage.now_s)
        stage.settle()
    assert stage.held is not None
    assert len(stage.held.ops) == COUNT + (qos == 2)
    assert not publisher.inbox
    stage.hold_chores = False
    stage.release_commits()
    if qos == 1:
        assert publisher.expect(Puback).reason_code == 0
    else:
        assert publisher.expect(Pubrec).reason_code == 0
        publisher.send(Pubrel(1))
    assert waiting(stage) == COUNT
    stage.restart()
    assert waiting(stage) == COUNT


def durable_and_unanswered(stage: Stage) -> Journal:
    """Make the held batch durable, before any of its continuations runs."""
    batch, stage.held = stage.held, None
    assert batch is not None
    stage.make_durable(batch)
    return stage.node.journal


def reached_each_time(stage: Stage) -> list[int]:
    """Deliveries of each stretch in which those of the batch that is durable are answered."""
    journal = durable_and_unanswered(stage)
    reached = []
    while journal.is_answering:
        before = arrived(stage)
        journal.answer(64, stage.now_s)
        reached.append(arrived(stage) - before)
    return reached


def test_nobody_later_is_answered_before_it() -> None:
    stage = durable(COUNT)
    stage.connect_durable("s").subscribe("t", "u", qos=1)
    first, second = stage.connect("first"), stage.connect("second")
    stage.hold_commits = True
    first.publish("t", b"1", qos=1)
    second.publish("u", b"2", qos=1)
    journal = durable_and_unanswered(stage)
    order = []
    while journal.is_answering:
        before = arrived(stage)
        journal.answer(64, stage.now_s)
        assert arrived(stage) - before <= OFFERS_PIECE
        order += [client for client in (first, second) if client.connection.outbound.outbox.frames]
    assert order[0] is first
    stage.release_commits()
    assert first.expect(Puback)
    assert second.expect(Puback)


def test_who_reaches_many_is_answered_alone_in_its_stretch() -> None:
    """Sixty-four answers that are nothing, or one that is as much as all of them."""
    count = 150
    stage = durable(count)
    first, second, third = (stage.connect(name) for name in ("first", "second", "third"))
    stage.hold_commits = True
    third.publish("t", b"0", qos=1)
    first.publish("t", b"1", qos=1)
    second.publish("t", b"2", qos=1)
    stage.finish_commit()
    assert reached_each_time(stage) == [count, count]
    stage.release_commits()
    assert second.expect(Puback)


def test_messages_that_reach_a_few_are_answered_together() -> None:
    """However many operations of the store they are: each of the few gets them with one send."""
    few, count = 8, 32
    stage = durable(few)
    first, second = stage.connect("first"), stage.connect("second")
    stage.hold_commits = True
    first.publish("t", b"0", qos=1)
    for number in range(count):
        second.publish("t", b"%d" % number, qos=1)
    stage.finish_commit()
    together = DELIVERIES_MAX // few * few
    assert reached_each_time(stage) == [together, few * count - together]
    stage.release_commits()


@settings(max_examples=5)
@given(publishers=st.integers(1, 6), ops_max=st.sampled_from([100, 1_500, 4_000]))
def test_the_journal_counts_what_is_on_its_way(publishers: int, ops_max: int) -> None:
    stage = durable(COUNT, ops_max)
    clients = [stage.connect(f"p{number}") for number in range(publishers)]
    stage.hold_chores = stage.hold_commits = True
    data = encode(Publish("t", b"x", 1, packet_id=1), MQTT_5)
    for client in clients:
        client.connection.receive_data(data, stage.now_s)
        assert stage.node.journal.depth < ops_max + COUNT
    while len(stage.node.state.chores):
        stage.node.state.chores.step(stage.now_s)
        assert stage.node.journal.depth < ops_max + COUNT
    stage.hold_chores = False
    stage.release_commits()
    for client in clients:
        assert client.expect(Puback)
    assert stage.node.journal.is_empty
    assert stage.node.journal.depth == 0


def test_a_client_that_leaves_with_it_under_way_leaves_nothing_behind() -> None:
    stage = durable(COUNT)
    publisher = stage.connect_durable("p")
    pieces = Pieces(stage)
    publisher.send(Publish("t", b"x", 2, packet_id=1), Disconnect())
    stage.node.state.chores.step(stage.now_s)
    publisher.close()
    stage.connect("p")  # The session has ended, and another one of the same name begins.
    pieces.largest()
    stage.hold_chores = False
    stage.settle()
    assert waiting(stage) == COUNT
    assert not stage.node.guard.window.in_process
    assert not stage.node.guard.window.in_process_bytes
    assert stage.node.journal.is_empty
