"""The broker with its sessions on Redis, and on RocksDB: durable QoS 1 by its processor time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import machine
from benchmarks.brokers import Broker, Running
from benchmarks.build import build
from benchmarks.peers import FlowguardCompiled
from benchmarks.redis.servers import redis_server
from benchmarks.runner import BadData, Bench
from benchmarks.scenarios import SCENARIOS

ROW: Final = "durable-1000-16"


class OnRocks(FlowguardCompiled):
    name = "flowguard on RocksDB"


class OnRedis(FlowguardCompiled):
    """With a server of its own for each sample, on the generator's core, which syncs each write."""

    name = "flowguard on Redis"

    def __init__(self) -> None:
        self._url = ""

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        words = super().command(port, folder, scenario)
        return [*words, "--store", "redis", "--redis-url", self._url]

    @contextmanager
    def running(self, core: int | None, scenario: str) -> Iterator[Running]:
        with TemporaryDirectory() as name, redis_server(Path(name) / "redis", "always") as server:
            self._url = server.url
            with super().running(core, scenario) as running:
                yield running


def messages_per_cpu_s(seconds: float, repeat: int) -> dict[str, float]:
    """Messages in and out per second of the broker's processor time; medians, taken in turn.

    Raises `BadData`, `Unavailable`."""
    cores = machine.choose_cores()
    bench = Bench(build("loadgen"), cores, seconds)
    scenario = next(each for each in SCENARIOS if each.key == ROW)
    brokers: list[Broker] = [OnRocks(), OnRedis()]
    found: dict[str, list[float]] = {broker.name: [] for broker in brokers}
    for broker in brokers:
        broker.prepare()
    with machine.pinned(cores.generator if cores else None):
        for _ in range(repeat):
            for broker in brokers:
                sample = bench.sample(broker, scenario)
                if sample.failure:
                    raise BadData(f"{broker.name}: {sample.failure}")
                found[broker.name].append(sample.figures["value"])
    return {name: median(values) for name, values in found.items()}
