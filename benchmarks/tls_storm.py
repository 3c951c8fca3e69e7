"""`python -m benchmarks.tls_storm`: a crowd comes by TLS at once, to flowguard and to Mosquitto.

The broker has a core of its own; crowd and residents (tls_crowd.c) share the other one. Residents
publish to themselves before and while the crowd comes: what those see who are in already.
"""

import json
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import sleep
from typing import Annotated, Any

import typer

from flowguard.cli.descriptors import use_all_descriptors

from . import machine, pages
from .brokers import Broker
from .build import build, options, work_folder
from .checks import Check, Columns, Grid, Report, at_most, none_of
from .parts import Strict, Write
from .peers import Flowguard, FlowguardCompiled, Mosquitto
from .runner import BadData, parse_line

KEY = "tls-storm"
CLIENTS, RESIDENTS, RATE = 5_000, 20, 10.0
CALM_S, SETTLE_S, EXTRA_S = 15.0, 1.0, 60.0
MEDIANS = (
    *("connected", "half_s", "most_s", "cpu_ms", "calm_p99_ms"),
    *("storm_p50_ms", "storm_p99_ms", "storm_max_ms"),
)
CPU_RATIO, P99_RATIO, DEAD_RATIO = 1.2, 2.0, 0.25
console = pages.console()


class Ungated(Flowguard):
    """The control (benchmarks/ungated.py)."""

    name = "flowguard without the gate"

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        words = super().command(port, folder, scenario)
        words[words.index("flowguard")] = "benchmarks.ungated"
        return ["env", f"PYTHONPATH={Path(__file__).parents[1]}", *words]


@dataclass(frozen=True)
class Run:
    """What came of a crowd at a broker; times in seconds and milliseconds."""

    broker: str
    crowd: str
    connected: int
    attempts: int
    bad: int
    """Reset, closed without a word, or not answered."""
    refused: int
    half_s: float
    most_s: float
    """Until 99 % were in."""
    cpu_ms: float
    """Of the broker, for each client that came."""
    calm_p99_ms: float
    storm_p50_ms: float
    storm_p99_ms: float
    storm_max_ms: float
    note: str

    @property
    def slower(self) -> float:
        """How much slower the storm made those who were in, at the 99th percentile."""
        return self.storm_p99_ms / self.calm_p99_ms


def middle(runs: list[Run]) -> Run:
    """The median of each figure; of those who were turned away, the most."""
    figures = {key: median(getattr(run, key) for run in runs) for key in MEDIANS}
    worst = {key: max(getattr(run, key) for run in runs) for key in ("bad", "refused", "attempts")}
    return replace(runs[0], **figures, **worst)


@dataclass(frozen=True)
class Crowd:
    """Who comes, and to whom."""

    name: str
    words: str
    """Of the scenario (`brokers`)."""
    load: dict[str, float]
    brokers: tuple[Broker, ...]
    repeat: int = 1


OURS, PEER, PURE, CONTROL = FlowguardCompiled(), Mosquitto(), Flowguard(), Ungated()
CROWDS = (
    Crowd("full handshakes", "memory-storm-tls", {}, (OURS, PEER), 5),
    Crowd("full handshakes, in pure Python", "memory-storm-tls", {}, (PURE, CONTROL)),
    Crowd("resumed", "memory-storm-tls", {"resume": 1}, (OURS, PEER), 5),
    Crowd("passwords (argon2id)", "memory-storm-tls-users", {"users": 1}, (OURS,)),
    Crowd("resumed, passwords", "memory-storm-tls-users", {"users": 1, "resume": 1}, (OURS,)),
    Crowd("the dead alone", "memory-storm-tls", {"count": 1, "dead": CLIENTS}, (OURS, PEER), 5),
)


@dataclass(frozen=True)
class Storm:
    runs: tuple[Run, ...]
    commit: str
    """Of flowguard, in all of them."""

    def of(self, crowd: str, broker: Broker) -> Run | None:
        return next((r for r in self.runs if (r.crowd, r.broker) == (crowd, broker.name)), None)

    def checks(self) -> Iterator[Check]:
        for run in self.runs:
            if run.broker == OURS.name:
                yield none_of(f"{run.crowd}: reset, closed or unanswered", run.bad)
                if run.storm_p99_ms:
                    what = f"{run.crowd}: p99 of those who are in, beside unloaded"
                    yield at_most(what, run.slower, P99_RATIO, "x", 2)
        for crowd in CROWDS:
            ours, peer = self.of(crowd.name, OURS), self.of(crowd.name, PEER)
            if ours and peer and not crowd.load.get("dead"):
                what = f"{crowd.name}: processor time of a client, beside Mosquitto's"
                yield at_most(what, ours.cpu_ms / peer.cpu_ms, CPU_RATIO, "x", 2)
                what = f"{crowd.name}: p99 of those who are in, beside Mosquitto's"
                yield at_most(what, ours.storm_p99_ms / peer.storm_p99_ms, 1.0, "x", 2)
        alive, dead = self.of(CROWDS[0].name, OURS), self.of(CROWDS[-1].name, OURS)
        if alive and dead:
            what = "a dead peer's processor time, beside that of one that is alive"
            yield at_most(what, dead.cpu_ms / alive.cpu_ms, DEAD_RATIO, "x", 2)

    def report(self) -> Report:
        columns: Columns[Run] = {
            "crowd": lambda run: run.crowd,
            "broker": lambda run: run.broker,
            "connected": lambda run: f"{run.connected:,}",
            "attempts": lambda run: f"{run.attempts:,}",
            "reset, closed, unanswered": lambda run: f"{run.bad:,}",
            "refused": lambda run: f"{run.refused:,}",
            "half after": lambda run: f"{run.half_s:.1f} s",
            "99 % after": lambda run: f"{run.most_s:.1f} s",
            "processor, a client": lambda run: f"{run.cpu_ms:.2f} ms",
            "p99 before": lambda run: f"{run.calm_p99_ms:.2f} ms",
            "p50, p99, max meanwhile": lambda run: (
                f"{run.storm_p50_ms:.2f}, {run.storm_p99_ms:.2f}, {run.storm_max_ms:.1f} ms"
            ),
            "remarks": lambda run: run.note,
        }
        return Report(
            KEY,
            "A storm by TLS",
            f"{CLIENTS:,} clients connect at once (TLS 1.3, P-256, MQTT 5.0) and come again until "
            f"they are in; {RESIDENTS} residents publish {RATE:g} messages a second each to "
            "themselves (QoS 1), at random times: from the time when a message was due until it "
            "was back. One core for the broker, the other one for crowd and residents. Medians of "
            + ", ".join(f"{each.repeat} ({each.name})" for each in CROWDS if each.repeat > 1)
            + ", of the attempts turned away the most.",
            tuple(self.checks()),
            (Grid.of(columns, self.runs),),
        )


