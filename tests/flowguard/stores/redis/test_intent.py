"""A broker dies in the middle of a commit over several buckets: the next owner completes it, or
nothing of it exists."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from flowguard.errors import CorruptionError, LockedError, StallError, StoreError
from flowguard.records import Append, DropSession, PutInbound, PutSession, Settle, StoreOp
from flowguard.stores.redis.connection.cluster import RedisCluster as Link
from flowguard.stores.redis.connection.cluster import slot_of
from flowguard.stores.redis.intent import Intent, decode_intent
from flowguard.stores.redis.keys import KeyNames
from flowguard.stores.redis.store import RedisStore
from tests.flowguard.stores.redis.benches import end_lease, new_prefix, patient_store
from tests.flowguard.stores.test_contract import delivery, queue_of, session_of
from tests.support.redis_cluster import RedisCluster, redis_cluster

PUBLISHER, SUBSCRIBER, GROUP, MEMBER = "a", "b", "c", "d"
SESSIONS = (PUBLISHER, SUBSCRIBER, GROUP, MEMBER)
MOVED = delivery(b"moved", qos=2)
BATCH: list[StoreOp] = [
    PutInbound(PUBLISHER, 7),
    Append(SUBSCRIBER, 1, delivery(b"new", qos=2)),
    Settle(GROUP, 1, MOVED),
    Append(MEMBER, 1, MOVED),
]


class Died(BaseException):
    """In place of SIGKILL."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def begin(cluster: RedisCluster, prefix: str, **more: Any) -> RedisStore:
    """A broker that has a message of the group in the group's queue."""
    store = patient_store(cluster, prefix, **more)
    store.commit([PutSession(name, 10, None) for name in SESSIONS])
    store.commit([Append(GROUP, 1, MOVED)])
    return store


def die_after(store: RedisStore, calls: int) -> None:
    """Die in the next commit, after `calls` calls of functions, one after the other."""
    link = store._link
    assert isinstance(link, Link)
    exchange = Link._exchange

    def exchange_some(questions: Mapping[Any, list[Any]]) -> Any:
        nonlocal calls
        for address, words in questions.items():
            for word in words:
                if calls == 0:
                    raise Died
                calls -= 1
                exchange(link, {address: [word]})
        if calls == 0:
            raise Died
        return exchange(link, questions)

    store._lease._due_s = float("inf")  # A renewal in between would be a call, too.
    link._exchange = exchange_some  # type: ignore[method-assign]
    with pytest.raises(Died):
        store.commit(BATCH)
    link.close()


def state_of(store: RedisStore) -> tuple[bool, ...]:
    """Return for each change of the commit whether it is done."""
    inbound = session_of(store, PUBLISHER).inbound_ids
    lengths = [len(queue_of(store, name)) for name in (SUBSCRIBER, GROUP, MEMBER)]
    return (
        bool(inbound),
        *(found == after for found, after in zip(lengths, (1, 0, 1), strict=True)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["stream", "zset"])
@pytest.mark.parametrize("calls", range(6))
def test_a_commit_is_done_whole_or_not_at_all_wherever_its_broker_died(
    cluster: RedisCluster, calls: int, layout: str
) -> None:
    """The commit is written down first; the other calls are one for each bucket."""
    names = KeyNames("any")
    homes = {cluster.primary_of(slot_of(names.session(name.encode())[0])) for name in SESSIONS}
    assert len(homes) > 1
    prefix = new_prefix()
    dying = begin(cluster, prefix, layout=layout)
    die_after(dying, calls)
    end_lease(cluster, prefix)
    after = patient_store(cluster, prefix, layout=layout)
    assert state_of(after) == (calls > 0,) * 4
    after.close()


@pytest.mark.slow
def test_who_dies_while_it_does_anothers_commit_leaves_it_to_the_next_one(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = new_prefix()
    die_after(begin(cluster, prefix), 2)
    end_lease(cluster, prefix)

    def die(store: RedisStore) -> None:
        store._link.close()
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(RedisStore, "_adopt", die)
        with pytest.raises(Died):
            patient_store(cluster, prefix)
    end_lease(cluster, prefix)
    after = patient_store(cluster, prefix)
    assert state_of(after) == (True,) * 4
    after.close()


@pytest.mark.slow
def test_a_commit_that_was_done_is_not_done_again_over_what_came_later(
    cluster: RedisCluster,
) -> None:
    """It is still written down, since the commits after it had no more than a bucket each."""
    prefix = new_prefix()
    first = begin(cluster, prefix)
    first.commit(BATCH)
    first.commit([Settle(MEMBER, 1, MOVED)])
    first.commit([DropSession(SUBSCRIBER)])
    first._link.close()
    end_lease(cluster, prefix)
    after = patient_store(cluster, prefix)
    assert {record.client_id for record in after.sessions()} == {PUBLISHER, GROUP, MEMBER}
    assert queue_of(after, MEMBER) == queue_of(after, GROUP) == []
    after.close()


@pytest.mark.slow
def test_who_was_silent_for_too_long_cannot_even_begin_a_commit(cluster: RedisCluster) -> None:
    prefix = new_prefix()
    silent = begin(cluster, prefix)
    end_lease(cluster, prefix)
    after = patient_store(cluster, prefix, name="successor")
    with pytest.raises(LockedError, match="successor has taken over"):
        silent.commit(BATCH)
    silent.close()
    assert state_of(after) == (False,) * 4
    after.close()
    again = patient_store(cluster, prefix)
    assert state_of(again) == (False,) * 4
    again.close()


@pytest.mark.slow
def test_a_commit_of_a_version_that_is_gone_is_not_guessed_at(cluster: RedisCluster) -> None:
    prefix = new_prefix()
    store = begin(cluster, prefix)
    names = KeyNames(prefix)
    calls = [(list(names.mark(1)), [b"whatever"])]
    intent = Intent(store._token.encode(), b"flowguard_commit_stream_gone", 9, calls)
    store._link.ask([(b"SET", names.intent, intent.encode())])
    store._link.close()
    end_lease(cluster, prefix)
    with pytest.raises(StoreError, match="another version of flowguard") as caught:
        patient_store(cluster, prefix)
    assert not isinstance(caught.value, StallError)


def test_what_is_written_down_is_read_back_and_damage_is_seen() -> None:
    calls = [([b"k", b"l"], [b"", b"n", b"\0\xff"]), ([b"m"], [])]
    intent = Intent(b"token", b"function", 7, calls)
    value = intent.encode()
    found = decode_intent(value)
    assert (found.token, found.function, found.number) == (b"token", b"function", 7)
    assert [(list(keys), list(words)) for keys, words in found.calls] == calls
    for damaged in (value[:-1], value[:3], value + b"\0\0\0\1x", b""):
        with pytest.raises(CorruptionError):
            decode_intent(damaged)
