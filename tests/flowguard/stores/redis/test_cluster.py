"""A Redis Cluster: slots that move, primaries that join and die, and nothing lost on the way."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowguard.errors import ConfigError, LockedError, StallError, StoreError
from flowguard.records import (
    NEVER_S,
    Append,
    Durability,
    PutRetained,
    PutSession,
    Release,
    Settle,
    StoreOp,
    packet_id_of,
)
from flowguard.stores.redis.connection.cluster import slot_of
from flowguard.stores.redis.keys import KeyNames
from flowguard.stores.redis.store import RedisStore
from flowguard.types import Publish
from store_tools.redis_reader import RedisReader
from tests.flowguard.stores.redis.benches import (
    end_lease,
    new_prefix,
    open_store,
    opened_at_last,
    patient_store,
    shared_server,
)
from tests.flowguard.stores.test_contract import delivery, entry, queue_of
from tests.support.redis_cluster import TIMEOUT_MS, RedisCluster, redis_cluster, until
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.slow

NAMES = list("abcdefgh")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisCluster]:
    """One that a test may break."""
    with redis_cluster(tmp_path) as cluster:
        yield cluster


def slot(client_id: str) -> int:
    return slot_of(KeyNames("any").session(client_id.encode())[0])


@pytest.mark.parametrize("client_id", ["}c", "{", "{}", "a{b}c", "\0$share/{g}/t"])
def test_all_keys_of_a_session_are_in_one_slot(client_id: str) -> None:
    assert len({slot_of(name) for name in KeyNames("fg1").session(client_id.encode())}) == 1


def commit_until_taken(store: RedisStore, batch: list[StoreOp]) -> None:
    """As the journal does."""
    until(lambda: is_taken(store, batch))


def is_taken(store: RedisStore, batch: list[StoreOp]) -> bool:
    try:
        return not store.commit(batch)
    except StallError:
        return False


def messages(count: int) -> list[tuple[object, ...]]:
    return [entry(pos, delivery(b"%d" % pos)) for pos in range(1, count + 1)]


@pytest.mark.parametrize("layout", ["stream", "zset"])
def test_nothing_is_lost_doubled_or_disordered_while_slots_move(
    shared: RedisCluster, layout: str
) -> None:
    prefix = new_prefix()
    store = open_store(shared, prefix, layout=layout)
    commit_until_taken(store, [PutSession(name, 10, None) for name in NAMES])
    count = moves = 0
    with shared.moving([slot(name) for name in NAMES]) as moved:
        while count < 40 or moves < 10:
            count += 1
            message = delivery(b"%d" % count)
            commit_until_taken(store, [Append(name, count, message) for name in NAMES])
            moves = moved()
    for name in NAMES:
        assert queue_of(store, name) == messages(count)
    commit_until_taken(store, [Settle(name, 1) for name in NAMES])
    store.close()
    with_redirections = RedisReader(shared.url, prefix, clock=time.monotonic, sleep=time.sleep)
    found = with_redirections.verify()
    assert (found.sessions, found.entries, found.problems) == (8, 8 * (count - 1), [])
    with_redirections.close()


def test_a_slot_that_is_half_moved_is_read_and_not_written(shared: RedisCluster) -> None:
    """The keys of the slot are on two nodes: each is read from its own (ASK); no function runs on
    either."""
    store = open_store(shared, new_prefix(), layout="zset")
    message = delivery(b"1")
    released = delivery(qos=2)
    commit_until_taken(
        store,
        [PutSession("a", 10, None), Append("a", 1, message), Append("a", 2, released)],
    )
    commit_until_taken(store, [Release("a", 2, packet_id_of(2, 2), released)])
    number = slot("a")
    source = shared.primary_of(number)
    target = next(node for node in shared.nodes[:3] if node is not source)
    queue = store._names.session(b"a")[1]
    shared.begin_move(number, source, target)
    batch: list[StoreOp] = [Append("a", 3, delivery(b"3"))]
    for moved in ([], [queue]):
        if moved:
            shared.move_keys(source, target, moved)
        with pytest.raises(StallError, match="Multiple keys request during rehashing"):
            store.commit(batch)
        assert store._link.ask([(b"ZCARD", queue)]) == [1]
        assert [record.unsettled_count for record in store.sessions()] == [2]
    shared.move(number, target)
    commit_until_taken(store, batch)
    assert [each[0] for each in queue_of(store, "a")] == [1, 2, 3]
    store.close()


def test_a_primary_that_joins_is_given_the_functions(own: RedisCluster) -> None:
    store = opened_at_last(own)
    commit_until_taken(store, [PutSession("a", 10, None)])
    joined = own.join()
    own.move(slot("a"), joined)
    commit_until_taken(store, [Append("a", 1, delivery(b"1"))])
    with joined.client() as client:
        assert client.dbsize() > 0
        assert client.execute_command("FUNCTION", "LIST")
        client.execute_command("FUNCTION", "FLUSH")
    commit_until_taken(store, [Append("a", 2, delivery(b"2"))])
    assert queue_of(store, "a") == messages(2)
    store.close()


def test_a_replica_that_is_promoted_has_all_that_was_answered(own: RedisCluster) -> None:
    store = opened_at_last(own, durability="replicated")
    assert store.durability is Durability.REPLICATED
    commit_until_taken(store, [PutSession(name, 10, None) for name in NAMES])

    def append(pos: int) -> None:
        message = delivery(b"%d" % pos)
        commit_until_taken(store, [Append(name, pos, message) for name in NAMES])

    for pos in range(1, 21):
        append(pos)
    victim = own.primary_of(slot("a"))
    victim.kill()
    own.set_node_timeout(1_000)
    until(lambda: own.primary_of(slot("a"), own.living()) is not victim)
    own.set_node_timeout(TIMEOUT_MS)
    # The one that was promoted has no replica that could confirm anything.
    batch: list[StoreOp] = [Append("a", 21, delivery(b"21"))]
    for _ in range(2):
        with pytest.raises(StallError):
            store.commit(batch)
    victim.start()
    commit_until_taken(store, batch)
    append(22)
    assert queue_of(store, "a") == messages(22)
    for name in NAMES[1:]:
        assert queue_of(store, name) == [*messages(20), messages(22)[-1]]
    store.close()


def test_what_a_primary_lost_is_written_again(tmp_path: Path) -> None:
    """It comes back with old data, before a replica takes its place; or one does, and has it."""
    with redis_cluster(tmp_path, {"save": '""'}) as cluster:
        store = opened_at_last(cluster, durability="memory")
        commit_until_taken(store, [PutSession(name, 10, None) for name in NAMES])
        for node in cluster.nodes:
            with node.client() as client:
                until(lambda: not client.info("persistence")["rdb_bgsave_in_progress"])
                client.save()
        for pos in range(1, 6):
            message = delivery(b"%d" % pos)
            commit_until_taken(store, [Append(name, pos, message) for name in NAMES])
        commit_until_taken(store, [PutRetained(Publish("r", b"x", 0, True), NEVER_S)])
        for node in cluster.nodes[:3]:
            node.kill()
            node.start()
            until(cluster.is_served)
        message = delivery(b"6")
        commit_until_taken(store, [Append(name, 6, message) for name in NAMES])
        for name in NAMES:
            assert queue_of(store, name) == messages(6)
        store.close()


def test_nobody_is_answered_while_a_replica_is_missing(own: RedisCluster) -> None:
    store = opened_at_last(own, durability="replicated", timeout_s=0.5)
    commit_until_taken(store, [PutSession("a", 10, None)])
    replicas = own.nodes[3:]
    for replica in replicas:
        replica.pause()
    batch: list[StoreOp] = [Append("a", 1, delivery(b"1"))]
    for _ in range(2):
        with pytest.raises(StallError):
            store.commit(batch)
    for replica in replicas:
        replica.resume()
    commit_until_taken(store, batch)
    assert queue_of(store, "a") == messages(1)
    store.close()


def test_one_broker_at_a_time_has_a_prefix_of_a_cluster(shared: RedisCluster) -> None:
    prefix = new_prefix()
    first = patient_store(shared, prefix, name="silent")
    commit_until_taken(first, [PutSession("a", 10, None)])
    end_lease(shared, prefix)
    second = patient_store(shared, prefix, name="successor")
    with pytest.raises(LockedError, match="successor"):
        first.commit([Append("a", 1, delivery())])
    assert queue_of(second, "a") == []
    first.close()
    second.close()


def test_an_address_of_the_other_kind_is_refused_and_says_which(shared: RedisCluster) -> None:
    node: RedisServer = shared.nodes[0]
    with pytest.raises(ConfigError, match=r"redis\+cluster://HOST:PORT"):
        open_store(node, new_prefix(), url=node.url)
    with pytest.raises(StoreError, match="cluster support disabled"):
        open_store(node, new_prefix(), url=f"redis+cluster://127.0.0.1:{shared_server().port}")
    with pytest.raises(ConfigError, match="names the node"):
        open_store(node, new_prefix(), url="redis+cluster://127.0.0.1")
