"""Three nodes of a cluster as one broker. A client connects to one after the other."""

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any

from benchmarks.brokers import free_block
from tests.interop.broker import PATIENCE_S, Broker, running_broker
from tests.support.redis_server import ALWAYS, redis_server

NODES = "three nodes"
COUNT = 3
ENVIRONMENT = {"FLOWGUARD_CLUSTER__SHARDS": str(COUNT)}
HTTP = "http on "


@contextmanager
def three_nodes(folder: Path) -> Iterator[Broker]:
    """Run nodes with one shard each; they are killed at the end."""
    with redis_server(folder / "redis", ALWAYS) as redis, ExitStack() as stack:
        words = ("--store", "redis", "--redis-url", redis.url, "--workers", str(COUNT))
        nodes = []
        for index in range(COUNT):
            own = ("--http", "127.0.0.1:0", "--cluster", f"127.0.0.1:{free_block(2 * COUNT)}")
            running = running_broker(
                folder / f"node-{index}",
                *(*words, *own),
                environment=ENVIRONMENT,
                exit_code=-SIGKILL,
            )
            nodes.append(stack.enter_context(running))
        _wait_until_whole([_url_of(node) for node in nodes], nodes)
        first = nodes[0]
        first.workers, first.ports = COUNT, tuple(node.port for node in nodes)
        yield first
        for node in nodes:
            node.process.kill()
            node.process.wait(PATIENCE_S)


def _url_of(node: Broker) -> str:
    assert node.process.stdout is not None
    line = node.process.stdout.readline()
    assert line.startswith(HTTP), line
    return line.removeprefix(HTTP).strip()


def _wait_until_whole(urls: list[str], nodes: list[Broker]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not all(map(_is_whole, urls)):
        for node in nodes:
            assert node.process.poll() is None, node.log.read_text()
        assert time.monotonic() < until_s
        time.sleep(0.1)


def _is_whole(url: str) -> bool:
    """Return True if each node has a shard, and all shards serve."""
    with suppress(OSError), urllib.request.urlopen(f"{url}cluster", timeout=5) as answer:
        table: Any = json.load(answer)
        counts = [len(node["shards"]) for node in table["nodes"].values()]
        return counts == [1] * COUNT and not table["down"]
    return False
