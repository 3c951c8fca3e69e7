"""`python -m benchmarks.cluster`: what several workers cost beside one worker, in the same run.

The unit is messages in and out per second of processor time of all processes of the broker. They
share one core, and the generator has the other one. So the figures show what a message costs. They
do not show how fast several cores are. Client ids choose the owner of a session, so a pair is
placed by the numbers in its ids.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from flowguard.cli.descriptors import use_all_descriptors

from . import machine, pages, tls_storm
from .brokers import Broker, Running
from .build import Unavailable, build
from .checks import Check, Columns, Grid, Report, at_least, at_most
from .parts import Strict, Write
from .peers import BUILT
from .placement import owned
from .report import short
from .runner import Bench
from .scenarios import Scenario, find

KEY = "cluster"
SAME, OTHER, ANY = "same", "other", "any"
"""The sessions of a pair are on one worker, on two, or on any."""
CALM = ("STORE_OBJECTIVE_S", "LOOP_OBJECTIVE_S", "QUEUE_OBJECTIVE_S", "CONNECT_OBJECTIVE_S")
"""With these objectives a machine that is busy with other work lowers no window."""
MEASURED_S, REPEAT, TRIES = 4.0, 3, 3
STORM_CLIENTS = 5_000
OTHER_COST, ANY_SHARE, SAME_SHARE, TLS_COST, IDLE_COST, SPREAD = 2.5, 0.7, 0.97, 1.1, 1.1, 0.15
MACHINES = (2, 4, 8, 16)
console = pages.console()


class Workers(Broker):
    """flowguard with several workers, or with one."""

    reports_port = True

    def __init__(self, workers: int) -> None:
        self.name = f"{workers} workers" if workers > 1 else "1 worker"
        self.workers = workers
        self.spread = 0.0
        """The largest distance of a worker's processor time from the mean, in the last run."""

    def prepare(self) -> str:
        return BUILT.prepare()

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        words = ["--workers", str(self.workers)] if self.workers > 1 else []
        calm = [f"FLOWGUARD_FLOW__{name}=1e9" for name in CALM]
        return ["env", *calm, *BUILT.command(port, folder, scenario), *words]

    @contextmanager
    def running(self, core: int | None, scenario: str) -> Iterator[Running]:
        with super().running(core, scenario) as running:
            pids = machine.children(running.pid)
            before_s = [machine.cpu_s(pid) for pid in pids]
            yield running
            used_s = [machine.cpu_s(pid) - was_s for pid, was_s in zip(pids, before_s, strict=True)]
            self.spread = max((abs(each / mean(used_s) - 1) for each in used_s), default=0.0)


@dataclass(frozen=True)
class Place:
    """A number of workers, and the place of the sessions of each pair."""

    workers: int
    where: str

    @property
    def title(self) -> str:
        if self.workers == 1:
            return "1 worker"
        of_pairs = {SAME: "same worker", OTHER: "other worker", ANY: "any worker"}[self.where]
        return f"{self.workers} workers, {of_pairs}"


ONE, TWO_SAME, TWO_OTHER = Place(1, ANY), Place(2, SAME), Place(2, OTHER)
TWO_ANY, FOUR_ANY = Place(2, ANY), Place(4, ANY)
PLACES = (ONE, TWO_SAME, TWO_OTHER, TWO_ANY, FOUR_ANY)
UNPLACED = (ONE, TWO_ANY, FOUR_ANY)
PAIRS = find(["qos0-100", "qos1-100-w10", "qos1-100-w1", "durable-100-16"])
FAN_OUTS = find(["fanout-qos0", "fanout-qos1"])
(TLS,) = find(["qos1-100-w10-tls"])
(IDLE,) = find(["idle"])
LOADS = (
    *((load, PLACES) for load in PAIRS),
    *((load, UNPLACED) for load in FAN_OUTS),
    (replace(TLS, title="QoS 1, 100 pairs, 10 outstanding, by TLS"), (ONE, TWO_SAME)),
)


def numbers_of(pairs: int, place: Place) -> list[int]:
    """Numbers in the client ids of all subscribers, then of all publishers."""
    numbers = []
    for letter, shift in (("s", 0), ("p", 1 if place.where == OTHER else 0)):
        owners = [owned(letter, place.workers, owner) for owner in range(place.workers)]
        numbers += [next(owners[(pair + shift) % place.workers]) for pair in range(pairs)]
    return numbers


