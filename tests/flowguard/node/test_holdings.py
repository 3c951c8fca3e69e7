"""The bytes that a node holds are counted, and old holdings keep no client out, even after a
start."""

from typing import Any

import pytest

from flowguard.bounds import PROCESS_BYTES
from flowguard.codec.packets import Connack, Connect, Suback, Subscribe
from flowguard.errors import ConfigError
from flowguard.flow import Reason, Signal
from flowguard.node.upkeep.holdings import check_restored, held_bytes
from flowguard.stores import Store
from flowguard.types import ReasonCode, SubscriptionOptions
from tests.support.stage import Stage, StoreOnDisk

MIB = 1024 * 1024
LIMIT_BYTES = PROCESS_BYTES + 78 * MIB


def small_stage(
    limit_bytes: int = LIMIT_BYTES, store: Store | None = None, **sections: Any
) -> Stage:
    """A node with little memory, and a store on disk."""
    flow = {"memory_max_bytes": limit_bytes} | sections.pop("flow", {})
    return Stage({"flow": flow, **sections}, store=store or StoreOnDisk())


def memory_pressure(stage: Stage, resident_bytes: int = 0) -> float:
    """As housekeeping reports it, after the next tick."""
    stage.node.guard.observe_memory(held_bytes(stage.node), resident_bytes)
    stage.advance(0.1)
    return stage.node.guard.grant.pressure.parts[Signal.MEMORY]


def retain_all(stage: Stage, prefix: str, payload_bytes: int = 2_000) -> int:
    """Retained messages of one client, until the node has had enough; their number."""
    client = stage.connect("keeper")
    for count in range(100_000):
        client.publish(f"{prefix}/{count}", bytes(payload_bytes), qos=1, retain=True)
        if stage.node.counters.dropped.get(Reason.RETAINED_FULL):
            client.close()
            return count
    raise AssertionError("there was no bound")


# --- what is counted --------------------------------------------------------------------------


def test_what_is_held_grows_with_each_kind_and_goes_with_it(version: int) -> None:
    stage = small_stage()
    node = stage.node
    empty_bytes = held_bytes(node)
    assert empty_bytes == PROCESS_BYTES + node.bounds.store_bytes
    client = stage.connect_durable("c", version=version)
    connected_bytes = held_bytes(node)
    assert connected_bytes > empty_bytes
    client.subscribe("t/#", qos=1)
    subscribed_bytes = held_bytes(node)
    assert subscribed_bytes > connected_bytes
    publisher = stage.connect("p")
    publisher.publish("t/1", bytes(10_000), qos=1, retain=True)
    assert held_bytes(node) > subscribed_bytes + 10_000
    client.close()
    publisher.publish("t/1", b"", retain=True)
    publisher.close()
    assert empty_bytes < held_bytes(node) < subscribed_bytes + 30_000
    again = stage.connect("c", version=version)  # A clean start ends the session.
    again.close()
    # Only the plans of topics are left.
    assert held_bytes(node) == empty_bytes + node.router.plans.budget.used_bytes


def test_what_the_allocator_keeps_is_no_pressure(version: int) -> None:
    """A crowd has gone; the process has as much memory as before, and is free to use it."""
    stage = small_stage()
    client = stage.connect("c", version=version)
    client.close()
    assert memory_pressure(stage, resident_bytes=LIMIT_BYTES) < 0.5


def test_memory_that_nobody_counts_is_pressure_once_it_is_above_the_limit() -> None:
    stage = small_stage()
    assert memory_pressure(stage, resident_bytes=int(1.09 * LIMIT_BYTES)) < 1
    assert memory_pressure(stage, resident_bytes=int(1.31 * LIMIT_BYTES)) > 4


# --- no client is locked out ------------------------------------------------------------------


