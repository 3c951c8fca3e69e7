"""One of three nodes is killed while each is busy to 60 %: what becomes of the other two?

The store of each node has a known capacity (`busy_store`). 3,000 devices
publish 60 % of what the cluster can do. Then all processes of one node are killed, and it stays
down. The control has the policy `unlimited`.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from benchmarks.checks import Check, Columns, Grid, Report, at_most, none_of
from benchmarks.conditions import Conditions
from benchmarks.overload.plot import Panel, Series, svg
from benchmarks.peers import BUILT
from benchmarks.redis.servers import redis_server
from flowguard.config import FlowSettings, PolicyName
from loadgen.storm.tally import LatencyHistogram

from . import busy_store
from .devices import CONNACK_S, IN_TIME_S, RETRY, Fleet, Second
from .running import Node, NodePlan, running
from .simulated import COLUMNS as SIMULATED_COLUMNS
from .simulated import COMMIT_S, Plan, Simulated, seconds_of, simulated

KEY = "nodes-cascade"
NODES, SHARDS, SHARDS_MAX, DEVICES = 3, 6, 4, 3_000
RATE_PER_S = 0.6 * NODES / busy_store.MESSAGE_S
MEMORY_MIB = 640
WINDOW_FLOOR = 0.1
"""A node stores about one message of each client per second, so one of each at once is too much."""
CONNECT_OBJECTIVE_S = 1.0
"""A commit of the slowed store may take longer than the default."""
CALM_S, AFTER_S, SETTLED_S = 20.0, 60.0, 30.0
POLICIES: tuple[PolicyName, ...] = ("flowguard", "unlimited")
P99_RATIO_MAX = 2.0
LOST = "worker ended; it starts again"


@dataclass(frozen=True)
class Look:
    """The nodes at one instant; second 0 is that of the kill."""

    at_s: float
    memory_mib: tuple[float, ...]
    """Memory of each node, or 0 if it is dead."""
    down: int
    """Shards that no living node runs."""


@dataclass(frozen=True)
class Run:
    policy: str
    kill_s: float
    seconds: tuple[Second, ...]
    looks: tuple[Look, ...]
    deaths: int
    """Nodes that died after the one that was killed."""
    lost: int
    """Shards that a living node lost, because it was silent for longer than its lease."""

    def of_residents(self, from_s: float, to_s: float) -> float:
        """The p99 of devices that have kept their connection, between two times since the kill."""
        together = LatencyHistogram()
        for second in self.between(from_s, to_s):
            together.add(second.residents)
        p99_s = together.percentile_s(99)
        return float("inf") if p99_s is None else 1e3 * p99_s

    def between(self, from_s: float, to_s: float) -> tuple[Second, ...]:
        return self.seconds[int(self.kill_s + from_s) : int(self.kill_s + to_s)]

    @property
    def calm_p99_ms(self) -> float:
        return self.of_residents(-self.kill_s + 2, 0)

    @property
    def settled_p99_ms(self) -> float:
        return self.of_residents(SETTLED_S, self.end_s)

    @property
    def end_s(self) -> float:
        return len(self.seconds) - 1 - self.kill_s

    @property
    def back_s(self) -> float:
        """Time from the kill until all devices are connected, and stay so."""
        before = max(second.connected for second in self.between(-self.kill_s, 0))
        after = [second.connected >= before for second in self.between(1, self.end_s)]
        if not after or not after[-1]:
            return float("inf")
        return float(2 + len(after) - after[::-1].index(False)) if False in after else 1.0

    @property
    def in_time(self) -> float:
        """Messages in time, in percent of those that were due, after `SETTLED_S`."""
        settled = self.between(SETTLED_S, self.end_s)
        return 100 * sum(s.in_time for s in settled) / max(1, sum(s.due for s in settled))

    @property
    def memory_mib(self) -> float:
        return max(mib for look in self.looks for mib in look.memory_mib)

    @property
    def has_fallen(self) -> bool:
        return bool(self.deaths or self.lost) or isinf(self.back_s)


COLUMNS: Columns[Run] = {
    "policy": lambda run: run.policy,
    "nodes that died, too": lambda run: f"{run.deaths}",
    "shards lost by living nodes": lambda run: f"{run.lost}",
    "all connected after": lambda run: seconds_of(run.back_s),
    "residents' p99 before": lambda run: f"{run.calm_p99_ms:,.0f} ms",
    "from 30 s on": lambda run: f"{run.settled_p99_ms:,.0f} ms",
    "messages in time from 30 s on": lambda run: f"{run.in_time:.1f} %",
    "CONNECTs": lambda run: f"{run.seconds[-2].attempts - run.between(-1, 0)[0].attempts:,}",
    "rejected": lambda run: f"{run.seconds[-2].rejected - run.between(-1, 0)[0].rejected:,}",
    "memory of a node, at most": lambda run: f"{run.memory_mib:,.0f} MiB",
}


@dataclass(frozen=True)
class Cascade:
    runs: tuple[Run, ...]
    """That of flowguard, then the control."""
    simulated: tuple[Simulated, ...] = ()

    def checks(self) -> Iterator[Check]:
        run, control = self.runs
        yield none_of(f"{run.policy}: nodes that died, too", run.deaths)
        yield none_of(f"{run.policy}: shards lost by living nodes", run.lost)
        yield at_most(f"{run.policy}: all devices connected after", run.back_s, run.end_s, " s")
        ratio = run.settled_p99_ms / run.calm_p99_ms
        what = f"{run.policy}: residents' p99 from 30 s on, of that before"
        yield at_most(what, ratio, P99_RATIO_MAX, "x", 2)
        what = f"{control.policy}: falls over (else the test proves nothing)"
        found = f"{control.deaths} nodes, {control.lost} shards, {seconds_of(control.back_s)}"
        yield Check(what, found, "a death, a lost shard, or never all", control.has_fallen)

    def report(self) -> Report:
        run = self.runs[0]
        title = "One of three nodes is killed, each busy to 60 %"
        return Report(
            KEY,
            title,
            f"flowguard ({BUILT.name}), {SHARDS} shards, {DEVICES:,} devices with durable sessions "
            "and QoS 1. All processes, Redis and the devices are on two cores. So the store of "
            f"each node is slowed: a commit takes {busy_store.LEAST_S * 1e3:g} ms at least, a "
            f"message {busy_store.MESSAGE_S * 1e3:g} ms, and a stored session "
            f"{busy_store.SESSION_S * 1e3:g} ms. So three nodes "
            f"store at most {NODES / busy_store.MESSAGE_S:,.0f} messages per second, and the "
            f"devices publish {RATE_PER_S:,.0f}. flow.window_floor is {WINDOW_FLOOR:g} and "
            f"flow.connect_objective_s {CONNECT_OBJECTIVE_S:g} s, because the store is slow; "
            f"flow.connect_patience_s is that of the devices, {CONNACK_S:g} s.",
            tuple(self.checks()),
            (Grid.of(COLUMNS, self.runs), Grid.of(SIMULATED_COLUMNS, self.simulated)),
            (
                "All processes of the node are killed at the dashed line, and it stays down. Two "
                "shards go to the other nodes. Devices try the next node after 0.5 to 1.5 s, as "
                f"often as it takes; they wait {CONNACK_S:g} s for CONNACK.",
                "Residents are devices that have kept their connection. In time: acknowledged "
                f"within {IN_TIME_S:g} s of the instant at which a message was due, also if its "
                f"device was not connected. A node beyond {MEMORY_MIB} MiB is killed.",
                "The second table is the same load in the simulator, with the same law, gate, and "
                "assignment of shards. There a device connects to the node of its shard, so the "
                "kill ends a third of the connections, not more than half of them. A commit takes "
                f"{COMMIT_S * 1e3:g} ms and the time of its messages and sessions there.",
            ),
            svg(self.panels(), title, run.kill_s),
        )

    def panels(self) -> list[Panel]:
        return [
            Panel("devices connected", self._series(lambda s: float(s.connected))),
            Panel(
                f"messages acknowledged within {IN_TIME_S:g} s, per second",
                self._series(lambda s: float(s.in_time)),
            ),
            Panel(
                "PUBLISH to PUBACK of devices that kept their connection, p99, ms",
                self._series(p99_ms),
                True,
            ),
        ]

    def _series(self, value: Callable[[Second], float | None]) -> tuple[Series, ...]:
        return tuple(
            Series(
                run.policy,
                tuple(
                    (n, y) for n, s in enumerate(run.seconds[:-1]) if (y := value(s)) is not None
                ),
            )
            for run in self.runs
        )


def p99_ms(second: Second) -> float | None:
    p99_s = second.residents.percentile_s(99)
    return None if p99_s is None else 1e3 * p99_s


FLOW = {
    "window_floor": WINDOW_FLOOR,
    "connect_objective_s": CONNECT_OBJECTIVE_S,
    "connect_patience_s": CONNACK_S,
}


def settings_of(policy: str, lane: Path) -> dict[str, str]:
    flow = FLOW | {"policy": policy, "memory_max_bytes": MEMORY_MIB * 2**20}
    variables = {f"FLOWGUARD_FLOW__{key.upper()}": f"{value}" for key, value in flow.items()}
    return {busy_store.LANE: str(lane)} | variables


def look(nodes: list[Node], began_s: float) -> Look:
    """Read the nodes' memory and table; a node beyond its memory is killed, as the kernel would."""
    memory = []
    down = SHARDS
    for node in nodes:
        mib = memory_mib(node.pids()) if node.is_alive else 0.0
        memory.append(mib)
        if mib > MEMORY_MIB:
            node.kill()
    for node in nodes:
        if node.is_alive:
            with suppress(OSError):
                down = len(node.get("/cluster")["down"])
                break
    return Look(time.monotonic() - began_s, tuple(memory), down)


