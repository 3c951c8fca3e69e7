"""A node of a cluster that an operator drains."""

from pathlib import Path
from urllib.error import HTTPError

import pytest

from flowguard.codec.packets import Disconnect
from flowguard.types import ReasonCode
from tests.flowguard.workers.clients import Machine, names
from tests.flowguard.workers.test_cluster import (
    SHARDS,
    connect,
    is_ready,
    shards_of,
    two_nodes,
    wait_until,
)
from tests.interop.broker import PATIENCE_S, start
from tests.support.redis_server import ALWAYS, redis_server

pytestmark = pytest.mark.slow


def command(*words: str) -> tuple[int, str]:
    """Run `flowguard`; return its exit code and all that it prints."""
    with start(*words) as running:
        printed, errors = running.communicate(timeout=PATIENCE_S)
    return running.returncode, printed + errors


def test_drained_node_gives_its_shards_away_until_a_rebalance(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis", ALWAYS) as redis, two_nodes(tmp_path, redis) as nodes:
        drain_and_rebalance(*nodes)


def drain_and_rebalance(first: Machine, second: Machine) -> None:
    nodes = [running.get("/cluster")["node"] for running in (first, second)]
    url = ("--url", f"http://{first.http}")
    wait_until(lambda: [len(shards_of(first, name)) for name in nodes] == [1, 1])
    wait_until(lambda: is_ready(second, 1))
    (name,) = names(shards_of(first, nodes[1])[0], 1, "drained")
    client, _ = connect(first, name)

    code, printed = command("cluster", "drain", nodes[1], *url)
    assert code == 0, printed
    assert shards_of(first, nodes[1]) == []
    assert first.get("/cluster")["nodes"][nodes[1]]["state"] == "drained"
    wait_until(lambda: second.get("/cluster")["moves"] is None)  # It reads the table later.
    with pytest.raises(HTTPError) as error:
        second.text("/ready")
    assert (error.value.code, b"; draining" in error.value.read()) == (503, True)
    ending = client.read()
    assert isinstance(ending, Disconnect)
    assert ending.reason_code == ReasonCode.USE_ANOTHER_SERVER
    assert ending.properties.server_reference == f"node.example:{nodes[0].rpartition(':')[2]}"
    client.close()
    client, connack = connect(first, name)
    assert connack.session_present
    assert "action=cluster/drain" in first.broker.log.read_text()

    # The first node is now the only one that can run the shards.
    code, printed = command("cluster", "drain", nodes[0], *url)
    assert code == 1
    assert f"the other nodes can run 0 of {SHARDS} shards" in printed
    code, printed = command("cluster", "drain", "127.0.0.1:1", *url)
    assert code == 1
    assert "no living node 127.0.0.1:1" in printed

    code, printed = command("drain", "--over", "1s", *url)
    assert code == 1
    assert "use flowguard cluster drain, or SIGTERM" in printed

    code, printed = command("cluster", "rebalance", *url)
    assert code == 0, printed
    wait_until(lambda: [len(shards_of(second, name)) for name in nodes] == [1, 1])
    wait_until(lambda: is_ready(second, 1))
    client.close()
    for running in (first, second):
        client, connack = connect(running, name)
        assert connack.session_present
        client.close()
