"""Redis as nodes of a cluster use it in torture, and the way to it."""

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.redis_cluster import RedisCluster, redis_cluster
from tests.support.redis_pair import RedisPair
from tests.support.redis_server import RedisServer, redis_server
from tests.torture.network import REDIS, Network
from tests.torture.redis_faults import LEVELS, until_whole

NODES = 3
DISK_BYTES = 256 * 2**20
NODE_TIMEOUT_MS = 3_000


@dataclass
class Place:
    """Redis, and the way to it."""

    redis: Any
    """A `RedisServer`, a `RedisPair` or a `RedisCluster`."""
    url: str
    network: Network | None = None


@contextmanager
def place_of(kind: str, level: str, folder: Path) -> Iterator[Place]:
    """Start the servers of a kind: server, network, pair or cluster."""
    settings: Mapping[str, str] = LEVELS[level]
    if kind == "cluster":
        with redis_cluster(folder, dict(settings)) as cluster:
            cluster.set_node_timeout(NODE_TIMEOUT_MS)
            yield Place(cluster, cluster.url)
    elif kind == "pair":
        pair = RedisPair(folder, dict(settings))
        try:
            pair.start()
            until_whole(pair, time.sleep)
            yield Place(pair, pair.unix_url)
        finally:
            pair.remove()
    elif kind == "network":
        network = Network(NODES)
        folder.mkdir()
        mount(folder)
        try:
            with redis_server(
                folder, {**settings, "bind": "0.0.0.0", "protected-mode": "no"}
            ) as server:
                yield Place(server, f"redis://{REDIS}:{server.port}/0", network)
        finally:
            network.close()
    else:
        with redis_server(folder, dict(settings)) as server:
            yield Place(server, server.url)


def mount(folder: Path) -> None:
    """Give the directory a small file system of its own, until this process ends."""
    words = ("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder))
    subprocess.run(words, check=True)


def fill(folder: Path) -> None:
    """Leave no byte of the file system of a directory."""
    with suppress(OSError), (folder / "full").open("wb", buffering=0) as out:
        while out.write(bytes(4096)):
            pass
    assert not shutil.disk_usage(folder).free


def role(server: RedisServer) -> str:
    if not server.is_running:
        return "dead"
    with server.client() as client:
        return str(client.info("replication")["role"])


def is_whole(cluster: RedisCluster) -> bool:
    """Return True if each primary has a replica that has caught up."""
    count = 0
    for node in cluster.nodes:
        with node.client() as client:
            found = client.info("replication")
        if found["role"] == "master":
            count += found["connected_slaves"] == 1
        elif found["master_link_status"] != "up":
            return False
    return count == len(cluster.nodes) // 2 and cluster.is_served()


def slots_of(cluster: RedisCluster, node: RedisServer) -> range:
    with node.client() as client:
        client.response_callbacks.clear()
        for first, last, (_, port, *_), *_ in client.execute_command("CLUSTER", "SLOTS"):
            if port == node.port:
                return range(first, last + 1)
    raise AssertionError("a primary without slots")