def memory_mib(pids: list[int]) -> float:
    """Memory of processes; what several of them share counts once."""
    kib = 0
    for pid in pids:
        with suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            kib += next(int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pss:")
    return kib / 1024


async def watch(nodes: list[Node], began_s: float, looks: list[Look]) -> None:
    while True:
        looks.append(await trio.to_thread.run_sync(look, nodes, began_s))
        await trio.sleep(1.0)


async def drive(nodes: list[Node], lanes: list[Path], policy: str, after_s: float) -> Run:
    fleet = Fleet(DEVICES, [node.port for node in nodes])
    looks: list[Look] = []
    await fleet.connect()
    for lane in lanes:
        lane.touch()
    await fleet.wait(3.0)
    fleet.begin(RATE_PER_S)
    kill_s = CALM_S
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nodes, fleet.began_s + kill_s, looks)
        await fleet.wait(CALM_S)
        nodes[0].kill()
        await fleet.wait(after_s)
        nursery.cancel_scope.cancel()
    fleet.crowd.loop.close_all()
    deaths = sum(not node.is_alive for node in nodes[1:])
    lost = sum(node.log.read_text(errors="replace").count(LOST) for node in nodes[1:])
    return Run(policy, kill_s, tuple(fleet.seconds), tuple(looks), deaths, lost)


