"""The contract every store keeps (`test_contract`), under any history of batches."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowguard.records import (
    Append,
    Delivery,
    DropInbound,
    DropSession,
    DropSubscription,
    PutInbound,
    PutSession,
    PutSubscription,
    Sent,
    SessionRecord,
    Settle,
    StoreOp,
)
from flowguard.types import SubscriptionOptions
from tests.flowguard.stores.test_contract import STORES, Bench, delivery, entry, queue_of, values

CLIENT_IDS = st.sampled_from(["c", "d"])
FILTERS = st.sampled_from(["a", "b/#"])
IDS = st.integers(1, 3)
POSITIONS = st.integers(1, 6)
MESSAGES = st.builds(delivery, st.binary(max_size=3), st.integers(1, 2))
OPERATIONS: st.SearchStrategy[StoreOp] = st.one_of(
    st.builds(PutSession, CLIENT_IDS, st.integers(1, 9), st.none() | st.floats(0, 9)),
    st.builds(DropSession, CLIENT_IDS),
    st.builds(
        PutSubscription,
        CLIENT_IDS,
        FILTERS,
        st.builds(SubscriptionOptions, IDS),
        st.none() | st.sampled_from(["", "a", "a/\u00e9"]),
    ),
    st.builds(DropSubscription, CLIENT_IDS, FILTERS),
    st.builds(PutInbound, CLIENT_IDS, IDS),
    st.builds(DropInbound, CLIENT_IDS, IDS),
    st.builds(Append, CLIENT_IDS, POSITIONS, MESSAGES),
    st.builds(Sent, CLIENT_IDS, POSITIONS),
    st.builds(Settle, CLIENT_IDS, POSITIONS),
)


def expected_state(history: list[StoreOp], client_id: str) -> tuple[object, object] | None:
    """Return the state that a session must have, from its operations since its last drop."""
    own = [op for op in history if op.client_id == client_id]  # type: ignore[union-attr]
    dropped = [index for index, op in enumerate(own) if isinstance(op, DropSession)]
    own = own[dropped[-1] + 1 :] if dropped else own
    put = [index for index, op in enumerate(own) if isinstance(op, PutSession)]
    if not put:
        return None
    latest, own = own[put[-1]], own[put[0] :]
    assert isinstance(latest, PutSession)
    record = SessionRecord(client_id, latest.expiry_interval_s, latest.ends_at_s)
    queue: dict[int, Delivery] = {}
    for op in own:
        match op:
            case PutSubscription(_, filter, options, after):
                record.subscriptions = {**record.subscriptions, filter: options}
                record.retained_after.pop(filter, None)
                if after is not None:
                    record.retained_after[filter] = after
            case DropSubscription(_, filter):
                record.subscriptions.pop(filter, None)
                record.retained_after.pop(filter, None)
            case PutInbound(_, packet_id):
                record.inbound_ids |= {packet_id}
            case DropInbound(_, packet_id):
                record.inbound_ids -= {packet_id}
            case Append(_, pos, found) if pos >= record.next_pos:
                queue[pos] = found
                record.next_pos = pos + 1
            case Settle(_, pos):
                queue.pop(pos, None)
    record.unsettled_count = len(queue)
    record.unsettled_bytes = sum(found.size_bytes for found in queue.values())
    record.sent_pos = max((op.pos for op in own if isinstance(op, Sent)), default=0)
    return values(record), [entry(pos, queue[pos]) for pos in sorted(queue)]


@pytest.mark.parametrize("make", STORES.values(), ids=STORES.keys())
@given(batches=st.lists(st.lists(OPERATIONS, max_size=12), max_size=6), data=st.data())
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_any_history_of_batches_leaves_what_it_says(
    make: Callable[[Path], Bench],
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[StoreOp]],
    data: st.DataObject,
) -> None:
    bench = make(tmp_path_factory.mktemp("store"))
    history: list[StoreOp] = []
    for batch in batches:
        bench.store.commit(batch)
        history += batch
        if data.draw(st.booleans(), label="reopen"):
            bench.reopen()
        found = {record.client_id: record for record in bench.store.sessions()}
        for client_id in ("c", "d"):
            expected = expected_state(history, client_id)
            if expected is None:
                assert client_id not in found
                assert queue_of(bench.store, client_id) == []
            else:
                assert values(found[client_id]) == expected[0]
                assert queue_of(bench.store, client_id, limit=2) == expected[1]
    bench.store.close()
