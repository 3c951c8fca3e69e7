"""Nodes that start without Redis, at the address of another node, or with a port that is taken."""

import socket
import time
import urllib.error
from contextlib import suppress
from pathlib import Path

import pytest

from flowguard.app.workers.data_folder import node_id
from flowguard.cluster.shards import NodeRecord
from flowguard.codec.packets import Disconnect
from flowguard.config import Settings
from flowguard.errors import LeasedError
from flowguard.stores.redis.cluster_table import ClusterTable
from flowguard.types import ReasonCode
from tests.flowguard.workers.clients import names, stopped
from tests.flowguard.workers.test_cluster import (
    SHARDS,
    arguments_of,
    connect,
    is_here,
    is_ready,
    node,
    two_nodes,
    wait_until,
)
from tests.interop.broker import PATIENCE_S, start
from tests.support.redis_server import ALWAYS, RedisServer, redis_server
from tests.torture.nodes import free_block

pytestmark = pytest.mark.slow
HOST = "127.0.0.1"


def settings_of(redis: RedisServer, address: str) -> Settings:
    return Settings.model_validate(
        {
            "store": {"kind": "redis"},
            "redis": {"url": redis.url, "lease_s": 1},
            "cluster": {"address": address, "shards": SHARDS},
        }
    )


def test_node_that_starts_without_redis_waits_for_it(tmp_path: Path) -> None:
    settings = {"FLOWGUARD_REDIS__TIMEOUT_S": "0.5"}
    with redis_server(tmp_path / "redis", ALWAYS) as redis:
        redis.pause()
        with node(tmp_path / "a", redis, free_block(2 * SHARDS), settings=settings) as first:
            assert first.get("/cluster")["trouble"]
            with pytest.raises(urllib.error.HTTPError) as found, first.open("/ready"):
                pass
            with found.value as answer:
                assert first.get("/cluster")["trouble"] in answer.read().decode()
            redis.resume()
            wait_until(lambda: is_ready(first, SHARDS))
            assert "cluster table available again" in first.broker.log.read_text()


def test_second_node_at_one_address_ends(tmp_path: Path) -> None:
    port = free_block(2 * SHARDS)
    address = f"{HOST}:{port}"
    environment = {"CLUSTER__SHARDS": str(SHARDS), "REDIS__LEASE_S": "1"}
    with redis_server(tmp_path / "redis", ALWAYS) as redis:
        settings = settings_of(redis, address)
        table = ClusterTable(settings, "another", time.monotonic, time.sleep)
        record = NodeRecord(address, 0)
        with start(
            "serve",
            *("--listen", "127.0.0.1:0", "--http", "none", "--data", str(tmp_path / "a")),
            *arguments_of(redis, port),
            environment={f"FLOWGUARD_{name}": value for name, value in environment.items()},
        ) as second:
            while second.poll() is None:
                table.meet(record, {})
                time.sleep(0.1)
            _, errors = second.communicate(timeout=PATIENCE_S)
        assert second.returncode == 2
        assert f"another node lives at cluster.address {address}" in errors
        assert table.meet(record, {}).nodes == {address: record}
        table.close()


def test_address_belongs_to_one_node_until_its_signs_of_life_end(tmp_path: Path) -> None:
    record = NodeRecord(f"{HOST}:7000", 1)
    with redis_server(tmp_path / "redis", ALWAYS) as redis:
        settings = settings_of(redis, record.name)
        ids = [node_id(tmp_path), node_id(tmp_path), "another"]
        before, again, other = [
            ClusterTable(settings, each, time.monotonic, time.sleep) for each in ids
        ]
        before.meet(record, {0: 1})
        again.meet(record, {})  # It has the data directory of the first.
        with pytest.raises(LeasedError):
            other.meet(record, {0: 2})
        other.leave(record.name)
        assert before.meet(record, {}).shards[0].incarnation == 1
        wait_until(lambda: has_met(other, record))
        with pytest.raises(LeasedError):
            before.meet(record, {})
        for table in (before, again, other):
            table.close()


def has_met(table: ClusterTable, record: NodeRecord) -> bool:
    with suppress(LeasedError):
        table.meet(record, {})
        return True
    return False


def test_shard_of_a_hung_supervisor_starts_at_another_node_when_its_port_is_free(
    tmp_path: Path,
) -> None:
    settings = {"FLOWGUARD_NODE__WORKER_TIMEOUT_S": "5"}
    with (
        redis_server(tmp_path / "redis", ALWAYS) as redis,
        two_nodes(tmp_path, redis, settings=settings) as (first, second),
    ):
        (shard,) = [shard for shard in range(SHARDS) if is_here(first, shard)]
        port = int(second.get("/cluster")["node"].rpartition(":")[2]) + 2 * shard
        (name,) = names(shard, 1, "kept")
        client, _ = connect(first, name)
        with stopped(first.broker.process.pid):
            with socket.create_server((HOST, port)):
                assert client.read() == Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
                for line in (f"cannot listen on {HOST}:{port}", "worker ended; it starts again"):
                    wait_until(lambda line=line: line in second.broker.log.read_text())
            wait_until(lambda: is_ready(second, SHARDS))
            again, connack = connect(second, name)
            assert connack.session_present
            again.close()
        client.close()
