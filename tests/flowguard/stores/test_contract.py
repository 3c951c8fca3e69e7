"""The contract of every store (`flowguard.stores.base`).

A store joins by a line in STORES: a function that makes a `Bench` from a folder of its own.

1. A batch is applied in order, completely.
2. Committed data exists after the store was closed and opened again.
3. A session is the sum of the puts since its last drop; operations on unknown sessions change
   nothing.
4. `fetch` pages through unsettled positions, ascending, without gap or repetition, within bounds.
5. Positions never go back: not by settling, not by opening again; an old one is not taken.
6. A session's record counts its unsettled messages and bytes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from flowguard.config import StoreSettings
from flowguard.errors import LockedError
from flowguard.flow.load.signals import StoreState
from flowguard.node.peers.peer import POSITION_BITS
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    DropInbound,
    DropRetained,
    DropSession,
    DropSubscription,
    Durability,
    PutInbound,
    PutRetained,
    PutSession,
    PutSubscription,
    PutWill,
    QueueEntry,
    Release,
    Sent,
    SessionRecord,
    Settle,
    SinkKind,
    StoreOp,
    WillRecord,
    key_of,
    packet_id_of,
)
from flowguard.stores import MemoryStore, Store
from flowguard.stores.base import POS_MAX
from flowguard.stores.rocks import RocksStore
from flowguard.types import Properties, Publish, SubscriptionOptions
from tests.flowguard.stores.redis.benches import (
    end_lease,
    moving,
    new_prefix,
    patient_store,
    shared_server,
)
from tests.support.redis_cluster import RedisCluster, redis_cluster
from tests.support.redis_server import RedisServer

YEAR_2200_MS = 7_258_118_400_000
SESSION_FIELDS = [
    "client_id",
    "expiry_interval_s",
    "ends_at_s",
    "subscriptions",
    "retained_after",
    "inbound_ids",
    "will",
    "user",
    "next_pos",
    "sent_pos",
    "unsettled_count",
    "unsettled_bytes",
]


@dataclass
class Bench:
    """A store to work on; `open` makes it, and makes it again after `reopen` closed it."""

    open: Callable[[], Store]

    def __post_init__(self) -> None:
        self.store = self.open()

    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()


class TakingBench(Bench):
    """A store in a cluster, which is opened again by taking it from an owner that lives on."""

    def __init__(self, open_store: Callable[[], Store], end_lease: Callable[[], None]) -> None:
        super().__init__(open_store)
        self._end_lease = end_lease

    def reopen(self) -> None:
        former = self.store
        self._end_lease()
        self.store = self.open()
        with pytest.raises(LockedError):
            former.commit([PutSession("c", 1, None), Settle("c", POS_MAX)])


def memory(folder: Path) -> Bench:
    store = MemoryStore()  # It survives the broker object, so opening again gives the same one.
    return Bench(lambda: store)


def rocks(layout: Literal["window", "status"]) -> Callable[[Path], Bench]:
    settings = StoreSettings(layout=layout, durability="os", disk_reserve_bytes=0)

    def make(folder: Path) -> Bench:
        return Bench(
            lambda: RocksStore(
                folder / "store", settings, wall_s=lambda: 1_700_000_000.0, random_node=lambda: 7
            )
        )

    return make


def redis(layout: str, server: RedisServer | RedisCluster) -> Bench:
    prefix = new_prefix()
    return Bench(lambda: patient_store(server, prefix, layout=layout))


def redis_cluster_taken(layout: str, cluster: RedisCluster) -> Bench:
    prefix = new_prefix()
    return TakingBench(
        lambda: patient_store(cluster, prefix, layout=layout), lambda: end_lease(cluster, prefix)
    )


STORES: dict[str, Callable[[Path], Bench]] = {
    "memory": memory,
    "window": rocks("window"),
    "status": rocks("status"),
    "redis-stream": lambda folder: redis("stream", shared_server()),
    "redis-zset": lambda folder: redis("zset", shared_server()),
}
ALL = [pytest.param(make, id=name) for name, make in STORES.items()]
for layout in ("stream", "zset"):
    ALL.append(pytest.param(layout, id=f"redis-cluster-{layout}", marks=pytest.mark.slow))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(params=ALL)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A store; one on a cluster sees slots move from one of three primaries to another, and each
    new owner takes it from one that does not know this."""
    if isinstance(request.param, str):
        with moving(request.getfixturevalue("cluster")) as cluster:
            yield redis_cluster_taken(request.param, cluster)
    else:
        yield request.param(tmp_path)


def delivery(payload: bytes = b"x", qos: int = 1, expires_at_s: float = NEVER_S) -> Delivery:
    message = Publish("a/b", payload, qos, properties=Properties(content_type="text/plain"))
    return Delivery(message, qos, False, (7,), expires_at_s)


