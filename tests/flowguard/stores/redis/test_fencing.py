"""An owner is known by its token: a store with another token writes nothing, however late."""

import threading
import time

import pytest

from flowguard.errors import LockedError
from flowguard.records import (
    NEVER_S,
    Append,
    DropSession,
    PutInbound,
    PutRetained,
    PutSession,
    PutSubscription,
    Settle,
    StoreOp,
)
from flowguard.types import Publish, SubscriptionOptions
from tests.flowguard.stores.redis.benches import new_prefix, open_store, shared_server
from tests.flowguard.stores.test_contract import delivery, entry, queue_of, session_of

LEASE_S = 0.5


@pytest.fixture
def prefix() -> str:
    shared_server()
    return new_prefix()


def take_over(prefix: str, client_id: str) -> None:
    """Make another broker the owner of one session."""
    from flowguard.stores.redis.keys import KeyNames

    key = KeyNames(prefix).state(client_id.encode())
    with shared_server().client() as client:
        client.setrange(key, 32, b"x")  # The first byte of its token.


def test_a_commit_names_the_sessions_of_another_owner_and_writes_all_others(prefix: str) -> None:
    store = open_store(shared_server(), prefix)
    store.commit([PutSession("c", 10, None), PutSession("d", 10, None)])
    take_over(prefix, "c")
    fenced = store.commit([Append("c", 1, delivery(b"lost")), Append("d", 1, delivery(b"kept"))])
    assert fenced == {"c"}
    assert queue_of(store, "d") == [entry(1, delivery(b"kept"))]
    assert [each.client_id for each in store.sessions()] == ["d"]
    store.close()
    after = open_store(shared_server(), prefix)
    assert queue_of(after, "c") == []
    after.close()


@pytest.mark.parametrize(
    "op",
    [
        PutSession("c", 99, None),
        DropSession("c"),
        PutSubscription("c", "a", SubscriptionOptions(1)),
        Settle("c", 1),
    ],
    ids=lambda op: op.__class__.__name__,
)
def test_nothing_of_a_session_is_changed_under_an_old_token(prefix: str, op: StoreOp) -> None:
    store = open_store(shared_server(), prefix)
    store.commit([PutSession("c", 10, None), Append("c", 1, delivery())])
    take_over(prefix, "c")
    assert store.commit([op]) == {"c"}
    store.close()
    after = open_store(shared_server(), prefix)
    found = session_of(after)
    assert (found.expiry_interval_s, found.subscriptions, found.unsettled_count) == (10, {}, 1)
    after.close()


def test_a_session_is_not_made_anew_by_who_has_lost_it(prefix: str) -> None:
    store = open_store(shared_server(), prefix)
    store.commit([PutSession("c", 10, None)])
    take_over(prefix, "c")
    assert store.commit([PutSession("c", 20, None)]) == {"c"}
    assert store.commit([PutSession("c", 30, None)]) == {"c"}
    store.close()
    after = open_store(shared_server(), prefix)
    assert session_of(after).expiry_interval_s == 10
    after.close()


def test_who_was_silent_for_too_long_finds_all_of_it_taken_and_writes_nothing(prefix: str) -> None:
    """It was paused, say, and its commit is sent after another broker has begun."""
    silent = open_store(shared_server(), prefix, name="silent", lease_s=LEASE_S)
    silent.commit([PutSession("c", 10, None), Append("c", 1, delivery(b"before"))])
    time.sleep(2 * LEASE_S)
    after = open_store(shared_server(), prefix, name="successor", lease_s=LEASE_S)
    for op in (
        Append("c", 2, delivery(b"late")),
        PutSession("new", 10, None),
        PutRetained(Publish("a", b"late", 0, True), NEVER_S),
    ):
        with pytest.raises(LockedError, match="successor has taken over"):
            silent.commit([op])
    time.sleep(LEASE_S)
    with pytest.raises(LockedError, match="successor"):
        silent.maintain()
    assert queue_of(after) == [entry(1, delivery(b"before"))]
    assert [each.client_id for each in after.sessions()] == ["c"]
    assert list(after.retained()) == []
    silent.close()
    assert not after.commit([Append("c", 2, delivery(b"after"))])
    after.close()


def test_who_was_stopped_while_it_began_takes_nothing_from_its_successor(prefix: str) -> None:
    stopped = open_store(shared_server(), prefix, name="stopped", lease_s=LEASE_S)
    stopped.commit([PutSession("c", 10, None), PutRetained(Publish("a", b"1", 0, True), NEVER_S)])
    time.sleep(2 * LEASE_S)
    after = open_store(shared_server(), prefix, name="successor", lease_s=LEASE_S)
    with pytest.raises(LockedError, match="successor has taken over"):
        stopped._adopt()  # The rest of its start.
    stopped.close()
    retained = PutRetained(Publish("a", b"2", 0, True), NEVER_S)
    assert not after.commit([Append("c", 1, delivery()), PutSession("d", 10, None), retained])
    assert queue_of(after) == [entry(1, delivery())]
    after.close()


def test_a_prefix_of_a_version_without_epochs_is_taken_over(prefix: str) -> None:
    from flowguard.stores.redis.keys import BUCKETS, KeyNames

    store = open_store(shared_server(), prefix)
    store.commit([PutSession("c", 10, None)])
    store.close()
    names = KeyNames(prefix)
    with shared_server().client() as client:
        client.hdel(names.meta, "epoch")
        for number in range(BUCKETS):
            client.hdel(names.bucket(number)[0], "e")
    after = open_store(shared_server(), prefix)
    assert not after.commit([Append("c", 1, delivery())])
    assert queue_of(after) == [entry(1, delivery())]
    after.close()


