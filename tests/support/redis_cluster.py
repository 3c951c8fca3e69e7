"""A real Redis Cluster of a test's own: six nodes on free ports, ended by process id."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.brokers import free_ports
from tests.support.patience import HANG_S
from tests.support.redis_server import (
    EVERY_SECOND,
    RedisServer,
    needs_redis,
)

SLOTS = 16_384
PRIMARIES = 3
TIMEOUT_MS = 15_000
"""Node timeout; even on a busy machine no node counts as dead."""


class RedisCluster:
    """Three primaries with a replica each, in `folder`."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.folder = folder
        self._settings = EVERY_SECOND if settings is None else settings
        ports = free_ports(4 * PRIMARIES)
        self.nodes = [
            self._node(number, ports.pop(), ports.pop()) for number in range(2 * PRIMARIES)
        ]

    def _node(self, number: int, port: int, bus_port: int) -> RedisServer:
        settings = {
            "port": str(port),
            "cluster-enabled": "yes",
            "cluster-port": str(bus_port),
            "cluster-node-timeout": str(TIMEOUT_MS),
            "cluster-replica-validity-factor": "0",
            "cluster-allow-replica-migration": "no",
            "repl-ping-replica-period": "1",
            **self._settings,
        }
        node = RedisServer(self.folder / str(number), settings)
        node.port = port
        return node

    @property
    def unix_url(self) -> str:
        """As that of a single server is asked for; here there are ports only."""
        return self.url

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> "RedisCluster":
        for node in self.nodes:
            node.start(wait=False)
        for node in self.nodes:
            node.wait_until_ready()
        first = self.nodes[0]
        for number, node in enumerate(self.nodes):
            self._say(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < PRIMARIES:
                share = SLOTS // PRIMARIES + 1
                last = min((number + 1) * share, SLOTS) - 1
                self._say(node, "CLUSTER", "ADDSLOTSRANGE", number * share, last)
            if node is not first:
                self.meet(node)
        until(lambda: all(self._knows(node, len(self.nodes)) for node in self.nodes))
        for number, replica in enumerate(self.nodes[PRIMARIES:]):
            self._say(replica, "CLUSTER", "REPLICATE", self.id_of(self.nodes[number]))
        until(self.is_whole)
        return self

    def meet(self, node: RedisServer) -> None:
        """Introduce a node to the first one."""
        address = ("127.0.0.1", node.port, node.settings["cluster-port"])
        self._say(self.nodes[0], "CLUSTER", "MEET", *address)

    def join(self) -> RedisServer:
        """A primary without slots joins."""
        node = self._node(len(self.nodes), *free_ports(2))
        node.start()
        self.meet(node)
        self.nodes.append(node)
        until(lambda: all(self._knows(each, len(self.nodes)) for each in self.nodes))
        until(self.is_served)
        return node

    def is_whole(self) -> bool:
        """Whether all slots are served, and each replica has caught up."""
        for node in self.nodes:
            if b"cluster_state:ok" not in self._say(node, "CLUSTER", "INFO"):
                return False
            with node.client() as client:
                facts = client.info("replication")
                if facts["role"] == "slave" and facts["master_link_status"] != "up":
                    return False
        for node in self.nodes[:PRIMARIES]:
            with node.client() as client:
                if client.info("replication").get("connected_slaves") != 1:
                    return False
        return True

    def set_node_timeout(self, milliseconds: int) -> None:
        """How long a node may be silent until the living ones take it for dead."""
        for node in self.living():
            self._say(node, "CONFIG", "SET", "cluster-node-timeout", milliseconds)

    def living(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.is_running]

    def is_served(self) -> bool:
        """Return True if every node reports that all slots are served."""
        return all(b"cluster_state:ok" in self._say(node, "CLUSTER", "INFO") for node in self.nodes)

    def _knows(self, node: RedisServer, count: int) -> bool:
        found = self._say(node, "CLUSTER", "NODES").decode().splitlines()
        return len(found) == count and not any("handshake" in line for line in found)

    def id_of(self, node: RedisServer) -> str:
        return self._say(node, "CLUSTER", "MYID").decode()

    def primary_of(self, slot: int, among: Sequence[RedisServer] | None = None) -> RedisServer:
        """Return the primary of a slot, as a node of `among` reports it."""
        (asked, *_) = among or self.nodes
        for first, last, (_, port, *_), *_ in self._say(asked, "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"nobody has slot {slot}")

    def move(self, slot: int, to: RedisServer, pause_s: float = 0.0) -> None:
        """Move a slot with its keys, a few at a time."""
        source = self.primary_of(slot)
        if source is to:
            return
        self.begin_move(slot, source, to)
        while keys := self._say(source, "CLUSTER", "GETKEYSINSLOT", slot, 10):
            self.move_keys(source, to, keys)
            time.sleep(pause_s)
        for node in (to, source):
            self._say(node, "CLUSTER", "SETSLOT", slot, "NODE", self.id_of(to))

    def begin_move(self, slot: int, source: RedisServer, to: RedisServer) -> None:
        self._say(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self._say(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(to))

    def move_keys(self, source: RedisServer, to: RedisServer, keys: Sequence[bytes]) -> None:
        self._say(source, "MIGRATE", "127.0.0.1", to.port, "", 0, 10_000, "KEYS", *keys)

    @contextmanager
    def moving(self, slots: Sequence[int], seed: int = 1) -> Iterator[Callable[[], int]]:
        """Move slots from primary to primary all the time; yields a function that counts them."""
        chance = random.Random(seed)
        stop = threading.Event()
        count = 0
        failures: list[BaseException] = []

        def move_all() -> None:
            nonlocal count
            try:
                while not stop.is_set():
                    slot = chance.choice(slots)
                    here = self.primary_of(slot)
                    there = [node for node in self.nodes[:PRIMARIES] if node is not here]
                    self.move(slot, chance.choice(there), pause_s=0.002)
                    count += 1
                    stop.wait(0.01)
            except BaseException as error:
                failures.append(error)

        mover = threading.Thread(target=move_all, daemon=True)
        mover.start()
        try:
            yield lambda: count
        finally:
            stop.set()
            mover.join()
        if failures:
            raise failures[0]

    def _say(self, node: RedisServer, *words: object) -> Any:
        with node.client() as client:
            # Callbacks of redis-py would change what CLUSTER answers.
            client.response_callbacks.clear()
            return client.execute_command(*words)

    def remove(self) -> None:
        for node in self.nodes:
            with suppress(ProcessLookupError):
                node.remove()


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


@contextmanager
def redis_cluster(folder: Path, settings: dict[str, str] | None = None) -> Iterator[RedisCluster]:
    """A started cluster; killed at the end."""
    needs_redis()
    cluster = RedisCluster(folder, settings)
    try:
        yield cluster.start()
    finally:
        cluster.remove()
