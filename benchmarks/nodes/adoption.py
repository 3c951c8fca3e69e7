"""A node dies whose two shards have 100,000 sessions: how long until the other one serves them?"""

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from benchmarks import machine
from benchmarks.brokers import HOST, BrokerFailed
from benchmarks.checks import Grid, Report, at_most
from benchmarks.conditions import Conditions
from benchmarks.peers import BUILT
from benchmarks.placement import owned
from benchmarks.redis.servers import RedisServer, redis_server
from flowguard.app.stores import open_store
from flowguard.codec import Connack, Connect, PacketDecoder, encode
from flowguard.config import Settings
from flowguard.records import NEVER_S, Append, Delivery, PutSession, PutSubscription, StoreOp
from flowguard.types import MQTT_5, Properties, Publish, SubscriptionOptions

from .running import Node, NodePlan, running

KEY = "nodes-adoption"
NODES, SHARDS = 2, 4
DEAD = (2, 3)
"""The shards of the node that starts last; they have all sessions."""
SESSIONS, QUEUED_EVERY, BATCH = 100_000, 10, 200
LEASE_S, SERVED_MAX_S, PATIENCE_S = 3.0, 5.0, 120.0
PAYLOAD_BYTES = 150
EXPIRY_S = 3_600


def name_of(number: int) -> str:
    return f"s{number:07}"


def fill(redis: RedisServer, shard: int, count: int, folder: Path) -> None:
    """Sessions with a subscription each; a message waits for one in ten."""
    values = {"url": redis.url, "prefix": f"fg1.{shard}"}
    store = open_store(
        Settings.model_validate({"store": {"kind": "redis"}, "redis": values}), folder
    )
    delivery = Delivery(Publish("a/b", bytes(PAYLOAD_BYTES), 1), 1, False, (), NEVER_S)
    ids = (name_of(number) for number in owned("s", SHARDS, shard))
    for _ in range(0, count, BATCH):
        ops: list[StoreOp] = []
        for number, name in enumerate(islice(ids, BATCH)):
            ops.append(PutSession(name, EXPIRY_S, time.time() + EXPIRY_S))
            ops.append(PutSubscription(name, f"devices/{name}/#", SubscriptionOptions(1)))
            if number % QUEUED_EVERY == 0:
                ops.append(Append(name, 1, delivery))
        store.commit(ops)
    store.close()


@dataclass(frozen=True)
class Adopted:
    sessions: int
    taken_s: float
    """Times since the kill: until the other node takes the shards,"""
    ready_s: float
    """until both processes are ready,"""
    served_s: float
    """and until a client of each of them has its session."""
    cpu_s: float
    """Processor time until then of each of the two processes, the mean,"""
    redis_s: float
    """and of Redis."""

    def report(self) -> Report:
        after_s = self.served_s - self.taken_s
        used = f"{self.cpu_s:.2f}, {self.redis_s:.2f}"
        rows = (
            ("the other node finds it dead, and starts two processes", f"{self.taken_s:.2f}"),
            ("both are ready", f"{self.ready_s:.2f}"),
            ("clients of both have their sessions", f"{self.served_s:.2f}"),
            ("processor time of each of the processes, of Redis", used),
        )
        what = "from finding it dead until both shards are served"
        return Report(
            KEY,
            f"A node with {self.sessions:,} sessions dies",
            f"flowguard ({BUILT.name}), two nodes and Redis on two cores. The node that dies has "
            f"two shards with {self.sessions // 2:,} durable sessions each, every one with a "
            "subscription, and one in ten with a message that waits. Both start at once in "
            f"processes of the other node. redis.lease_s is {LEASE_S:g} s.",
            (at_most(what, after_s, SERVED_MAX_S, " s", 1),),
            (Grid(("since the kill", "s"), rows),),
        )


def measure(conditions: Conditions) -> Adopted:
    BUILT.prepare()
    sessions = conditions.count(SESSIONS)
    with TemporaryDirectory(prefix="flowguard-bench-") as name:
        folder = Path(name)
        with redis_server(folder / "redis", "always") as redis:
            for shard in DEAD:
                fill(redis, shard, sessions // len(DEAD), folder)
            with running(folder, [NodePlan(redis.url, SHARDS, SHARDS)] * NODES) as nodes:
                return adopt(nodes, redis, sessions)


def adopt(nodes: list[Node], redis: RedisServer, sessions: int) -> Adopted:
    found = tuple(sorted(nodes[1].shards()))
    if found != DEAD:
        raise BrokerFailed(f"the second node has the shards {found}")
    past_bytes = nodes[0].log.stat().st_size
    old_pids, old_redis_s = nodes[0].pids(), redis.cpu_s()
    killed_s, killed_at_s = time.monotonic(), time.time()
    nodes[1].kill()
    for shard in DEAD:
        wait_for_session(nodes[0].port, name_of(next(owned("s", SHARDS, shard))))
    served_s = time.monotonic() - killed_s
    cpu_s = mean(machine.cpu_s(pid) for pid in nodes[0].pids() if pid not in old_pids)
    redis_s = redis.cpu_s() - old_redis_s
    lines = nodes[0].log.read_text(errors="replace")[past_bytes:].splitlines()
    taken_s = max(times(lines, "shard taken")) - killed_at_s
    ready_s = max(times(lines, "worker ready")) - killed_at_s
    return Adopted(sessions, taken_s, ready_s, served_s, cpu_s, redis_s)


def times(lines: list[str], event: str) -> Iterator[float]:
    """The times of an event of the log, by the wall clock."""
    for line in lines:
        if event in line:
            yield datetime.fromisoformat(line.split()[0]).timestamp()


def wait_for_session(port: int, client_id: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not has_session(port, client_id):
        if time.monotonic() > until_s:
            raise BrokerFailed(f"{client_id} is not served")
        time.sleep(0.02)


def has_session(port: int, client_id: str) -> bool:
    connect = Connect(
        client_id,
        MQTT_5,
        clean_start=False,
        properties=Properties(session_expiry_interval=EXPIRY_S),
    )
    decoder = PacketDecoder(65_536, MQTT_5, "client")
    try:
        with socket.create_connection((HOST, port), timeout=30) as client:
            client.sendall(encode(connect, MQTT_5))
            decoder.feed(client.recv(4_096))
            answer = decoder.next()
    except OSError:
        return False
    return isinstance(answer, Connack) and answer.session_present
