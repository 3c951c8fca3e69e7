"""Durable queues are also bounded on the disk: per session, and for the whole node."""

from typing import Any

import pytest

from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.ops.explain import explain
from flowguard.ops.status import status_of
from flowguard.records import is_group
from flowguard.session.outbound import backlog
from flowguard.stores import StoreLoad
from flowguard.types import Properties, Publish
from tests.flowguard.node.ledger import check_budgets, check_store, end_all_sessions
from tests.support.readings import first_numbers
from tests.support.stage import Stage, StoreOnDisk

KIB = 1024
MIB = 1024 * KIB
AWAY = 8


def small_stage(policy: str = "drop-new", **session: Any) -> Stage:
    settings = {
        "session": {"queue_policy": policy, "queue_bytes_max": MIB, **session},
        "node": {"queue_bytes_max": MIB, "disk_queue_bytes_max": MIB},
    }
    return Stage(settings, store=StoreOnDisk())


def absent(stage: Stage, client_id: str, filter: str) -> None:
    """Make a client that has subscribed and disconnected."""
    client = stage.connect_durable(client_id)
    client.subscribe(filter, qos=1)
    client.close()


def publish(stage: Stage, topic: str, *numbers: int, size_bytes: int = 50 * KIB) -> None:
    for number in numbers:
        payload = (b"%d " % number).ljust(size_bytes)
        stage.node.router.publish_own(Publish(topic, payload, 1), stage.now_s)
        stage.settle()


def fill(stage: Stage, count: int = 20) -> None:
    """Publish more to offline clients than the disk may hold."""
    for number in range(AWAY):
        absent(stage, f"away{number}", "away")
    publish(stage, "away", *range(count))


def used_bytes(stage: Stage) -> int:
    return stage.node.state.disk_queue_budget.used_bytes


def stored_bytes(stage: Stage) -> int:
    return sum(record.unsettled_bytes for record in stage.store.sessions())


def dropped(stage: Stage) -> dict[Reason, int]:
    return stage.node.counters.dropped


def check(stage: Stage) -> None:
    check_budgets(stage.node, [])
    assert used_bytes(stage) <= stage.node.state.disk_queue_budget.limit_bytes


# --- the bound -----------------------------------------------------------------------------------


def test_durable_queues_together_hold_only_so_many_bytes() -> None:
    stage = small_stage()
    fill(stage)
    assert set(dropped(stage)) == {Reason.NODE_DISK_QUEUE_BYTES}
    assert MIB // 2 < stored_bytes(stage) == used_bytes(stage) <= MIB
    check(stage)
    check_store(stage.node, stage.store)
    got = [len(first_numbers(stage.connect_durable(f"away{number}"))) for number in range(AWAY)]
    assert sum(got) == 20 * AWAY - stage.node.counters.publish_dropped
    assert max(got) - min(got) <= 1
    assert used_bytes(stage) == 0


def test_a_restart_counts_what_is_there_to_the_byte() -> None:
    stage = small_stage()
    fill(stage)
    before = used_bytes(stage)
    stage.connect_durable("away0", receive_maximum=1)
    sent_bytes = before - used_bytes(stage)
    assert sent_bytes > 50 * KIB
    stage.restart()
    assert used_bytes(stage) == before - sent_bytes
    assert stage.node.state.disk_queue_budget.holders_count == AWAY - (
        not stage_queue(stage, "away0")
    )
    publish(stage, "away", 100)
    assert dropped(stage)[Reason.NODE_DISK_QUEUE_BYTES] >= AWAY - 2
    check(stage)
    check_store(stage.node, stage.store)
    end_all_sessions(stage.node, stage.now_s)


def stage_queue(stage: Stage, client_id: str) -> int:
    return stage.node.registry.sessions[client_id].queue.size_bytes


def test_what_was_accepted_is_kept_though_the_disk_has_less_room_now() -> None:
    stage = small_stage()
    fill(stage)
    kept = used_bytes(stage)
    stage.node.state.disk_queue_budget.limit_bytes = MIB // 4
    publish(stage, "away", 100)
    assert used_bytes(stage) == kept
    assert dropped(stage)[Reason.NODE_DISK_QUEUE_BYTES] >= AWAY
    check_budgets(stage.node, [])


def test_who_is_there_and_reads_loses_nothing_beside_those_who_are_away(version: int) -> None:
    stage = small_stage()
    fill(stage)
    reader = stage.connect_durable("reader", version=version)
    reader.subscribe("here", qos=1)
    publisher = stage.connect("publisher", version=version)
    got: list[int] = []
    for number in range(50):
        publisher.publish("here", (b"%d " % number).ljust(10 * KIB), qos=1)
        publisher.expect(Puback)
        got += first_numbers(reader)
    assert got == list(range(50))
    check(stage)


def test_absent_it_is_half_of_what_the_file_system_has() -> None:
    class Disk(StoreOnDisk):
        def load(self) -> StoreLoad:
            return StoreLoad(used_bytes=10 * MIB, free_bytes=90 * MIB)

    stage = Stage(store=Disk())
    assert stage.node.state.disk_queue_budget.limit_bytes == 50 * MIB
    stage = Stage({"node": {"disk_queue_bytes_max": 7 * MIB}}, store=Disk())
    assert stage.node.state.disk_queue_budget.limit_bytes == 7 * MIB


