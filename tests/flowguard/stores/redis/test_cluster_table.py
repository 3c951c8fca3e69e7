"""The table of a cluster in a real Redis."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from flowguard.cluster.shards import NodeRecord
from flowguard.config import Settings
from flowguard.stores.redis.cluster_table import ClusterTable
from tests.support.redis_server import ALWAYS, redis_server

pytestmark = pytest.mark.slow
A, B = NodeRecord("a:1", 4), NodeRecord("b:1", 4, gives=2, awaits=(1, 3), clients=7, slots=9)


def test_table_keeps_marks_of_drained_nodes_and_reads_records_of_newer_versions(
    tmp_path: Path,
) -> None:
    with redis_server(tmp_path / "redis", ALWAYS) as redis:
        values = {"store": {"kind": "redis"}, "redis": {"url": redis.url}}
        settings = Settings.model_validate(values)
        table = ClusterTable(settings, "id", lambda: 0.0, lambda _: None)
        table.meet(A, {})
        assert table.meet(B, {}).nodes == {"a:1": A, "b:1": B}

        table.mark(["a:1"], is_drained=True)
        found = table.meet(B, {})
        assert found.drained == {"a:1"}
        assert found.nodes == {"a:1": replace(A, is_leaving=True), "b:1": B}
        table.mark(["a:1"], is_drained=False)
        assert not table.meet(A, {}).drained

        table.mark(["a:1"], is_drained=True)
        table.leave("a:1")
        assert not table.meet(A, {}).drained

        newer = json.dumps(asdict(A) | {"of_a_newer_version": 1})
        with redis.client() as client:
            now_ms = client.hget("fg1:cluster", "na:1").split()[0].decode()
            client.hset("fg1:cluster", "na:1", f"{now_ms} id {newer}")
        assert table.meet(B, {}).nodes["a:1"] == A
        table.close()