def described(entry: QueueEntry) -> tuple[object, ...]:
    """An entry by value: deliveries are compared by what they say."""
    found = entry.delivery
    if found is None:
        return entry.pos, entry.packet_id, None
    message = found.message
    content = message.topic, message.payload, message.qos, message.retain, message.properties
    rest = found.qos, found.retain, found.identifiers, found.expires_at_s
    return entry.pos, entry.packet_id, content, rest


def entry(pos: int, sent: Delivery) -> tuple[object, ...]:
    return described(QueueEntry(pos, packet_id_of(pos, sent.qos), sent))


def queue_of(store: Store, client_id: str = "c", limit: int = 1_000) -> list[tuple[object, ...]]:
    """Everything that is unsettled, page by page."""
    found: list[tuple[object, ...]] = []
    after = 0
    while page := store.fetch(client_id, after, limit):
        assert len(page) <= limit
        found += [described(each) for each in page]
        after = page[-1].pos
    return found


def session_of(store: Store, client_id: str = "c") -> SessionRecord:
    (found,) = [record for record in store.sessions() if record.client_id == client_id]
    return found


def values(record: SessionRecord) -> tuple[object, ...]:
    return tuple(getattr(record, name) for name in SESSION_FIELDS)


# --- one by one -----------------------------------------------------------------------------------


def test_a_new_store_is_empty_and_says_what_commit_means(bench: Bench) -> None:
    store = bench.store
    assert (list(store.sessions()), list(store.retained()), queue_of(store)) == ([], [], [])
    assert store.durability in Durability
    assert isinstance(store.immediate, bool)
    assert store.load().state is StoreState.FLOWING
    assert not store.load().read_only


def test_a_session_comes_back_with_everything_that_was_put(bench: Bench) -> None:
    will = WillRecord(Publish("w", b"gone", 1, True), delay_s=5)
    options = SubscriptionOptions(2, True, True, 1, 99)
    bench.store.commit(
        [
            PutSession("c", 3_600, None, True, "ann\u00e9"),
            PutWill("c", will),
            PutSubscription("c", "a/+", options),
            PutInbound("c", 65_535),
            PutInbound("c", 1),
        ]
    )
    bench.reopen()
    expected = SessionRecord("c", 3_600)
    expected.subscriptions, expected.inbound_ids = {"a/+": options}, {1, 65_535}
    expected.will, expected.is_application, expected.user = will, True, "ann\u00e9"
    assert values(session_of(bench.store)) == values(expected)


def test_a_session_that_is_put_again_keeps_what_belongs_to_it(bench: Bench) -> None:
    sent = delivery()
    put = PutSession("c", 10, None, True, "ann")
    bench.store.commit([put, Append("c", 1, sent), PutInbound("c", 4)])
    bench.store.commit([PutSession("c", 20, 1_234.5, user="bob")])
    bench.reopen()
    found = session_of(bench.store)
    assert (found.expiry_interval_s, found.ends_at_s, found.is_application) == (20, 1_234.5, False)
    assert (found.inbound_ids, found.user) == ({4}, "bob")
    assert queue_of(bench.store) == [entry(1, sent)]


def test_a_dropped_session_leaves_nothing_to_its_successor(bench: Bench) -> None:
    bench.store.commit(
        [
            PutSession("c", 10, None),
            PutWill("c", WillRecord(Publish("w", b""), 0)),
            PutSubscription("c", "a", SubscriptionOptions()),
            PutInbound("c", 4),
            Append("c", 9, delivery()),
            Sent("c", 9),
            DropSession("c"),
        ]
    )
    assert list(bench.store.sessions()) == []
    assert queue_of(bench.store) == []
    bench.store.commit([PutSession("c", 10, None)])
    bench.reopen()
    assert values(session_of(bench.store)) == values(SessionRecord("c", 10))
    assert queue_of(bench.store) == []


def test_operations_on_unknown_sessions_change_nothing(bench: Bench) -> None:
    bench.store.commit(
        [
            Append("c", 1, delivery()),
            Sent("c", 1),
            Release("c", 1, packet_id_of(1, 2)),
            Settle("c", 1),
            PutSubscription("c", "a", SubscriptionOptions()),
            DropSubscription("c", "a"),
            PutInbound("c", 1),
            DropInbound("c", 1),
            PutWill("c", None),
            DropSession("c"),
            DropRetained("a"),
        ]
    )
    bench.reopen()
    assert list(bench.store.sessions()) == []
    assert queue_of(bench.store) == []