@dataclass(frozen=True)
class Row:
    """Medians of one load at one place."""

    load: str
    key: str
    place: Place
    value: float
    p50_ms: float
    p99_ms: float
    rate_per_s: float
    broker_cores: float
    generator_cores: float
    spread: float


@dataclass(frozen=True)
class Costs:
    rows: tuple[Row, ...]
    idle_kib: dict[int, float]
    """Memory of a connection, by the number of workers."""
    tls_ms: dict[int, float]
    """Processor time of a client of a storm, by the number of workers."""
    tls_spread: float

    def value(self, load: Scenario, place: Place) -> float:
        return next(row.value for row in self.rows if (row.key, row.place) == (load.key, place))

    @property
    def pairs(self) -> list[Scenario]:
        """Loads of pairs that were measured."""
        return [load for load in PAIRS if any(row.key == load.key for row in self.rows)]

    def share(self, load: Scenario, place: Place) -> float:
        """Messages per CPU second, as a part of those of one worker."""
        return self.value(load, place) / self.value(load, ONE)

    def cost(self, load: Scenario) -> float:
        """A message between two workers, as a multiple of one on the same worker."""
        return self.value(load, TWO_SAME) / self.value(load, TWO_OTHER)

    def checks(self) -> Iterator[Check]:
        for load in self.pairs:
            if load.arguments.get("w") == 10:
                what = f"{load.title}: cost with another worker, beside the same worker"
                yield at_most(what, self.cost(load), OTHER_COST, "x", 2)
        for load in self.pairs:
            for place, bound in (
                (TWO_ANY, ANY_SHARE),
                (FOUR_ANY, ANY_SHARE),
                (TWO_SAME, SAME_SHARE),
            ):
                what = f"{load.title}: {place.title}, of one worker's per CPU second"
                yield at_least(what, self.share(load, place), bound, "x", 2)
        for row in self.rows:
            if row.place == TWO_SAME:
                what = f"{row.load}: processor time of a worker, distance from the mean"
                yield at_most(what, 100 * row.spread, 100 * SPREAD, " %", 1)
        tls, idle = self.tls_ms, self.idle_kib
        if not tls:
            return
        what = "storm by TLS, 2 workers: processor time of a client, beside one worker"
        yield at_most(what, tls[2] / tls[1], TLS_COST, "x", 2)
        what = "storm by TLS, 2 workers: processor time of a worker, distance from the mean"
        yield at_most(what, 100 * self.tls_spread, 100 * SPREAD, " %", 1)
        what = f"{TLS.title}: 2 workers, cost beside one worker"
        yield at_most(what, 1 / self.share(TLS, TWO_SAME), TLS_COST, "x", 2)
        yield at_most("idle connection, 2 workers beside one", idle[2] / idle[1], IDLE_COST, "x", 2)

    def scaled(self, load: Scenario, workers: int) -> float:
        """Computed messages per second of several cores, as a multiple of those of one."""
        stay = 1 / workers
        cost = stay / self.share(load, TWO_SAME) + (1 - stay) / self.share(load, TWO_OTHER)
        return workers / cost

    def _notes(self) -> Iterator[str]:
        memory = ", ".join(f"{self.idle_kib[n]:.2f} KiB" for n in self.idle_kib)
        tls = ", ".join(f"{self.tls_ms[n]:.2f} ms" for n in self.tls_ms)
        if tls:
            yield f"Idle connection with one subscription, one and two workers: {memory}."
            yield (
                f"Processor time of a TLS client of a storm of {STORM_CLIENTS:,}, one and two "
                f"workers: {tls}. Half of the clients reach a worker that does not own them."
            )

    def report(self) -> Report:
        columns: Columns[Row] = {
            "load": lambda row: row.load,
            "sessions of a pair": lambda row: row.place.title,
            "messages in and out per CPU second": lambda row: short(row.value),
            "of one worker's": lambda row: (
                f"{row.value / next(r.value for r in self.rows if r.key == row.key):.2f}"
            ),
            "p50, p99": lambda row: f"{row.p50_ms:.1f}, {row.p99_ms:.1f} ms",
            "per second by the clock": lambda row: short(row.rate_per_s),
            "cores: broker, generator": lambda row: (
                f"{row.broker_cores:.2f}, {row.generator_cores:.2f}"
            ),
        }
        machines: Columns[Scenario] = {
            "load": lambda load: load.title,
            **{
                f"{workers} cores": lambda load, workers=workers: (  # type: ignore[misc]
                    f"{self.scaled(load, workers):.1f}x"
                )
                for workers in MACHINES
            },
            "4 workers: computed, measured": lambda load: (
                f"{self.scaled(load, 4) / 4:.2f}, {self.share(load, FOUR_ANY):.2f}"
            ),
        }
        return Report(
            KEY,
            "Several workers beside one",
            f"flowguard ({BUILT.name}), each sample with fresh processes, interleaved, medians. "
            "All processes of the broker share one core, and the generator has another. So the "
            "clock shows no gain of several workers here.",
            tuple(self.checks()),
            (Grid.of(columns, self.rows), Grid.of(machines, self.pairs)),
            (
                *self._notes(),
                "The second table is computed, not measured: messages per second of a machine "
                "whose cores all have a worker, beside one worker on one core, with pairs on any "
                "workers. It takes the costs of the first table, and nothing that cores share "
                "(memory, kernel, disk, clock rate). The generator needs cores of its own.",
            ),
        )


