import pytest

from benchmarks.overload.store import LimitedStore
from flowguard.records import Append, Delivery, PutSession, Sent, Settle, StoreOp
from flowguard.stores import Store
from flowguard.types import Publish


def appends(count: int) -> list[StoreOp]:
    delivery = Delivery(Publish("t", b"x", 1), 1, False, (), float("inf"))
    return [Append("c", pos, delivery) for pos in range(1, count + 1)]


@pytest.mark.parametrize(("batches", "each"), [(1, 0), (1, 100), (5, 20)])
def test_a_commit_takes_its_time_and_each_message_its_share(batches: int, each: int) -> None:
    store = LimitedStore(commit_s=0.001, message_s=0.000_1)
    for _ in range(batches):
        store.commit(appends(each))
    assert (store.commits, store.messages) == (batches, batches * each)
    # Sleeping never ends early, so this bound holds on any machine.
    assert store.busy_s >= batches * 0.001 + store.messages * 0.000_1


def test_only_messages_count() -> None:
    store = LimitedStore(commit_s=0.0, message_s=0.0)
    store.commit([PutSession("c", 60, float("inf")), *appends(3), Sent("c", 1), Settle("c", 1)])
    assert store.messages == 3


def test_it_keeps_what_it_was_given() -> None:
    store: Store = LimitedStore(commit_s=0.0, message_s=0.0)
    store.commit([PutSession("c", 60, float("inf")), *appends(3)])
    assert [entry.pos for entry in store.fetch("c", 1, 10)] == [2, 3]
    assert [record.client_id for record in store.sessions()] == ["c"]
    assert not store.immediate


def test_capacity_grows_with_the_batch_and_has_a_ceiling() -> None:
    store = LimitedStore(commit_s=0.002, message_s=0.000_05)
    rates = [store.messages_per_s(batch) for batch in (1, 10, 100, 1_000, 10**9)]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(20_000, rel=1e-3)