def test_retained_messages_stop_at_their_share_and_keep_nobody_out(version: int) -> None:
    stage = small_stage()
    count = retain_all(stage, "kept")
    assert count > 1_000
    assert stage.node.router.retained.size_bytes <= stage.node.bounds.retained_bytes
    assert memory_pressure(stage) < 1
    stage.connect("newcomer", version=version)


def test_sessions_stop_at_their_share_and_keep_nobody_out(version: int) -> None:
    stage = small_stage(node={"sessions_max": 50})
    for number in range(50):
        stage.connect_durable(f"kept-{number}").close()
    refused = stage.attempt(Connect("one-more", 4, clean_start=False))
    assert refused.expect(Connack).reason_code != ReasonCode.SUCCESS
    stage.connect("newcomer", version=version)
    stage.connect_durable("kept-7", version=version)


def test_subscriptions_stop_at_their_share_and_keep_nobody_out(version: int) -> None:
    stage = small_stage(node={"state_bytes_max": MIB})
    reasons: list[int] = []
    for number in range(12):
        client = stage.connect(f"greedy-{number}")
        filters = tuple((f"{n}" * 100, SubscriptionOptions(0)) for n in range(300))
        client.send(Subscribe(1, filters))
        reasons += client.expect(Suback).reason_codes
    assert ReasonCode.QUOTA_EXCEEDED in reasons
    for number in range(20):
        stage.connect(f"newcomer-{number}", version=version)
    assert stage.node.state.state_budget.used_bytes <= MIB


def test_all_shares_together_keep_nobody_out(version: int) -> None:
    """Filled to their bounds, what can be held for long presses no more than 1."""
    stage = small_stage()
    node, bounds = stage.node, stage.node.bounds
    for budget in (
        node.state.state_budget,
        node.state.queue_budget,
        node.state.inflight.budget,
        node.state.outbox_budget,
        node.state.input_holders.budget,
    ):
        budget.used_bytes = budget.limit_bytes
    node.router.retained.size_bytes = bounds.retained_bytes
    node.registry.kept_count = bounds.sessions_max
    node.connections_count = bounds.connections_max
    assert memory_pressure(stage) <= 1.000_001


# --- at start ---------------------------------------------------------------------------------


def test_what_was_taken_in_fits_after_a_restart(version: int) -> None:
    stage = small_stage()
    count = retain_all(stage, "kept")
    for number in range(100):
        stage.connect_durable(f"kept-{number}").subscribe(f"{number}/#", qos=1)
    before_bytes = held_bytes(stage.node)
    stage.restart()
    assert check_restored(stage.node) == []
    assert len(stage.node.router.retained) == count
    assert held_bytes(stage.node) <= before_bytes
    assert memory_pressure(stage) < 1
    stage.connect("newcomer", version=version)


def test_what_is_stored_is_kept_beyond_a_bound_that_is_lower_now() -> None:
    stage = small_stage()
    count = retain_all(stage, "kept")
    lower = small_stage(node={"retained_bytes_max": MIB}, store=stage.store)
    assert len(lower.node.router.retained) == count
    (part,) = check_restored(lower.node)
    assert part.key == "node.retained_bytes_max"
    assert f"{count:,} retained messages" in str(part)
    lower.connect("newcomer").publish("another", b"x", qos=1, retain=True)
    assert lower.node.counters.dropped == {Reason.RETAINED_FULL: 1}


def test_what_does_not_fit_is_named_with_what_to_do() -> None:
    stage = small_stage(512 * MIB)
    retain_all(stage, "kept", payload_bytes=20_000)
    less = small_stage(100 * MIB, store=stage.store)
    with pytest.raises(ConfigError) as refused:
        check_restored(less.node)
    text = str(refused.value)
    assert "retained messages" in text
    assert "node.retained_bytes_max" in text
    needed_bytes = int(text.partition(" to ")[2].partition(",")[0])
    enough = small_stage(needed_bytes, store=stage.store)
    check_restored(enough.node)
    enough.connect("newcomer")