@contextmanager
def program(name: str, load: dict[str, float]) -> Iterator["subprocess.Popen[str]"]:
    """The crowd, or the residents (tls_crowd.c), ready."""
    command = [str(build("tls_crowd")), name, *options(load)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if not process.stdout.readline():
            raise BadData(f"{name}: status {process.wait()}")
        yield process
        process.stdin.close()


def ask(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """What it says when it is given a line: residents what they have seen since the last one."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return parse_line(process.stdout.readline())


def measure(crowd: Crowd, broker: Broker, clients: int, core: int | None) -> Run:
    """A fresh broker, and a crowd that comes to it."""
    load = {"count": clients, **crowd.load}
    if "dead" in load:
        load["dead"] = clients
    inside = {"count": RESIDENTS, "rate": RATE, "users": load.get("users", 0)}
    with broker.running(core, crowd.words) as running:
        where = {"port": running.port, "broker-pid": running.pid}
        with (
            program("residents", where | inside) as residents,
            program("crowd", where | load) as coming,
        ):
            sleep(SETTLE_S)
            ask(residents)
            sleep(CALM_S)
            calm = ask(residents)
            result = ask(coming)
            storm = ask(residents)
    return Run(
        broker.name,
        crowd.name,
        result["connected"],
        result["attempts"],
        result["reset"] + result["closed"] + result["unanswered"],
        sum(result["refused"].values()),
        result["half_s"],
        result["most_s"],
        1e3 * result["broker_cpu_s"] / clients,
        calm["p99_ms"],
        storm["p50_ms"],
        storm["p99_ms"],
        storm["max_ms"],
        ", ".join(filter(None, (result["first_error"], f"{result['resumed']:,} resumed"))),
    )


def others(measured: Collection[str], commit: str) -> list[Run]:
    """What crowds came to that are not among these, when they came last; to the same flowguard."""
    path = work_folder() / f"{KEY}.json"
    if not path.exists():
        raise typer.BadParameter("--more: there is no run to go on from; measure without it first")
    kept = json.loads(path.read_text())
    was = kept.get("commit", "unknown")
    if was != commit:
        raise typer.BadParameter(
            f"--more: in the last run flowguard was {was}, now it is {commit}; measure those "
            "crowds again without --more"
        )
    return [Run(**run) for run in kept["runs"] if run["crowd"] not in measured]


def main(
    clients: Annotated[int, typer.Option(min=1, help="That come at once.")] = CLIENTS,
    only: Annotated[str, typer.Option(help="Of a crowd's name.")] = "",
    brokers: Annotated[str, typer.Option(help="By comma.")] = "",
    more: Annotated[
        bool, typer.Option("--more", help="Beside the other crowds' last runs, which are kept.")
    ] = False,
    write: Write = False,
    strict: Strict = False,
) -> None:
    """Have crowds come by TLS at once, to one broker after the other."""
    use_all_descriptors()
    cores = machine.choose_cores()
    commit = pages.commit()
    chosen_crowds = [crowd for crowd in CROWDS if only in crowd.name]
    before = others({crowd.name for crowd in chosen_crowds}, commit) if more else []
    runs = []
    with machine.pinned(cores.generator if cores else None):
        for crowd in chosen_crowds:
            chosen = [b for b in crowd.brokers if not brokers or b.name in brokers.split(",")]
            core = cores.broker if cores else None
            rounds = [
                [measure(crowd, broker, clients, core) for broker in chosen]
                for _ in range(crowd.repeat)
            ]
            for repeated in zip(*rounds, strict=True):
                runs.append(middle(list(repeated)))
                for run in repeated:
                    console.print(run)
    names = [crowd.name for crowd in CROWDS]
    runs = sorted([*before, *runs], key=lambda run: names.index(run.crowd))
    folder = pages.RESULTS if write else None
    passed = pages.tell(Storm(tuple(runs), commit), machine.describe(), console, folder)
    if strict and not passed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
