"""An application's queue on its topic, and the effect of a batch on it."""

from collections.abc import Callable, Sequence
from typing import NoReturn

from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    DropSession,
    Release,
    Sent,
    Settle,
    StoreOp,
    packet_id_of,
)
from flowguard.stores.kafka.plan import CHANGES_MAX, CommitPlan
from flowguard.stores.kafka.queue import ApplicationQueue, QueuePage, encode_record
from flowguard.stores.kafka.window import AckWindow
from flowguard.types import Publish

NAME = "app"
FIRST_OFFSET = 10


def delivery(pos: int) -> Delivery:
    return Delivery(Publish("a/b", bytes((pos,)), 1), 1, False, (), NEVER_S)


SIZE_BYTES = delivery(1).size_bytes


def queue_of(count: int) -> ApplicationQueue:
    """Positions from 1 on."""
    window = AckWindow(FIRST_OFFSET, FIRST_OFFSET)
    queue = ApplicationQueue("topic", window)
    for pos in range(1, count + 1):
        queue.appended(pos, window.end, SIZE_BYTES)
    return queue


def records(*positions: int) -> list[tuple[int, bytes]]:
    return [(FIRST_OFFSET - 1 + pos, encode_record(pos, 0, 0, delivery(pos))) for pos in positions]


def page_of(
    queue: ApplicationQueue,
    *positions: int,
    count: int = 9,
    bytes_max: int = 9_999,
    until_pos: int = 99,
) -> tuple[list[int], bool]:
    """The positions that a page has, and whether it is full."""
    page = QueuePage(count, bytes_max, until_pos)
    queue.fill(page, records(*positions))
    return [entry.pos for entry in page.entries], page.is_full


def test_a_page_ends_at_a_count_at_a_size_and_at_a_position() -> None:
    queue = queue_of(5)
    assert page_of(queue, 1, 2, 3) == ([1, 2, 3], False)
    assert page_of(queue, 1, 2, 3, count=2) == ([1, 2], True)
    assert page_of(queue, 1, 2, 3, bytes_max=SIZE_BYTES + 1) == ([1, 2], True)
    assert page_of(queue, 1, 2, 3, until_pos=2) == ([1, 2], True)
    assert page_of(queue, 1, 2, 3, count=0) == ([], True)


def test_a_page_has_nothing_that_is_settled_or_behind_the_end() -> None:
    queue = queue_of(4)
    queue.settle(11, SIZE_BYTES)
    assert page_of(queue, 1, 2, 3, 4, 5) == ([1, 3, 4], False)


def test_of_what_is_released_only_pubrel_is_owed() -> None:
    queue = queue_of(2)
    queue.window.release(11, SIZE_BYTES)
    page = QueuePage(9, 9_999, 99)
    queue.fill(page, records(1, 2))
    first, second = page.entries
    assert first.delivery is not None
    assert (first.packet_id, first.delivery.message) == (packet_id_of(1, 1), delivery(1).message)
    assert (second.packet_id, second.delivery) == (packet_id_of(2, 2), None)


def test_a_plan_stops_where_an_operation_is_about_a_session() -> None:
    plan, queues = CommitPlan(), {NAME: queue_of(2)}
    new, other = Append(NAME, 3, delivery(3)), Append("device", 1, delivery(1))
    settle, gone = Settle(NAME, 1), Settle("device", 1)
    ops: Sequence[StoreOp] = [
        Append(NAME, 2, delivery(2)),  # It has that position.
        new,
        other,
        settle,
        DropSession("device"),
        gone,
    ]
    assert plan.take(ops, 0, queues) == 4
    assert (plan.appends, plan.changes, plan.rest) == ({NAME: [new]}, [settle], [other])
    assert plan.take(ops, 5, queues) == 6
    assert plan.rest == [other, gone]


def test_a_plan_appends_no_position_twice() -> None:
    plan = CommitPlan()
    first, second = Append(NAME, 1, delivery(1)), Append(NAME, 2, delivery(2))
    plan.take([first, second, first], 0, {NAME: queue_of(0)})
    assert plan.appends == {NAME: [first, second]}


def changed(
    queue: ApplicationQueue, *changes: Sent | Release | Settle, size_of: Callable[..., int | None]
) -> CommitPlan:
    plan = CommitPlan(changes=list(changes))
    plan.change({NAME: queue}, size_of)
    assert plan.changes == []
    return plan


def known(*_: object) -> NoReturn:
    raise AssertionError("the size is known")


def test_what_is_settled_raises_the_floor_and_nobody_waits_for_it() -> None:
    queue = queue_of(3)
    plan = changed(
        queue,
        Sent(NAME, 3),
        Settle(NAME, 2, delivery(2)),
        Settle(NAME, 1, delivery(1)),
        size_of=known,
    )
    window = queue.window
    assert (window.floor, window.floor_bytes, window.sent_pos) == (12, 2 * SIZE_BYTES, 3)
    assert queue.unsaved_count == 3
    assert not plan.due
    assert not plan.changed


def test_a_release_has_to_be_kept_before_anybody_hears_of_it() -> None:
    queue = queue_of(2)
    plan = changed(queue, Release(NAME, 2, 1, delivery(2)), size_of=known)
    assert (queue.window.released, queue.window.sent_pos) == ({11: SIZE_BYTES}, 2)
    assert plan.due == {NAME}


def test_many_changes_are_kept_though_nobody_waits_for_them() -> None:
    queue = queue_of(0)
    assert not changed(queue, *[Sent(NAME, 1)] * CHANGES_MAX, size_of=known).changed
    assert changed(queue, Sent(NAME, 1), size_of=known).changed == {NAME}


def test_a_size_that_nobody_here_knows_is_asked_for_and_a_record_that_is_gone_is_left() -> None:
    queue, asked = queue_of(2), []

    def size_of(client_id: str, offset: int) -> int | None:
        asked.append((client_id, offset))
        return SIZE_BYTES if offset == 10 else None

    changed(queue, Settle(NAME, 1), Settle(NAME, 2), Settle(NAME, 7), size_of=size_of)
    assert asked == [(NAME, 10), (NAME, 11)]
    assert (queue.window.floor, queue.window.floor_bytes) == (11, SIZE_BYTES)
