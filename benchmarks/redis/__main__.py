"""`python -m benchmarks.redis`: one run, one client process, one redis-server of its own.

Batches of 200 messages with 150 bytes of payload, to 1,000 sessions in turn; then all are settled.
Processor time of client and server is measured apart, since they would have cores of their own.
Durability is the same for all: the operating system's (appendfsync everysec).
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from benchmarks.pages import console
from benchmarks.redis.literal import ADD, LIMIT, REMOVE, TTL_S
from flowguard.broker.stores import open_store
from flowguard.config import Settings
from flowguard.records import NEVER_S, Append, Delivery, PutSession, Settle, StoreOp
from flowguard.stores import Store
from flowguard.types import Publish

SESSIONS: Final = 1_000
BATCH: Final = 200
PAYLOAD_BYTES: Final = 150
TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time per message, microseconds, and memory of Redis per queued message."""

    client_us: float
    server_us: float
    queued_bytes: float | None = None


class Server:
    """A redis-server on a socket in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "redis.sock"
        words = ["--port", "0", "--unixsocket", str(self.path), "--dir", str(folder), "--save", ""]
        words += ["--appendonly", "yes", "--appendfsync", "everysec"]
        self._process = subprocess.Popen(["redis-server", *words], stdout=subprocess.DEVNULL)
        while not self.path.exists():
            assert self._process.poll() is None, "redis-server does not start"
            time.sleep(0.02)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def measured(server: Server | None, found: list[Cost], messages: int) -> Iterator[None]:
    """Add what the block costs for each message."""
    before_s = 0.0 if server is None else server.cpu_s()
    began_s = time.process_time()
    yield
    client_s = time.process_time() - began_s
    server_s = 0.0 if server is None else server.cpu_s() - before_s
    found.append(Cost(1e6 * client_s / messages, 1e6 * server_s / messages))


def batches(messages: int) -> Iterator[list[tuple[str, int]]]:
    """Client id and position of each message."""
    for start in range(0, messages, BATCH):
        numbers = range(start, min(start + BATCH, messages))
        yield [(f"client-{number % SESSIONS}", number // SESSIONS + 1) for number in numbers]


def through_store(store: Store, server: Server | None, messages: int) -> list[Cost]:
    """Queue all messages, then settle them."""
    message = Publish("devices/1/commands", os.urandom(PAYLOAD_BYTES), 1)
    delivery = Delivery(message, 1, False, (), NEVER_S)
    store.commit([PutSession(f"client-{number}", 3_600, None) for number in range(SESSIONS)])
    found: list[Cost] = []
    with measured(server, found, messages):
        for batch in batches(messages):
            ops: list[StoreOp] = [Append(name, pos, delivery) for name, pos in batch]
            store.commit(ops)
    used = used_bytes(server)
    with measured(server, found, messages):
        for batch in batches(messages):
            store.commit([Settle(name, pos, delivery) for name, pos in batch])
    return with_memory(found, used, used_bytes(server), messages)


def record_of(client_id: str, payload: str) -> dict[str, str | int | bool]:
    """A message with the fields of the published example; the script adds its identifier."""
    return {
        "packetType": "PUBLISH",
        "payload": payload,
        "time": time.time_ns() // 1_000_000,
        "clientId": client_id,
        "retained": False,
        "topicName": "devices/1/commands",
        "qos": 1,
    }


def through_literal(client: Any, server: Server, messages: int) -> list[Cost]:
    """The published schema: a script call for each message, 200 in a pipeline."""
    add, remove = client.script_load(ADD), client.script_load(REMOVE)
    payload = b64encode(os.urandom(PAYLOAD_BYTES)).decode()
    found: list[Cost] = []
    with measured(server, found, messages):
        for batch in batches(messages):
            pipeline = client.pipeline(transaction=False)
            for name, _ in batch:
                keys = f"{{{name}}}_messages", f"{{{name}}}_last_packet_id"
                words = json.dumps([record_of(name, payload)])
                pipeline.evalsha(add, 2, *keys, LIMIT, words, TTL_S)
            pipeline.execute()
    used = used_bytes(server)
    with measured(server, found, messages):
        for batch in batches(messages):
            pipeline = client.pipeline(transaction=False)
            for name, pos in batch:
                pipeline.evalsha(remove, 1, f"{{{name}}}_messages", pos)
            pipeline.execute()
    return with_memory(found, used, used_bytes(server), messages)


def used_bytes(server: Server | None) -> int:
    """Memory that Redis uses for its data."""
    if server is None:
        return 0
    import redis

    with redis.Redis(unix_socket_path=str(server.path)) as client:
        facts: dict[str, Any] = client.info("memory")
        return int(facts["used_memory"])


def with_memory(costs: list[Cost], full: int, empty: int, messages: int) -> list[Cost]:
    put, settled = costs
    queued = (full - empty) / messages if full else None
    return [Cost(put.client_us, put.server_us, queued), settled]


def row(name: str, costs: list[Cost]) -> list[str]:
    put, settled = costs
    queued = "" if put.queued_bytes is None else f"{put.queued_bytes:.0f}"
    figures = (put.client_us, put.server_us, settled.client_us, settled.server_us)
    return [name, *(f"{figure:.1f}" for figure in figures), queued]


def main(
    messages: Annotated[int, typer.Option(min=SESSIONS, help="To queue and settle.")] = 100_000,
) -> None:
    """Measure the store on Redis beside the published schema and RocksDB."""
    import redis

    folder = Path(tempfile.mkdtemp(prefix="flowguard-bench-"))
    rows: list[list[str]] = []

    def on_redis(name: str, run: Callable[[Server], list[Cost]]) -> None:
        own = folder / name.replace(" ", "-")
        own.mkdir()
        server = Server(own)
        try:
            rows.append(row(name, run(server)))
        finally:
            server.end()

    def ours(server: Server, layout: str) -> list[Cost]:
        store = {"kind": "redis", "durability": "os"}
        where = {"url": f"unix://{server.path}", "layout": layout}
        opened = open_store(Settings.model_validate({"store": store, "redis": where}), folder)
        try:
            return through_store(opened, server, messages)
        finally:
            opened.close()

    def literal(server: Server) -> list[Cost]:
        with redis.Redis(unix_socket_path=str(server.path)) as client:
            return through_literal(client, server, messages)

    try:
        for layout in ("stream", "zset"):
            on_redis(f"redis {layout}", partial(ours, layout=layout))
        on_redis("published schema", literal)
        store = open_store(Settings.model_validate({"store": {"durability": "os"}}), folder / "db")
        try:
            rows.append(row("rocksdb window", through_store(store, None, messages)))
        finally:
            store.close()
    finally:
        shutil.rmtree(folder)
    table = Table(
        "", "queue: client us", "Redis us", "settle: client us", "Redis us", "bytes queued"
    )
    for each in rows:
        table.add_row(*each)
    console().print(table)
    console().print(f"Processor time per message; batches of {BATCH}, appendfsync everysec.")


if __name__ == "__main__":
    typer.run(main)
