"""What is measured: our store on Redis and on RocksDB, the published schema, its predecessor."""

import json
import os
import time
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.redis.literal import ADD, GET, LIMIT, REMOVE, TTL_S
from benchmarks.redis.postgres import Placed, Tables
from benchmarks.redis.servers import (
    DEFAULT_NODE_BYTES,
    NODE_BYTES,
    RedisServer,
    Server,
    postgres_server,
    redis_server,
)
from flowguard.app.stores import open_store
from flowguard.config import Settings
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    PutSession,
    PutSubscription,
    Settle,
    StoreOp,
)
from flowguard.stores import Store
from flowguard.types import Publish, SubscriptionOptions

TOPIC: Final = "devices/1/commands"
PAYLOAD_BYTES: Final = 150
STREAM, ZSET, LITERAL = "redis stream", "redis zset", "published schema"
STREAM_DEFAULT: Final = "redis stream, nodes as Redis comes"
POSTGRES, POSTGRES_EACH = "postgresql, batched", "postgresql, each"
ROCKS = "rocksdb window"
NAMES: Final = (STREAM, ZSET, LITERAL, POSTGRES, POSTGRES_EACH, ROCKS)
OS, FSYNC = "os", "fsync"
"""Levels: every second or each commit is forced to the disk."""


class Subject(ABC):
    """One way to keep queues; a batch is one commit, unless the name says otherwise."""

    server: Server | None = None

    @abstractmethod
    def queue(self, batch: Sequence[Placed]) -> None:
        """A message for each client at its position."""

    @abstractmethod
    def settle(self, batch: Sequence[Placed]) -> None:
        """They are acknowledged."""

    @abstractmethod
    def fetch(self, client_id: str) -> int:
        """Read and decode all that is queued for one client; how many they were."""

    def server_cpu_s(self) -> float:
        return 0.0 if self.server is None else self.server.cpu_s()

    def used_bytes(self) -> int | None:
        """Memory of the server for its data."""
        return self.server.used_bytes() if isinstance(self.server, RedisServer) else None


class Ours(Subject):
    """The store behind our brokers."""

    def __init__(
        self, kind: str, level: str, folder: Path, server: RedisServer | None = None
    ) -> None:
        self._how = kind, level, server
        self._store = open_ours(kind, level, folder, server)
        self.server = server
        message = Publish(TOPIC, os.urandom(PAYLOAD_BYTES), 1)
        self._delivery = Delivery(message, 1, False, (), NEVER_S)
        self._known: set[str] = set()

    def close(self) -> None:
        self._store.close()

    def reopen(self, folder: Path) -> None:
        kind, level, server = self._how
        self._store = open_ours(kind, level, folder, server)

    def count_sessions(self) -> int:
        return sum(1 for _ in self._store.sessions())

    def begin(self, names: Sequence[str]) -> None:
        """Sessions with a subscription each."""
        self._known.update(names)
        for start in range(0, len(names), 200):
            ops: list[StoreOp] = []
            for name in names[start : start + 200]:
                ops.append(PutSession(name, 3_600, None))
                ops.append(PutSubscription(name, f"devices/{name}/#", SubscriptionOptions(1)))
            self._store.commit(ops)

    def queue(self, batch: Sequence[Placed]) -> None:
        fresh = [name for name, _ in batch if name not in self._known]
        if fresh:
            self.begin(list(dict.fromkeys(fresh)))
        self._store.commit([Append(name, pos, self._delivery) for name, pos in batch])

    def settle(self, batch: Sequence[Placed]) -> None:
        self._store.commit([Settle(name, pos, self._delivery) for name, pos in batch])

    def fetch(self, client_id: str) -> int:
        count = pos = 0
        while page := self._store.fetch(client_id, pos, 1_000):
            count, pos = count + len(page), page[-1].pos
        return count


class Literal(Subject):
    """The published schema: a script call for each message, a batch of them in a pipeline."""

    def __init__(self, client: Any, server: Server) -> None:
        self._client = client
        self.server = server
        self._add, self._get, self._remove = map(client.script_load, (ADD, GET, REMOVE))
        self._payload = b64encode(os.urandom(PAYLOAD_BYTES)).decode()

    def queue(self, batch: Sequence[Placed]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for name, _ in batch:
            keys = f"{{{name}}}_messages", f"{{{name}}}_last_packet_id"
            words = json.dumps([record_of(name, self._payload)])
            pipeline.evalsha(self._add, 2, *keys, LIMIT, words, TTL_S)
        pipeline.execute()

    def settle(self, batch: Sequence[Placed]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for name, pos in batch:
            pipeline.evalsha(self._remove, 1, f"{{{name}}}_messages", pos)
        pipeline.execute()

    def fetch(self, client_id: str) -> int:
        found = self._client.evalsha(self._get, 1, f"{{{client_id}}}_messages")
        return len([json.loads(each) for each in found])


def record_of(client_id: str, payload: str) -> dict[str, str | int | bool]:
    """A message with the seven fields of the published example; the script adds its identifier."""
    return {
        "packetType": "PUBLISH",
        "payload": payload,
        "time": time.time_ns() // 1_000_000,
        "clientId": client_id,
        "retained": False,
        "topicName": TOPIC,
        "qos": 1,
    }


class InTables(Subject):
    """The predecessor of the published schema."""

    def __init__(self, tables: Tables, server: Server) -> None:
        self._tables = tables
        self.server = server

    def queue(self, batch: Sequence[Placed]) -> None:
        self._tables.queue(batch, time.time_ns() // 1_000_000)

    def settle(self, batch: Sequence[Placed]) -> None:
        self._tables.settle(batch)

    def fetch(self, client_id: str) -> int:
        return self._tables.fetch(client_id)


def open_ours(kind: str, level: str, folder: Path, server: RedisServer | None) -> Store:
    settings: dict[str, Any] = {"store": {"kind": kind, "durability": level}}
    if server is not None:
        settings["redis"] = {"url": server.url, "layout": kind}
        settings["store"]["kind"] = "redis"
    return open_store(Settings.model_validate(settings), folder)


@contextmanager
def opened(name: str, level: str, folder: Path) -> Iterator[Subject]:
    """One of NAMES, new in `folder`, which is not there yet. Raises `Unavailable`."""
    fsync = "always" if level == FSYNC else "everysec"
    if name == ROCKS:
        with closing(Ours("rocks", level, folder)) as ours:
            yield ours
    elif name in (POSTGRES, POSTGRES_EACH):
        with postgres_server(folder, syncs=level == FSYNC) as (server, where):
            payload = os.urandom(PAYLOAD_BYTES)
            tables = Tables(where, TOPIC, payload, per_message=name == POSTGRES_EACH)
            try:
                yield InTables(tables, server)
            finally:
                tables.close()
    elif name == LITERAL:
        import redis

        with (
            redis_server(folder, fsync) as server,
            redis.Redis(unix_socket_path=str(server.path)) as client,
        ):
            yield Literal(client, server)
    else:
        node_bytes = DEFAULT_NODE_BYTES if name == STREAM_DEFAULT else NODE_BYTES
        layout = name.removeprefix("redis ").partition(",")[0]
        with (
            redis_server(folder, fsync, node_bytes) as server,
            closing(Ours(layout, level, folder, server)) as ours,
        ):
            yield ours