def test_a_second_broker_is_refused_by_the_name_of_the_first_one(prefix: str) -> None:
    first = open_store(shared_server(), prefix, name="the first one")
    stop = threading.Event()

    def live() -> None:
        while not stop.wait(0.05):
            first.maintain()

    living = threading.Thread(target=live)
    living.start()
    try:
        with pytest.raises(LockedError, match=r"the first one has .*--takeover"):
            open_store(shared_server(), prefix, name="the second one")
    finally:
        stop.set()
        living.join()
    first.close()
    open_store(shared_server(), prefix, name="the second one").close()


def test_who_stands_by_begins_when_the_lease_of_a_dead_broker_ends(prefix: str) -> None:
    dead = open_store(shared_server(), prefix, lease_s=LEASE_S)
    dead.commit([PutSession("c", 10, None)])
    dead._link.close()  # Like its process, it renews no more.
    after = open_store(shared_server(), prefix, takeover=True, lease_s=LEASE_S)
    assert [each.client_id for each in after.sessions()] == ["c"]
    after.close()


def test_a_broker_that_nobody_has_succeeded_goes_on_however_long_it_was_silent(
    prefix: str,
) -> None:
    store = open_store(shared_server(), prefix, lease_s=LEASE_S)
    store.commit([PutSession("c", 10, None)])
    time.sleep(2 * LEASE_S)
    assert not store.commit([Append("c", 1, delivery())])
    store.maintain()
    store.close()


def test_a_commit_that_comes_while_another_broker_begins_is_not_done_by_halves(prefix: str) -> None:
    """Sessions get their new owner one after the other: this one has some of them yet."""
    from flowguard.stores.redis.keys import KeyNames, bucket_of
    from flowguard.stores.redis.lua.functions import ADOPT

    silent = open_store(shared_server(), prefix)
    silent.commit([PutSession("p", 10, None), PutSession("s", 10, None)])
    names = KeyNames(prefix)
    bucket = bucket_of(b"p")
    with shared_server().client() as client:
        client.hset(names.meta, mapping={"token": "successor", "name": "successor"})
        keys = names.bucket(bucket)[:2]
        client.fcall(ADOPT.decode(), 2, *keys, "successor", names.bucket_start(bucket), 9)
    with pytest.raises(LockedError, match="successor has taken over"):
        silent.commit([Append("s", 1, delivery(b"half")), PutInbound("p", 7)])
    silent.close()
    with shared_server().client() as client:
        assert not client.exists(names.session(b"s")[1])


def sharing_a_bucket() -> tuple[str, str]:
    """Two client ids of which the sessions lie in one bucket."""
    from flowguard.stores.redis.keys import bucket_of

    seen: dict[int, str] = {}
    for number in range(2_000):
        client_id = f"c{number}"
        other = seen.setdefault(bucket_of(client_id.encode()), client_id)
        if other != client_id:
            return other, client_id
    raise AssertionError("no two of them do")


def test_sessions_of_one_bucket_end_and_begin_in_one_commit(prefix: str) -> None:
    one, other = sharing_a_bucket()
    store = open_store(shared_server(), prefix)
    store.commit([PutSession(one, 10, None)])
    store.commit([DropSession(one), PutSession(other, 20, None)])
    store.commit([PutSubscription(other, "a", SubscriptionOptions(1)), PutSession(one, 10, None)])
    assert {each.client_id for each in store.sessions()} == {one, other}
    store.commit([DropSession(one), DropSession(other)])
    store.close()
    after = open_store(shared_server(), prefix)
    assert list(after.sessions()) == []
    after.close()


def test_who_was_overtaken_while_it_prepared_the_servers_prepares_them_again(prefix: str) -> None:
    """The first one may have been killed since, in the middle of a commit."""
    from flowguard.stores.redis.connection.link import RedisLink
    from flowguard.stores.redis.keys import KeyNames
    from flowguard.stores.redis.lease import Lease

    links = [RedisLink(shared_server().unix_url, 5.0, lambda link: None) for _ in range(2)]
    first, second = (
        Lease(link, KeyNames(prefix), token, token, 1_000.0)
        for link, token in zip(links, ("first", "second"), strict=True)
    )
    prepared = []

    def prepare() -> str:
        if not prepared:
            first.claim(time.sleep, lambda: "runs", takeover=False)
        prepared.append("runs")
        return "runs"

    second.claim(lambda _: first.leave(), prepare, takeover=True)
    assert prepared == ["runs", "runs"]
    for link in links:
        link.close()


def test_commit_without_operations_is_not_done_for_a_broker_that_was_replaced(prefix: str) -> None:
    """Answers that need nothing stored wait for such a commit."""
    first = open_store(shared_server(), prefix, lease_s=LEASE_S, takeover=True)
    assert not first.load().in_doubt
    time.sleep(LEASE_S)
    assert first.load().in_doubt
    first.commit([])
    assert not first.load().in_doubt
    second = open_store(shared_server(), prefix, lease_s=LEASE_S, takeover=True)
    assert first.load().in_doubt
    with pytest.raises(LockedError):
        first.commit([])
    first.close()
    second.close()


def test_broker_that_no_other_one_waits_for_is_never_in_doubt(prefix: str) -> None:
    store = open_store(shared_server(), prefix, lease_s=LEASE_S)
    time.sleep(LEASE_S)
    assert not store.load().in_doubt
    store.close()