# --- what gives way ------------------------------------------------------------------------------


def test_drop_new_keeps_what_was_accepted() -> None:
    stage = small_stage("drop-new")
    fill(stage)
    for number in range(AWAY):
        got = first_numbers(stage.connect_durable(f"away{number}"))
        assert got
        assert got == list(range(len(got)))


def test_drop_oldest_makes_room_of_its_own_oldest() -> None:
    stage = small_stage("drop-oldest")
    fill(stage)
    check(stage)
    kept = [first_numbers(stage.connect_durable(f"away{number}")) for number in range(AWAY)]
    for got in kept:
        assert got == list(range(20 - len(got), 20))
    assert sum(map(len, kept)) == 20 * AWAY - stage.node.counters.publish_dropped
    assert set(dropped(stage)) == {Reason.NODE_DISK_QUEUE_BYTES}
    assert used_bytes(stage) == 0


def test_drop_oldest_is_a_page_above_the_bound_at_most_until_its_oldest_is_read() -> None:
    stage = small_stage("drop-oldest")
    fill(stage)
    before = stored_bytes(stage)
    stage.hold_fetches = True
    publish(stage, "away", *range(20, 60))
    page_bytes = backlog.PAGE_BYTES_MAX + 51 * KIB
    assert MIB < stored_bytes(stage) <= MIB + AWAY * page_bytes
    check(stage)
    stage.release_fetches()
    assert stored_bytes(stage) <= before
    assert stored_bytes(stage) == used_bytes(stage)
    check(stage)


def test_drop_oldest_gives_up_nothing_where_that_would_not_help() -> None:
    stage = small_stage("drop-oldest")
    fill(stage)
    absent(stage, "late", "late")
    publish(stage, "late", 1, size_bytes=KIB)
    publish(stage, "late", 2, size_bytes=200 * KIB)
    assert first_numbers(stage.connect_durable("late")) == [1]


def test_block_waits_for_room_on_the_disk() -> None:
    stage = small_stage("block", block_s=1_000.0)
    absent(stage, "one", "one")
    absent(stage, "two", "two")
    publish(stage, "one", *range(10))
    publisher = stage.connect("publisher")
    acknowledged = 0
    for number in range(10):
        publisher.publish("two", (b"%d " % number).ljust(50 * KIB), qos=1)
        acknowledged += len(publisher.take())
    assert acknowledged == 5
    check(stage)
    assert first_numbers(stage.connect_durable("one")) == list(range(10))
    assert len(publisher.take()) == 5
    assert not dropped(stage)
    assert first_numbers(stage.connect_durable("two")) == list(range(10))


def test_the_queue_of_a_shared_subscription_counts() -> None:
    stage = small_stage()
    member = stage.connect_durable("member")
    member.subscribe("$share/group/jobs", qos=1)
    member.close()
    publish(stage, "jobs", *range(40))
    assert dropped(stage)[Reason.NODE_DISK_QUEUE_BYTES] > 0
    (group,) = (r for r in stage.store.sessions() if is_group(r.client_id))
    assert group.unsettled_bytes == used_bytes(stage) <= MIB
    check_budgets(stage.node, [])
    stage.restart()
    assert used_bytes(stage) == group.unsettled_bytes
    got = first_numbers(stage.connect_durable("member"))
    assert got == list(range(len(got)))
    assert used_bytes(stage) == 0
    check_budgets(stage.node, [])


def test_dead_letters_are_counted_like_any_other() -> None:
    stage = small_stage(dead_letter_topic="dead")
    absent(stage, "letters", "dead/#")
    for number in range(AWAY):
        absent(stage, f"away{number}", "away")
    for number in range(20):
        properties = Properties(message_expiry_interval=2)
        message = Publish("away", (b"%d " % number).ljust(50 * KIB), 1, properties=properties)
        stage.node.router.publish_own(message, stage.now_s)
        stage.settle()
    stage.advance(3)
    publish(stage, "away", 100)
    check(stage)
    assert stage.node.counters.dead_letters > 0
    letters = first_numbers(stage.connect_durable("letters"))
    assert letters
    end_all_sessions(stage.node, stage.now_s)


# --- who sees it ---------------------------------------------------------------------------------


def test_status_and_explain_show_it() -> None:
    stage = small_stage()
    use = status_of(stage.node, stage.now_s)["budgets"]["disk_queue"]
    assert use == {"used": 0, "limit": MIB}
    fill(stage)
    use = status_of(stage.node, stage.now_s)["budgets"]["disk_queue"]
    assert use["used"] == used_bytes(stage) > MIB // 2
    explanation = explain(stage.node, "away0", stage.now_s)
    assert explanation is not None
    assert Reason.NODE_DISK_QUEUE_BYTES in explanation["dropped"]


@pytest.mark.parametrize("end", ["clean start", "expiry"])
def test_the_end_of_a_session_gives_its_place_back(end: str) -> None:
    stage = small_stage()
    client = stage.connect_durable("s", session_expiry_interval=5)
    client.subscribe("a", qos=1)
    client.close()
    publish(stage, "a", 1, 2)
    assert used_bytes(stage) > 100 * KIB
    if end == "expiry":
        stage.advance(6)
    else:
        stage.connect("s")
    assert used_bytes(stage) == 0
    check_budgets(stage.node, [])