def measure(bench: Bench, only: str, repeat: int, core: int | None) -> Costs:
    rows: list[Row] = []
    with TemporaryDirectory() as name:
        for load, places in LOADS:
            if not load.key.startswith(only):
                continue
            rows += compared(bench, load, places, repeat, Path(name))
            for row in rows[-len(places) :]:
                console.print(row)
    if only:
        return Costs(tuple(rows), {}, {}, 0.0)
    idle_kib = {n: sampled(bench, Workers(n), IDLE)["value"] for n in (1, 2)}
    tls_ms, spread = {}, 0.0
    for workers in (1, 2):
        broker = Workers(workers)
        run = tls_storm.measure(tls_storm.CROWDS[0], broker, STORM_CLIENTS, core)
        tls_ms[workers], spread = run.cpu_ms, broker.spread
    return Costs(tuple(rows), idle_kib, tls_ms, spread)


def compared(
    bench: Bench, load: Scenario, places: tuple[Place, ...], repeat: int, folder: Path
) -> list[Row]:
    found: dict[Place, list[dict[str, float]]] = {place: [] for place in places}
    for _ in range(repeat):
        for place in places:
            broker = Workers(place.workers)
            placed = load
            if place.where != ANY:
                numbers = numbers_of(int(load.arguments["count"]), place)
                path = folder / "numbers"
                path.write_text("".join(f"{number}\n" for number in numbers))
                placed = replace(load, numbers=path)
            figures = sampled(bench, broker, placed)
            found[place].append({**figures, "spread": broker.spread})
    keys = ("value", "p50_ms", "p99_ms", "rate_per_s", "broker_cores", "generator_cores", "spread")
    return [
        Row(load.title, load.key, place, *(median(one[key] for one in runs) for key in keys))
        for place, runs in found.items()
    ]


def sampled(bench: Bench, broker: Broker, load: Scenario) -> dict[str, float]:
    for _ in range(TRIES):
        sample = bench.sample(broker, load)
        if not sample.failure:
            return sample.figures
        console.print(f"[red]{broker.name}, {load.key}: {sample.failure}[/]")
    raise Unavailable(f"{broker.name}, {load.key}: {TRIES} runs have failed")


def main(
    only: Annotated[str, typer.Option(help="Begin of a load's key; all if empty.")] = "",
    seconds: Annotated[float, typer.Option(min=0.5, help="Measured, each run.")] = MEASURED_S,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each load and place.")] = REPEAT,
    write: Write = False,
    strict: Strict = False,
) -> None:
    """Measure flowguard with one, two and four workers."""
    use_all_descriptors()
    cores = machine.choose_cores()
    bench = Bench(build("loadgen"), cores, seconds)
    with machine.pinned(cores.generator if cores else None):
        costs = measure(bench, only, repeat, cores.broker if cores else None)
    folder = pages.RESULTS if write else None
    passed = pages.tell(costs, machine.describe(), console, folder)
    if strict and not passed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
