"""The cost of a QoS 1 message whose clients and sessions are at several nodes of a cluster.

Two nodes with a shard each share one core. The generator and Redis have the other one. The unit is
messages in and out per second of processor time of all processes of the nodes, without Redis.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import machine
from benchmarks.brokers import Broker, Running
from benchmarks.build import Unavailable, build
from benchmarks.checks import Check, Columns, Grid, Report, at_most
from benchmarks.conditions import Conditions
from benchmarks.peers import BUILT
from benchmarks.placement import owned
from benchmarks.redis.servers import redis_server
from benchmarks.report import short
from benchmarks.runner import Bench
from benchmarks.scenarios import Scenario, find

from .running import NodePlan, running

KEY = "nodes-costs"
SHARDS = 2
FULL_S, TRIES = 4.0, 3
COST_MAX = 3.0
CALM = ("STORE_OBJECTIVE_S", "LOOP_OBJECTIVE_S", "QUEUE_OBJECTIVE_S", "CONNECT_OBJECTIVE_S")
"""With these objectives a machine that is busy with other work lowers no window."""


@dataclass(frozen=True)
class Way:
    """The places of clients and of their sessions: 0 or 1, a node and its shard."""

    title: str
    publisher: int
    """The shard of the publisher, which connects to node 0."""
    subscriber: int
    subscriber_at: int = 0
    """The node that the subscriber connects to."""


SAME = Way("same node", 0, 0)
LINKED = Way("subscriber and its session at the other node", 0, 1, 1)
RELAYED = Way("both sessions at the other node than the clients", 1, 1)
BOTH = Way("the subscriber's session at the other node than all else", 0, 1)
WAYS = (SAME, LINKED, RELAYED, BOTH)
LOADS = find(["qos1-100-w1", "qos1-100-w10", "durable-100-16"])


class TwoNodes(Broker):
    """Two nodes with a shard each, for one way."""

    name = "two nodes"

    def __init__(self, way: Way, numbers: Path, pairs: int, redis_core: int | None) -> None:
        self._way = way
        self._numbers = numbers
        self._pairs = pairs
        self._redis_core = redis_core
        self.redis_s = 0.0
        """Processor time of Redis in the last run, with that of the connects."""

    def prepare(self) -> str:
        return BUILT.prepare()

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        raise NotImplementedError

    @contextmanager
    def running(self, core: int | None, scenario: str) -> Iterator[Running]:
        calm = {f"FLOWGUARD_FLOW__{name}": "1e9" for name in CALM}
        with TemporaryDirectory(prefix="flowguard-bench-") as name:
            folder = Path(name)
            with (
                machine.pinned(self._redis_core),
                redis_server(folder / "redis", "always") as redis,
            ):
                plan = NodePlan(redis.url, SHARDS, 1, calm)
                with running(folder, [plan] * 2, core) as nodes:
                    shards = [shard for node in nodes for shard in node.shards()]
                    self._place(shards)
                    other = {
                        "other-broker-pid": nodes[1].pid,
                        "subscriber-port": nodes[self._way.subscriber_at].port,
                    }
                    before_s = redis.cpu_s()
                    yield Running(nodes[0].pid, nodes[0].port, nodes[0].log, other)
                    self.redis_s = redis.cpu_s() - before_s

    def _place(self, shards: list[int]) -> None:
        """Write the numbers of the client ids; `shards` has the shard of each node."""
        subscribers = owned("s", SHARDS, shards[self._way.subscriber])
        publishers = owned("p", SHARDS, shards[self._way.publisher])
        numbers = [next(ids) for ids in (subscribers, publishers) for _ in range(self._pairs)]
        self._numbers.write_text("".join(f"{number}\n" for number in numbers))


@dataclass(frozen=True)
class Row:
    load: str
    way: Way
    cpu_us: float
    """Processor time of both nodes for a message in and out."""
    redis_us: float
    """Processor time of Redis for the same."""
    p50_ms: float
    p99_ms: float
    rate_per_s: float
    broker_cores: float
    generator_cores: float


@dataclass(frozen=True)
class NodeCosts:
    rows: tuple[Row, ...]

    def cost(self, row: Row) -> float:
        """As a multiple of that on the same node."""
        return row.cpu_us / next(
            each.cpu_us for each in self.rows if (each.load, each.way) == (row.load, SAME)
        )

    def checks(self) -> Iterator[Check]:
        for row in self.rows:
            if row.way is not SAME and "10 outstanding" in row.load:
                what = f"{row.load}; {row.way.title}: cost beside the same node"
                yield at_most(what, self.cost(row), COST_MAX, "x", 2)

    def report(self) -> Report:
        columns: Columns[Row] = {
            "load": lambda row: row.load,
            "sessions and clients": lambda row: row.way.title,
            "µs of processor time per message": lambda row: f"{row.cpu_us:.1f}",
            "of the same node's": lambda row: f"{self.cost(row):.2f}",
            "of Redis": lambda row: f"{row.redis_us:.1f}",
            "p50, p99": lambda row: f"{row.p50_ms:.1f}, {row.p99_ms:.1f} ms",
            "messages in and out per second": lambda row: short(row.rate_per_s),
            "cores: nodes, generator": lambda row: (
                f"{row.broker_cores:.2f}, {row.generator_cores:.2f}"
            ),
        }
        return Report(
            KEY,
            "Messages between two nodes of a cluster",
            f"flowguard ({BUILT.name}), each sample with fresh processes, interleaved, medians. "
            "Publishers connect to the first node. Both nodes share one core; the generator and "
            "Redis have another. Sessions are clean but in the durable load. A message counts "
            "once: it comes in and goes out.",
            tuple(self.checks()),
            (Grid.of(columns, self.rows),),
        )


def measure(conditions: Conditions) -> NodeCosts:
    BUILT.prepare()
    bench = Bench(build("loadgen"), conditions.cores, conditions.scaled(FULL_S, 1.0))
    rows: list[Row] = []
    with TemporaryDirectory() as name:
        numbers = Path(name) / "numbers"
        for load in LOADS:
            placed = replace(load, numbers=numbers)
            found: dict[Way, list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(conditions.repeat):
                for way in WAYS:
                    pairs = int(load.arguments["count"])
                    broker = TwoNodes(way, numbers, pairs, conditions.generator_core)
                    figures = sampled(bench, broker, placed)
                    redis_us = 1e6 * broker.redis_s / figures["delivered_total"]
                    found[way].append({**figures, "redis_us": redis_us})
            keys = (
                "cpu_us",
                "redis_us",
                "p50_ms",
                "p99_ms",
                "rate_per_s",
                "broker_cores",
                "generator_cores",
            )
            rows += [
                Row(load.title, way, *(median(one[key] for one in runs) for key in keys))
                for way, runs in found.items()
            ]
    return NodeCosts(tuple(rows))


def sampled(bench: Bench, broker: Broker, load: Scenario) -> dict[str, float]:
    failure = ""
    for _ in range(TRIES):
        sample = bench.sample(broker, load)
        if not sample.failure:
            return sample.figures
        failure = sample.failure
    raise Unavailable(f"{load.key}: {TRIES} runs have failed, the last: {failure}")
