"""Queued messages of a client, and those that it gets after its return: a session without a
node."""

from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.packets import Puback, Pubrec
from flowguard.flow import Pause, Reason
from flowguard.records import Append, Delivery, QueueEntry, Settle
from flowguard.session.host import IN_PROCESS
from flowguard.session.owner import page_fetched
from flowguard.session.states import Undelivered
from flowguard.types import Publish
from tests.flowguard.session.alone import NOW_S, Alone
from tests.support.readings import payloads_in


@given(st.lists(st.integers(1, 2), max_size=6), st.integers(1, 3), st.integers(0, 6))
def test_what_waited_comes_in_order_and_once(
    qos: list[int], receive_maximum: int, leaves_after: int
) -> None:
    """If the client leaves in the middle, its unacknowledged messages come again."""
    alone = Alone(expiry_s=60)
    for number, each in enumerate(qos):
        alone.offer(each, b"%d" % number)
    assert alone.session.undelivered() is Undelivered.OFFLINE
    got: list[bytes] = []
    alone.open(receive_maximum=receive_maximum)
    while True:
        alone.run_replays()
        messages = [packet for packet in alone.take() if isinstance(packet, Publish)]
        assert len(alone.session.inflight.messages) <= receive_maximum
        if len(got) == leaves_after and messages:
            leaves_after = -1
            alone.open(receive_maximum=receive_maximum)
            continue
        if not messages:
            break
        for message in messages:
            got += [message.payload]
            refusal = Pubrec(message.packet_id, 0x80)
            alone.send(Puback(message.packet_id) if message.qos == 1 else refusal)
    assert got == [b"%d" % number for number in range(len(qos))]
    assert alone.session.undelivered() is Undelivered.NOTHING_MATCHES
    noted = [op.pos for op in alone.commits.ops if isinstance(op, Append)]
    settled = [op.pos for op in alone.commits.ops if isinstance(op, Settle)]
    assert sorted(settled) == noted
    assert alone.node.inflight.budget.used_bytes == alone.node.queue_budget.used_bytes == 0


def test_a_backlog_on_disk_is_asked_for_when_its_client_is_back() -> None:
    alone = Alone(expiry_s=60, spills=True)
    for number in range(3):
        alone.offer(1, b"%d" % number)
    assert alone.session.queue.disk.count == 3
    stored = [op for op in alone.commits.ops if isinstance(op, Append)]
    alone.open()
    assert alone.session.undelivered() is Undelivered.DISK
    fetch = alone.node.fetches.popleft()
    entries = [QueueEntry(op.pos, op.pos, op.delivery) for op in stored]
    page_fetched(alone.session, fetch, entries, alone.node, NOW_S)
    assert alone.session.undelivered() is Undelivered.TURN
    alone.run_replays()
    assert payloads_in(alone.take()) == [b"0", b"1", b"2"]


def test_a_full_queue_drops_what_it_is_offered_and_says_so() -> None:
    alone = Alone(queue_messages_max=1)
    alone.open(receive_maximum=1)
    for number in range(3):
        alone.offer(1, b"%d" % number)
    assert alone.node.counters.dropped == {Reason.QUEUE_MESSAGES: 1}
    assert alone.session.dropped_now(alone.node) == [Reason.QUEUE_MESSAGES]
    assert alone.session.undelivered() is Undelivered.RECEIVE_MAXIMUM


def test_qos_0_goes_to_nobody_who_is_away() -> None:
    alone = Alone(expiry_s=60)
    assert alone.session.dropped_now(alone.node) == [Reason.OFFLINE_QOS_0]
    connection = alone.open()
    delivery = Delivery(Publish("t", b"x"), 0, False, (), float("inf"))
    connection.outbound.send_qos_0(delivery, NOW_S)
    assert payloads_in(alone.take()) == [b"x"]
    assert alone.session.dropped_now(alone.node) == []


def test_a_connection_says_why_it_is_paused() -> None:
    alone = Alone()
    alone.node.window.resize(1)
    connection = alone.open()
    assert connection.pauses() == []
    alone.routes.answers = [IN_PROCESS]
    alone.send(*[Publish("t", b"x", 1, packet_id=number) for number in (1, 2)])
    assert connection.pauses() == [Pause.WINDOW]
    alone.node.window.closed = True
    assert connection.pauses() == [Pause.CLOSED]
    alone.send(*[Publish("t", bytes(40_000)) for _ in range(2)])
    assert connection.pauses() == [Pause.CLOSED, Pause.READ_AHEAD]
    assert not connection.wants_read
