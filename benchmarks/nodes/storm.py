"""5,000 clients connect to three nodes at once, and one of the nodes is restarting."""

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from benchmarks.brokers import HOST
from benchmarks.checks import Grid, Report, at_most, none_of
from benchmarks.conditions import Conditions
from benchmarks.peers import BUILT
from benchmarks.redis.servers import redis_server
from loadgen.storm.crowd import Crowd
from loadgen.storm.plan import CrowdPlan, RetryPolicy, Target

from .running import Node, NodePlan, running, wait_until_whole

KEY = "nodes-storm"
NODES, SHARDS, CLIENTS = 3, 6, 5_000
AFTER_S, LIMIT_S, BACK_MAX_S = 0.5, 120.0, 30.0
CONNACK_S, RETRY = 10.0, RetryPolicy(first_s=1.0, max_s=8.0)


@dataclass(frozen=True)
class Stormed:
    clients: int
    connected: int
    half_s: float
    all_s: float
    """Since the first CONNECT."""
    attempts: float
    """Attempts of each client, the mean."""
    attempts_max: int
    busy: int
    unavailable: int
    failures: dict[str, int]
    lost: int
    """Connections that ended after CONNACK, because the node of their shard gave it away."""
    restarted_s: float
    """From SIGTERM until the three nodes have equal parts again."""

    def report(self) -> Report:
        failed = ", ".join(f"{name} {count:,}" for name, count in self.failures.items() if count)
        rows = (
            ("half of the clients are connected, s", f"{self.half_s:.1f}"),
            ("all are", f"{self.all_s:.1f}"),
            ("attempts of each client; at most", f"{self.attempts:.2f}; {self.attempts_max}"),
            ("CONNACK 0x89 (Server busy)", f"{self.busy:,}"),
            ("CONNACK 0x88 (Server unavailable)", f"{self.unavailable:,}"),
            ("attempts without an answer", failed or "0"),
            ("connections lost with a shard that moved", f"{self.lost:,}"),
            ("the node has ended, started and has shards again, s", f"{self.restarted_s:.1f}"),
        )
        return Report(
            KEY,
            f"{self.clients:,} clients connect to three nodes, of which one restarts",
            f"flowguard ({BUILT.name}), {SHARDS} shards, all processes and clients on two cores. "
            "Durable sessions. The node gets SIGTERM half a second after the first CONNECT, and "
            "is started again when it has ended. A client that fails tries the next node, after "
            "0.5 to 1.5 s at first and at most 8 s.",
            (
                none_of("clients that are not connected", self.clients - self.connected),
                at_most("all are connected after", self.all_s, BACK_MAX_S, " s", 1),
            ),
            (Grid(("what", "reached"), rows),),
        )


async def drive(nodes: list[Node], clients: int) -> Stormed:
    plan = CrowdPlan(clients, RETRY, CONNACK_S, LIMIT_S, durable=True, returns=True)
    places = [(HOST, node.port) for node in nodes]
    crowd = Crowd(Target.resolve(HOST, nodes[0].port), plan, time.monotonic, places)
    restarted_s: list[float] = []

    def restart() -> None:
        time.sleep(AFTER_S)
        began_s = time.monotonic()
        nodes[0].end()
        nodes[0].start()
        wait_until_whole(nodes)
        restarted_s.append(time.monotonic() - began_s)

    async def settle() -> None:
        tally, until_s = crowd.tally, time.monotonic() + LIMIT_S
        await crowd.loop.run(
            lambda now_s: now_s >= until_s or (bool(restarted_s) and tally.settled)
        )

    tally = crowd.tally
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, restart)
        await crowd.connect()
        await settle()
    crowd.loop.close_all()
    return Stormed(
        clients,
        tally.connected,
        tally.share_in_s(50) or float("inf"),
        tally.share_in_s(100) or float("inf"),
        tally.attempts / clients,
        tally.attempts_max,
        tally.busy,
        tally.refused.total(),
        tally.failures,
        tally.lost,
        restarted_s[0],
    )


def measure(conditions: Conditions) -> Stormed:
    BUILT.prepare()
    with TemporaryDirectory(prefix="flowguard-bench-") as name:
        folder = Path(name)
        with (
            redis_server(folder / "redis", "always") as redis,
            running(folder, [NodePlan(redis.url, SHARDS, SHARDS)] * NODES) as nodes,
        ):
            return trio.run(drive, nodes, conditions.count(CLIENTS))
