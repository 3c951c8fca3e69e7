"""A node beside one of a newer version, and beside one that has met a later owner of its shard."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from flowguard.app.workers.process import WorkerLoad
from flowguard.cluster.frames import FrameDecoder, encode_frame
from flowguard.cluster.pressure import PressureRecord
from flowguard.cluster.shards import NodeRecord
from flowguard.config import Settings
from flowguard.flow.load.signals import Signal
from flowguard.stores.redis.cluster_table import ClusterTable
from tests.flowguard.workers.clients import Machine
from tests.flowguard.workers.test_cluster import SHARDS, is_ready, node, wait_until
from tests.support.redis_server import ALWAYS, RedisServer, redis_server
from tests.torture.nodes import free_block

OTHER = "127.0.0.1:1"


def table_on(redis: RedisServer) -> ClusterTable:
    values = {
        "store": {"kind": "redis"},
        "redis": {"url": redis.url},
        "cluster": {"address": OTHER, "shards": SHARDS},
    }
    return ClusterTable(Settings.model_validate(values), "other", time.monotonic, time.sleep)


def incarnation_of(running: Machine, shard: int) -> int:
    found: int = running.get("/cluster")["shards"][str(shard)]["incarnation"]
    return found


@pytest.mark.slow
def test_node_shows_newer_states_and_ends_a_worker_whose_shard_had_a_later_owner(
    tmp_path: Path,
) -> None:
    with (
        redis_server(tmp_path / "redis", ALWAYS) as redis,
        node(tmp_path / "a", redis, free_block(2 * SHARDS)) as first,
    ):
        wait_until(lambda: is_ready(first, SHARDS))
        table = table_on(redis)

        # A node of a newer version takes a shard.
        newer = NodeRecord(OTHER, 1, states={"0": "dreaming"})

        def is_shown() -> bool:
            table.meet(newer, {0: incarnation_of(first, 0) + 1})
            return bool(first.get("/cluster")["shards"]["0"]["state"] == "dreaming")

        wait_until(is_shown)
        assert first.text("/")
        table.leave(OTHER)
        wait_until(lambda: is_ready(first, SHARDS))

        # That node has met an owner of the other shard that Redis knows no more.
        later = incarnation_of(first, 1) + 1
        has_met = NodeRecord(OTHER, 1, later={"1": later})

        def starts_again() -> bool:
            table.meet(has_met, {})
            return incarnation_of(first, 1) > later

        wait_until(starts_again)
        assert "worker of an earlier incarnation" in first.broker.log.read_text()
        table.leave(OTHER)
        table.close()
        wait_until(lambda: is_ready(first, SHARDS))


def test_load_of_a_newer_worker_and_cause_of_a_newer_node_are_read() -> None:
    assert WorkerLoad.of([1, 2, 3, 4]) == WorkerLoad(1, 2, 3)
    record = PressureRecord("a", 1, 1, 1.0, 0.5, Signal.STORE, 1)
    data = bytearray(encode_frame(record))
    data[-4] = 250  # The cause; the last frame byte is of the name.
    (found,) = FrameDecoder(1_000).feed(bytes(data))
    assert found == replace(record, cause=None)
