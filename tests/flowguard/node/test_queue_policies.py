"""A full queue: what gives way, over a store in memory and over one that pages."""

from typing import Any

import pytest

from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.session.outbound import backlog
from flowguard.stores import MemoryStore
from flowguard.types import Publish
from tests.flowguard.node.ledger import check_budgets, check_store
from tests.support.readings import first_numbers
from tests.support.sendings import numbered
from tests.support.stage import Stage

KIB = 1024
MIB = 1024 * KIB


def stage_with(store: MemoryStore, policy: str, **session: Any) -> Stage:
    return Stage({"session": {"queue_policy": policy, **session}}, store=store)


def reopened(stage: Stage, **session: Any) -> Stage:
    """After a restart with other limits."""
    policy = stage.node.settings.session.queue_policy
    settings = {"session": {"queue_policy": policy, **session}}
    return Stage(settings, store=stage.store, now_s=stage.now_s)


def absent(stage: Stage) -> None:
    """Connect the subscriber once and disconnect it."""
    client = stage.connect_durable("s")
    client.subscribe("a", qos=1)
    client.close()


def publish(stage: Stage, *payloads: bytes, together: bool = False) -> None:
    """One by one, or in one chunk, so that one commit has them all."""
    publisher = stage.connect("p")
    packets = [Publish("a", payload, 1, packet_id=n) for n, payload in enumerate(payloads, 1)]
    if together:
        publisher.send(*packets)
    else:
        for packet in packets:
            publisher.send(packet)
    assert [packet.packet_id for packet in publisher.take() if isinstance(packet, Puback)] == [
        packet.packet_id for packet in packets
    ], "a full queue is no matter of the publisher"


def check(stage: Stage) -> None:
    check_budgets(stage.node, [])
    check_store(stage.node, stage.store)


# --- what was sent never gives way ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "left"), [("drop-new", [3, 4, 5]), ("drop-oldest", [10, 11, 12])]
)
def test_the_bound_holds_while_the_client_is_away_or_the_broker_restarts(
    store: MemoryStore, policy: str, left: list[int]
) -> None:
    stage = stage_with(store, policy, queue_messages_max=3)
    client = stage.connect_durable("s", receive_maximum=2)
    client.subscribe("a", qos=1)
    publish(stage, *numbered(*range(1, 6)))
    client.close()
    publish(stage, *numbered(6, 7))
    stage.restart()
    publish(stage, *numbered(*range(8, 13)))
    check(stage)
    got = first_numbers(stage.connect_durable("s"))
    assert got[:5] == [1, 2, *left]
    # Until a page has been looked at, its messages may have expired: see `admit_message`.
    assert len(got) <= 5 + (backlog.PAGE_MAX if policy == "drop-new" and store.on_disk else 0)
    check(stage)


def test_retained_messages_come_between_live_ones_each_once_and_none_gives_way(
    store: MemoryStore,
) -> None:
    """They are owed, and take free places only."""
    stage = stage_with(store, "drop-oldest", queue_messages_max=3)
    publisher = stage.connect("r")
    for number in range(1, 5):
        publisher.publish(f"r/{number}", b"%d " % number, qos=1, retain=True)
    client = stage.connect_durable("s", receive_maximum=2)
    client.subscribe("a", qos=1)
    client.subscribe("r/#", qos=1)
    first, _ = client.publishes(acknowledge=False)
    other = stage.connect("p2")
    stage.hold_commits = True
    other.publish("a", b"5 ", qos=1)
    client.send(Puback(first.packet_id))
    stage.release_commits()
    assert len(client.publishes(acknowledge=False)) == 1
    client.close()
    publish(stage, b"6 ")
    check(stage)
    again = stage.connect_durable("s", receive_maximum=2)
    got = first_numbers(again)
    assert got == [2, 5, 3, 6, 4]
    check(stage)


# --- lower limits after a restart ----------------------------------------------------------------


def test_what_was_accepted_under_higher_limits_is_kept_and_nothing_new(store: MemoryStore) -> None:
    stage = stage_with(store, "drop-new")
    absent(stage)
    publish(stage, *numbered(*range(1, 11)))
    stage = reopened(stage, queue_messages_max=4)
    publish(stage, *numbered(11, 12))
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 2}
    check(stage)
    assert first_numbers(stage.connect_durable("s")) == list(range(1, 11))
    check(stage)


def test_with_drop_oldest_it_gives_way_to_the_next_message(store: MemoryStore) -> None:
    stage = stage_with(store, "drop-oldest")
    absent(stage)
    publish(stage, *numbered(*range(1, 31)))
    stage = reopened(stage, queue_messages_max=4)
    assert stage.node.counters.dropped == {}
    publish(stage, *numbered(31, 32, 33))
    check(stage)
    assert stage.node.registry.sessions["s"].queue.count == 4
    publish(stage, *numbered(34, 35))
    assert first_numbers(stage.connect_durable("s"))[-2:] == [34, 35]
    assert set(stage.node.counters.dropped) == {Reason.QUEUE_MESSAGES}
    check(stage)


def test_what_was_accepted_is_kept_though_the_node_has_less_room_for_it(
    store: MemoryStore,
) -> None:
    stage = stage_with(store, "drop-new")
    absent(stage)
    publish(stage, *numbered(*range(1, 9), size_bytes=200 * KIB))
    settings = {"session": {"queue_bytes_max": MIB}, "node": {"queue_bytes_max": MIB}}
    stage = Stage(settings, store=store, now_s=stage.now_s)
    assert first_numbers(stage.connect_durable("s")) == list(range(1, 9))
    assert stage.node.state.queue_budget.used_bytes == 0