def measure_one(policy: str, after_s: float) -> Run:
    with TemporaryDirectory(prefix="flowguard-bench-") as name:
        folder = Path(name)
        lanes = [folder / f"lane-{index}" for index in range(NODES)]
        with redis_server(folder / "redis", "always") as redis:
            plans = [
                NodePlan(
                    redis.url, SHARDS, SHARDS_MAX, settings_of(policy, lane), str(busy_store.SITE)
                )
                for lane in lanes
            ]
            with running(folder, plans) as nodes:
                return trio.run(drive, nodes, lanes, policy, after_s)


def measure(conditions: Conditions) -> Cascade:
    BUILT.prepare()
    if conditions.cores is not None:  # Else there is one core.
        os.sched_setaffinity(0, {conditions.cores.broker, conditions.cores.generator})
    after_s = conditions.scaled(AFTER_S, 45.0)
    plan = plan_of(after_s)
    return Cascade(
        tuple(measure_one(policy, after_s) for policy in POLICIES),
        tuple(simulated(plan, policy) for policy in POLICIES),
    )


def plan_of(after_s: float) -> Plan:
    return Plan(
        nodes=NODES,
        shards=SHARDS,
        devices=DEVICES,
        rate_per_s=RATE_PER_S,
        flow=FlowSettings.model_validate(FLOW),
        memory_mib=MEMORY_MIB,
        retry_s=RETRY.first_s,
        settled_s=SETTLED_S,
        after_s=after_s,
    )