def test_sessions_are_told_apart_and_come_in_order_of_their_ids(bench: Bench) -> None:
    names = [
        "b",
        "a",
        "c",
        "a/b",
        "a\u00e9",
        "aa",
        "\U0001f600",
        key_of(SinkKind.SHARED, "$share/g/a"),
    ]
    bench.store.commit([PutSession(name, 10, None) for name in names])
    bench.store.commit([Append(name, 1, delivery(name.encode())) for name in names])
    bench.reopen()
    assert [record.client_id for record in bench.store.sessions()] == sorted(names)
    for name in names:
        assert queue_of(bench.store, name) == [entry(1, delivery(name.encode()))]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_fetch_pages_through_unsettled_positions_in_order(bench: Bench, limit: int) -> None:
    positions = [1, 2, 3, 5, 8, 255, 256, 65_536, 2**32, 2**40]
    bench.store.commit([PutSession("c", 10, None)])
    bench.store.commit([Append("c", pos, delivery(b"%d" % pos)) for pos in positions])
    bench.store.commit([Settle("c", pos) for pos in (3, 256)])
    bench.reopen()
    left = [pos for pos in positions if pos not in (3, 256)]
    assert queue_of(bench.store, limit=limit) == [entry(p, delivery(b"%d" % p)) for p in left]


def test_fetch_ends_at_its_position_and_at_its_bytes(bench: Bench) -> None:
    bench.store.commit([PutSession("c", 10, None)])
    bench.store.commit([Append("c", pos, delivery(b"x" * 1_000)) for pos in range(1, 9)])
    fetch = bench.store.fetch
    assert [each.pos for each in fetch("c", 2, 100, until_pos=5)] == [3, 4, 5]
    assert [each.pos for each in fetch("c", 0, 2)] == [1, 2]
    assert [each.pos for each in fetch("c", 0, 100, bytes_max=2_000)] == [1, 2]
    assert [each.pos for each in fetch("c", 0, 100, bytes_max=1)] == [1]
    assert fetch("c", 8, 100) == []


def test_a_record_counts_what_is_unsettled(bench: Bench) -> None:
    sent = [delivery(b"x" * size, qos=2) for size in (1, 10, 100)]
    ops: list[StoreOp] = [Append("c", pos, each) for pos, each in enumerate(sent, 1)]
    bench.store.commit([PutSession("c", 10, None), *ops])
    bench.store.commit([Settle("c", 1, sent[0]), Release("c", 2, packet_id_of(2, 2), sent[1])])
    bench.reopen()
    found = session_of(bench.store)
    assert (found.unsettled_count, found.unsettled_bytes) == (2, sent[2].size_bytes)
    bench.store.commit([Settle("c", 2), Settle("c", 3)])
    bench.reopen()
    found = session_of(bench.store)
    assert (found.unsettled_count, found.unsettled_bytes) == (0, 0)


def test_a_position_that_was_taken_is_not_taken_again(bench: Bench) -> None:
    bench.store.commit([PutSession("c", 10, None), Append("c", 5, delivery(b"first"))])
    bench.store.commit([Append("c", 5, delivery(b"second")), Append("c", 4, delivery(b"late"))])
    bench.reopen()
    assert queue_of(bench.store) == [entry(5, delivery(b"first"))]


def test_a_message_comes_back_as_it_was_appended(bench: Bench) -> None:
    properties = Properties(
        payload_format_indicator=1,
        message_expiry_interval=77,
        content_type="a",
        response_topic="r",
        correlation_data=b"\x00\xff",
        user_properties=(("k", "v"), ("k", "")),
    )
    message = Publish("t/\u00e9", b"\x00" * 70_000, 2, True, properties=properties)
    sent = Delivery(message, 1, True, (1, 268_435_455), 1_700_000_000.25)
    bench.store.commit([PutSession("c", 10, None), Append("c", 1, sent)])
    bench.reopen()
    assert queue_of(bench.store) == [entry(1, sent)]


def test_settled_positions_are_never_used_again(bench: Bench) -> None:
    bench.store.commit([PutSession("c", 10, None), Append("c", 5, delivery())])
    bench.store.commit([Sent("c", 5), Settle("c", 5)])
    bench.reopen()
    found = session_of(bench.store)
    assert (found.next_pos, found.sent_pos) == (6, 5)


def test_positions_of_messages_that_a_node_owes_to_a_peer_are_exact(bench: Bench) -> None:
    """A node whose incarnation is not its first one begins with large positions."""
    first = YEAR_2200_MS << POSITION_BITS
    positions = range(first, first + 4)
    appends = [Append("c", pos, delivery(b"%d" % pos)) for pos in positions]
    bench.store.commit([PutSession("c", 10, None), *appends])
    bench.store.commit([Sent("c", first + 1), Settle("c", first + 1)])
    bench.reopen()
    found = session_of(bench.store)
    assert (found.next_pos, found.sent_pos) == (first + 4, first + 1)
    left = (first, first + 2, first + 3)
    assert queue_of(bench.store) == [entry(pos, delivery(b"%d" % pos)) for pos in left]


