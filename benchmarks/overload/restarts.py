"""A worker is killed twenty times under 2,000 clients. What do the clients of the other notice?

Each client has a durable session and publishes one message per second, QoS 1. At first no worker is
killed. Then one worker after the other is; the next one when all clients are back and some seconds
have passed.
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final
from urllib.request import urlopen

import trio

from benchmarks.brokers import HOST, Broker, free_port
from benchmarks.checks import Columns, Grid, Report, at_most, none_of
from benchmarks.conditions import Conditions
from benchmarks.peers import BUILT
from flowguard.app.workers.seat import name_of
from flowguard.cluster.members import owner_among
from flowguard.codec import Packet, Puback
from flowguard.codec.encoder import publish_frame
from flowguard.types import NO_PROPERTIES, Publish
from loadgen.storm.client import Client, Stage
from loadgen.storm.crowd import Crowd
from loadgen.storm.plan import CrowdPlan, Target
from loadgen.storm.tally import LatencyHistogram

KEY = "overload-restarts"
WORKERS, CLIENTS, KILLS = 2, 2_000, 20
PERIOD_S = 1.0
CALM_S, PAUSE_S, BACK_MAX_S = 30.0, 6.0, 120.0
P99_RATIO_MAX, ATTEMPTS_MAX = 2.0, 2.0


class TwoWorkers(Broker):
    name = f"flowguard with {WORKERS} workers"
    reports_port = True

    def __init__(self) -> None:
        self.http_port = 0

    def prepare(self) -> str:
        return BUILT.prepare()

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        self.http_port = free_port()
        words = BUILT.command(port, folder, scenario)
        return [*words, "--workers", str(WORKERS), "--http", f"{HOST}:{self.http_port}"]

    def pid_of(self, worker: int) -> int:
        """The process of a worker that serves."""
        with urlopen(f"http://{HOST}:{self.http_port}/workers/{worker}/status") as answer:
            return int(json.load(answer)["pid"])


@dataclass(frozen=True)
class Kill:
    worker: int
    disconnected: int
    others_disconnected: int
    back_s: float
    """Time from the kill until all clients were connected again."""
    attempts: float
    """Attempts to connect of each disconnected client."""
    rejected: int
    others_p99_ms: float


@dataclass(frozen=True)
class Restarts:
    calm_p99_ms: float
    kills: tuple[Kill, ...]
    failed: dict[str, int]
    """Attempts to connect without success, by reason."""

    def report(self) -> Report:
        ratio = max(kill.others_p99_ms for kill in self.kills) / self.calm_p99_ms
        worst = max(kill.attempts for kill in self.kills)
        others = sum(kill.others_disconnected for kill in self.kills)
        return Report(
            KEY,
            f"A worker killed {len(self.kills)} times under {CLIENTS:,} clients",
            f"{CLIENTS:,} durable sessions, each with one message per second, QoS 1. Broker and "
            "clients share the cores, so a worker that starts takes time from the other one.",
            (
                at_most("others' worst p99, of that of a calm time", ratio, P99_RATIO_MAX, "x", 2),
                none_of("others that were disconnected", others),
                at_most("attempts of each disconnected client", worst, ATTEMPTS_MAX, "", 2),
            ),
            (Grid.of(COLUMNS, self.kills),),
            (
                "Others are clients of the worker that was not killed. The column of their "
                "p99 counts from PUBLISH to PUBACK until all clients were back. In a calm time "
                f"it was {self.calm_p99_ms:,.1f} ms.",
                "Attempts without success: "
                f"{', '.join(f'{each}: {n:,}' for each, n in self.failed.items()) or 'none'}.",
            ),
        )


COLUMNS: Columns[Kill] = {
    "worker": lambda kill: f"{kill.worker}",
    "disconnected": lambda kill: f"{kill.disconnected:,}",
    "of others": lambda kill: f"{kill.others_disconnected:,}",
    "all back after": lambda kill: f"{kill.back_s:,.1f} s",
    "attempts of each": lambda kill: f"{kill.attempts:.2f}",
    "rejected": lambda kill: f"{kill.rejected:,}",
    "others' p99": lambda kill: f"{kill.others_p99_ms:,.1f} ms",
}


@final
class Resident:
    """A client that publishes to itself alone, one message at a time."""

    def __init__(self, run: "Run", client: Client) -> None:
        names = [name_of(index) for index in range(WORKERS)]
        self._run = run
        self._client = client
        self._packet_id = 0
        self._sent_s = 0.0
        message = Publish(f"restarts/{client.client_id}", bytes(16))
        version = run.crowd.loop.target.version
        self._frame = publish_frame(message, version, 1, False, NO_PROPERTIES)
        self.owner = names.index(owner_among(names, client.client_id))
        self.connections = 0

    def connected(self, now_s: float) -> None:
        self._packet_id = 0
        self.connections += 1
        if self.connections == 1:
            first_s = now_s + self._run.crowd.rng.uniform(0, PERIOD_S)
            self._run.crowd.loop.call_at(first_s, self._publish)

    def _publish(self, now_s: float) -> None:
        self._run.crowd.loop.call_at(now_s + PERIOD_S, self._publish)
        if self._client.stage is Stage.IN and not self._packet_id:
            assert self._client.wire is not None
            head, tail = self._frame
            self._packet_id, self._sent_s = 1, now_s
            self._client.wire.write(head + b"\0\1" + tail)

    def receive(self, packet: Packet, now_s: float) -> None:
        if isinstance(packet, Puback):
            self._packet_id = 0
            self._run.acknowledgement[self.owner].record(now_s - self._sent_s)


@final
class Run:
    def __init__(self, broker: TwoWorkers, port: int, kills: int, calm_s: float) -> None:
        plan = CrowdPlan(CLIENTS, seconds=BACK_MAX_S, durable=True, returns=True)
        self._broker = broker
        self._kills = kills
        self._calm_s = calm_s
        self.crowd = Crowd(Target.resolve(HOST, port), plan, time.monotonic)
        self.acknowledgement = [LatencyHistogram() for _ in range(WORKERS)]
        self._residents = [Resident(self, client) for client in self.crowd.clients]
        for client, resident in zip(self.crowd.clients, self._residents, strict=True):
            client.part = resident

    async def measure(self) -> Restarts:
        try:
            assert await self.crowd.connect()
            await self._for(PAUSE_S)
            with self._latencies() as calm:
                await self._for(self._calm_s)
            before = self._failed()
            kills = []
            for number in range(self._kills):
                kills.append(await self._kill(number % WORKERS))
                await self._for(PAUSE_S)
            failed = self._failed() - before
            await self.crowd.leave()
        finally:
            self.crowd.loop.close_all()
        calm_s = max(each.percentile_s(99) or 0.0 for each in calm)
        return Restarts(calm_s * 1e3, tuple(kills), dict(failed))

    async def _kill(self, worker: int) -> Kill:
        """Kill a worker, and wait until its clients are back."""
        tally = self.crowd.tally
        pid = await trio.to_thread.run_sync(self._broker.pid_of, worker)
        attempts, rejected = tally.attempts, tally.busy + tally.refused.total()
        lost, connections = tally.lost, self._connections()
        with self._latencies() as latencies:
            began_s = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            until_s = began_s + BACK_MAX_S
            await self.crowd.loop.run(lambda now_s: tally.lost > lost or now_s >= until_s)
            await self.crowd.loop.run(lambda now_s: tally.settled or now_s >= until_s)
            back_s = time.monotonic() - began_s
        disconnected = tally.lost - lost
        others_s = latencies[1 - worker].percentile_s(99) or 0.0
        return Kill(
            worker,
            disconnected,
            (self._connections() - connections)[1 - worker],
            back_s if tally.settled else float("inf"),
            (tally.attempts - attempts) / max(1, disconnected),
            tally.busy + tally.refused.total() - rejected,
            others_s * 1e3,
        )

    def _connections(self) -> Counter[int]:
        """How often clients of each worker have connected."""
        counts: Counter[int] = Counter()
        for each in self._residents:
            counts[each.owner] += each.connections
        return counts

    def _failed(self) -> Counter[str]:
        tally = self.crowd.tally
        codes = {f"0x{code:02x}": count for code, count in tally.refused.items()}
        return Counter({**tally.failures, **codes, "busy": tally.busy})

    async def _for(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        await self.crowd.loop.run(lambda now_s: now_s >= until_s)

    @contextmanager
    def _latencies(self) -> Iterator[list[LatencyHistogram]]:
        """The latencies of each worker's clients within the block."""
        self.acknowledgement = [LatencyHistogram() for _ in range(WORKERS)]
        yield self.acknowledgement


def measure(conditions: Conditions) -> Restarts:
    broker = TwoWorkers()
    kills, calm_s = conditions.count(KILLS), conditions.scaled(CALM_S, 3.0)
    if conditions.cores is not None:  # Else there is one core.
        os.sched_setaffinity(0, {conditions.cores.broker, conditions.cores.generator})
    with broker.running(None, KEY) as running:
        return trio.run(Run(broker, running.port, kills, calm_s).measure)
