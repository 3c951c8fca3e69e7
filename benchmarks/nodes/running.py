"""Nodes of one cluster as processes on this machine, on a redis-server of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benchmarks import machine
from benchmarks.brokers import (
    HOST,
    STOP_LIMIT_S,
    BrokerFailed,
    free_block,
    free_ports,
    tail,
)
from benchmarks.peers import COMPILED

WHOLE_S = 60.0
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class NodePlan:
    """Options of a node. `settings` are `FLOWGUARD_...` variables."""

    redis_url: str
    shards: int
    shards_max: int
    settings: Mapping[str, str] = field(default_factory=dict)
    site: str = ""
    """A folder with a module `sitecustomize`."""


class Node:
    """One node: its supervisor, and the workers of its shards."""

    def __init__(self, folder: Path, plan: NodePlan) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._plan = plan
        self.port, self.http_port = free_ports(2)
        self.name = f"{HOST}:{free_block(2 * plan.shards)}"
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the processes; `wait` waits for them. They inherit the core of the caller."""
        plan = self._plan
        variables = {
            **os.environ,
            "FLOWGUARD_CLUSTER__SHARDS": str(plan.shards),
            "PYTHONPATH": f"{COMPILED if COMPILED.is_dir() else ROOT / 'src'}:{plan.site}:{ROOT}",
            **plan.settings,
        }
        words = [sys.executable, "-m", "flowguard", "serve", "--store", "redis"]
        words += ["--redis-url", plan.redis_url, "--cluster", self.name]
        words += ["--workers", str(plan.shards_max), "--listen", f"{HOST}:{self.port}"]
        words += ["--http", f"{HOST}:{self.http_port}", "--data", str(self._folder / "data")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables
            )

    def wait(self) -> None:
        """Wait until it runs a shard. Raises `BrokerFailed`."""
        until_s = time.monotonic() + WHOLE_S
        while not self._runs_a_shard():
            if not self.is_alive or time.monotonic() > until_s:
                raise BrokerFailed(f"a node runs no shard: {tail(self.log)}")
            time.sleep(0.1)

    def _runs_a_shard(self) -> bool:
        try:
            return bool(self.shards())
        except (OSError, KeyError):
            return False

    def get(self, path: str) -> Any:
        """Ask its HTTP port. Raises OSError."""
        with urlopen(f"http://{HOST}:{self.http_port}{path}", timeout=10) as answer:
            return json.load(answer)

    def shards(self) -> list[int]:
        """The shards that this node runs, as itself reads the table."""
        found: list[int] = self.get("/cluster")["nodes"][self.name]["shards"]
        return found

    def pids(self) -> list[int]:
        return [self.pid, *machine.children(self.pid)]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes."""
        for pid in self.pids():
            os.kill(pid, number)

    def kill(self) -> None:
        """End all processes at once, as a machine that dies."""
        if self.is_alive:
            self.signal(signal.SIGKILL)
            assert self._process is not None
            self._process.wait()

    def end(self) -> None:
        if self.is_alive:
            assert self._process is not None
            self._process.terminate()
            try:
                self._process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.kill()


def wait_until_whole(nodes: list[Node]) -> None:
    """Wait until the nodes have equal parts of all shards, and all workers serve.

    Raises `BrokerFailed`."""
    until_s = time.monotonic() + WHOLE_S
    while not is_whole(nodes):
        if time.monotonic() > until_s:
            raise BrokerFailed(f"the cluster is not whole: {tail(nodes[0].log)}")
        time.sleep(0.2)


def is_whole(nodes: list[Node]) -> bool:
    try:
        tables = [node.get("/cluster") for node in nodes]
        for node in nodes:
            with urlopen(f"http://{HOST}:{node.http_port}/ready", timeout=10):
                pass
    except OSError:
        return False
    counts = [len(tables[0]["nodes"].get(node.name, {"shards": ()})["shards"]) for node in nodes]
    return max(counts) - min(counts) <= 1 and not any(table["down"] for table in tables)


@contextmanager
def running(folder: Path, plans: list[NodePlan], core: int | None = None) -> Iterator[list[Node]]:
    """Nodes that serve, one started after the other; they end with the block."""
    nodes: list[Node] = []
    with ExitStack() as stack:
        for index, plan in enumerate(plans):
            node = Node(folder / f"node-{index}", plan)
            with machine.pinned(core):
                node.start()
            stack.callback(node.end)
            node.wait()
            nodes.append(node)
        wait_until_whole(nodes)
        yield nodes
        for node in nodes:
            if node.log.read_text(errors="replace").count("Traceback"):
                raise BrokerFailed(f"a traceback is in the log: {tail(node.log)}")