def test_the_sent_mark_never_goes_back(bench: Bench) -> None:
    bench.store.commit([PutSession("c", 10, None), Sent("c", 9), Sent("c", 4)])
    bench.reopen()
    assert session_of(bench.store).sent_pos == 9


def test_a_released_position_owes_pubrel_until_it_is_settled(bench: Bench) -> None:
    sent = delivery(qos=2)
    packet_id = packet_id_of(3, 2)
    bench.store.commit([PutSession("c", 10, None), Append("c", 3, sent), Sent("c", 3)])
    bench.store.commit([Release("c", 3, packet_id)])
    bench.reopen()
    assert queue_of(bench.store) == [(3, packet_id, None)]
    bench.store.commit([Settle("c", 3)])
    bench.reopen()
    assert queue_of(bench.store) == []


def test_what_was_released_was_sent(bench: Bench) -> None:
    bench.store.commit([PutSession("c", 10, 5.0)])
    bench.store.commit([Append("c", pos, delivery(qos=2)) for pos in (1, 2, 3)])
    bench.store.commit([Release("c", 2, packet_id_of(2, 2))])
    bench.reopen()
    assert session_of(bench.store).sent_pos == 2


def test_inbound_identifiers_come_and_go(bench: Bench) -> None:
    bench.store.commit([PutSession("c", 10, None), PutInbound("c", 1), PutInbound("c", 2)])
    bench.store.commit([PutInbound("c", 1), DropInbound("c", 2), DropInbound("c", 3)])
    bench.reopen()
    assert session_of(bench.store).inbound_ids == {1}


def test_subscriptions_are_replaced_and_dropped(bench: Bench) -> None:
    bench.store.commit([PutSession("c", 10, None)])
    bench.store.commit(
        [
            PutSubscription("c", filter, SubscriptionOptions(0))
            for filter in ("a", "b", "$share/g/a")
        ]
    )
    bench.store.commit(
        [PutSubscription("c", "a", SubscriptionOptions(2)), DropSubscription("c", "b")]
    )
    bench.reopen()
    expected = {"a": SubscriptionOptions(2), "$share/g/a": SubscriptionOptions(0)}
    assert session_of(bench.store).subscriptions == expected


def test_a_subscription_knows_which_retained_messages_it_is_owed(bench: Bench) -> None:
    options = SubscriptionOptions(1)
    bench.store.commit([PutSession("c", 10, None)])
    bench.store.commit([PutSubscription("c", filter, options, "") for filter in ("a", "b", "c")])
    bench.store.commit([PutSubscription("c", "#", options, "t/\u00e9"), DropSubscription("c", "b")])
    bench.store.commit([PutSubscription("c", "a", options)])
    bench.reopen()
    assert session_of(bench.store).retained_after == {"c": "", "#": "t/\u00e9"}


def test_a_will_is_replaced_and_removed(bench: Bench) -> None:
    first = WillRecord(Publish("w", b"1"), 0)
    second = WillRecord(Publish("w", b"2", properties=Properties(content_type="x")), 9)
    bench.store.commit([PutSession("c", 10, None), PutWill("c", first), PutWill("c", second)])
    bench.reopen()
    assert session_of(bench.store).will == second
    bench.store.commit([PutWill("c", None)])
    bench.reopen()
    assert session_of(bench.store).will is None


def test_retained_messages_are_replaced_dropped_and_ordered_by_topic(bench: Bench) -> None:
    one = Publish("b", b"1", 1, True)
    two = Publish("b", b"2", 2, True, properties=Properties(message_expiry_interval=9))
    other = Publish("a/b", b"3", 0, True)
    bench.store.commit([PutRetained(one, NEVER_S), PutRetained(other, NEVER_S)])
    bench.store.commit([PutRetained(two, 1_009.0), PutRetained(Publish("z", b""), NEVER_S)])
    bench.store.commit([DropRetained("z")])
    bench.reopen()
    assert list(bench.store.retained()) == [(other, NEVER_S), (two, 1_009.0)]


def test_a_batch_is_applied_in_its_order(bench: Bench) -> None:
    bench.store.commit(
        [
            PutSession("c", 1, None),
            Append("c", 1, delivery(b"old")),
            DropSession("c"),
            PutSession("c", 2, None),
            Append("c", 1, delivery(b"new")),
            PutSubscription("c", "a", SubscriptionOptions(1)),
            DropSubscription("c", "a"),
            PutSubscription("c", "a", SubscriptionOptions(2)),
        ]
    )
    bench.reopen()
    assert queue_of(bench.store) == [entry(1, delivery(b"new"))]
    assert session_of(bench.store).subscriptions == {"a": SubscriptionOptions(2)}
