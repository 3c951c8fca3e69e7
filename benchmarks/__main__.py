"""`python -m benchmarks`: run, show, and with --write put the tables into benchmarks/results."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import groupby, product
from typing import Annotated

import typer
from rich.markup import escape

from flowguard.cli.descriptors import use_all_descriptors

from . import conditions, machine, pages, parts, report
from .brokers import Broker
from .build import Unavailable, build, work_folder
from .parts import Strict, Write, split
from .peer_files import read_peer
from .peers import BROKERS, prepared
from .runner import Bench, Sample
from .scenarios import SCENARIOS, Scenario, find
from .verdicts import BUILDS, OURS, Results, Verdict

FULL_SECONDS, FULL_REPEAT = 4.0, 3
QUICK_SECONDS, QUICK_REPEAT = 1.5, 1
DETAILS_COLUMNS = 140  # a narrower terminal gets the details from .bench/last.json
console = pages.console()


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A subset, once, 1.5 s each.")] = False,
    only: Annotated[str, typer.Option(help="Scenarios, by comma; a prefix will do.")] = "",
    brokers: Annotated[str, typer.Option(help="Brokers, by comma.")] = ",".join(BROKERS),
    peer: Annotated[
        list[str] | None, typer.Option(help="NAME=FILE: one more (benchmarks/peer_files.py).")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.5, max=600, help="Measured, each run.")
    ] = None,
    repeat: Annotated[int | None, typer.Option(min=1, max=100, help="Runs of each.")] = None,
    more: Annotated[
        bool, typer.Option("--more", help="Beside the rows of the last run, which is kept.")
    ] = False,
    write: Write = False,
    strict: Strict = False,
) -> None:
    """Measures flowguard beside Mosquitto and amqtt, on this machine, in one run.

    Without --only its store by itself and its proxy, too (python -m benchmarks.parts).

    Exit status 1: flowguard could not be measured, or gave data that cannot be right (with
    --strict: or missed a goal).
    """
    seconds = seconds or (QUICK_SECONDS if quick else FULL_SECONDS)
    repeat = repeat or (QUICK_REPEAT if quick else FULL_REPEAT)
    chosen = choose_scenarios(only, quick=quick)
    names = choose_brokers(brokers) + add_peers(peer or [])
    use_all_descriptors()
    cores = machine.choose_cores()
    try:
        bench = Bench(build("loadgen"), cores, seconds)
    except Unavailable as error:
        console.print(f"[red]{escape(str(error))}[/]")
        raise typer.Exit(1) from error
    versions, missing = prepare(names)
    before = earlier({s.key for s in chosen}, versions) if more else []
    with machine.pinned(cores.generator if cores else None):  # keep off the broker's core
        samples = run_all(bench, [BROKERS[name] for name in versions], chosen, repeat)
    if more:
        samples = [*before, *samples]
        measured_keys = {sample.scenario for sample in samples}
        chosen = tuple(s for s in SCENARIOS if s.key in measured_keys)
    results = Results(chosen, samples)
    origin = report.Origin(
        command=pages.command(),
        date=pages.today(),
        machine=machine.describe(),
        pinned=cores is not None,
        seconds=seconds,
        repeat=repeat,
        versions=versions,
        missing=missing,
        sync_ms=machine.sync_ms(),
    )
    show(results, origin)
    keep(samples, origin)
    if write:
        page = pages.RESULTS / "brokers.md"
        page.write_text(report.markdown(results, origin))
        console.print(f"written: {page}")
    measured, passed = True, True
    if not only:
        length_s = conditions.QUICK_SECONDS if quick else conditions.FULL_SECONDS
        alone = conditions.Conditions(cores, length_s)
        folder = pages.RESULTS if write else None
        measured, passed = parts.run(parts.of_bench(), alone, folder)
    passed &= all(judged.verdict is Verdict.PASS for _, judged in results.judged())
    if results.ours_failed() or OURS in missing or not measured or (strict and not passed):
        raise typer.Exit(1)


def choose_scenarios(only: str, *, quick: bool) -> tuple[Scenario, ...]:
    if only:
        try:
            return find(split(only))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return tuple(s for s in SCENARIOS if s.quick or not quick)


def choose_brokers(brokers: str) -> list[str]:
    names = split(brokers)
    if unknown := [name for name in names if name not in BROKERS] or not names:
        raise typer.BadParameter(f"unknown brokers {unknown}; there are {', '.join(BROKERS)}")
    return [name for name in BROKERS if name in names]


def add_peers(arguments: list[str]) -> list[str]:
    """Names of brokers that are in the table from now on."""
    names = []
    for argument in arguments:
        try:
            peer = read_peer(argument)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        if peer.name in BROKERS:
            raise typer.BadParameter(f"there is a broker {peer.name} already")
        BROKERS[peer.name] = peer
        names.append(peer.name)
    return names


def prepare(names: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    with console.status(f"preparing {', '.join(names)} ..."):
        versions, missing = prepared(names)
    for name, why in missing.items():
        console.print(f"[red]{name} cannot run: {escape(why)}[/]")
    return versions, missing


def plan(
    brokers: list[Broker], scenarios: tuple[Scenario, ...], repeat: int
) -> Iterator[tuple[Scenario, Broker]]:
    """Interleaved, A B C A B C, so that a disturbance meets all brokers alike."""
    for _, together in groupby(scenarios, lambda scenario: scenario.beside or scenario.key):
        rows = list(together)
        for number in range(repeat):
            for scenario, broker in product(rows, brokers):
                if scenario.runs(broker.name, number):
                    yield scenario, broker


def run_all(
    bench: Bench, brokers: list[Broker], scenarios: tuple[Scenario, ...], repeat: int
) -> list[Sample]:
    steps = list(plan(brokers, scenarios, repeat))
    samples: list[Sample] = []
    with pages.progress(console) as progress:
        task = progress.add_task("", total=len(steps))
        for scenario, broker in steps:
            progress.update(task, description=f"{scenario.title}: {broker.name}")
            sample = bench.sample(broker, scenario)
            samples.append(sample)
            progress.advance(task)
            progress.console.print(line_of(sample, scenario))
    return samples


def line_of(sample: Sample, scenario: Scenario) -> str:
    head = f"{scenario.key:14} {sample.broker:10} "
    if sample.failure:
        return head + f"[red]failed: {escape(sample.failure)}[/]"
    text = report.figure(scenario, Results([scenario], [sample]).cell(scenario, sample.broker))
    cores = [
        f"{who} {sample.figures[key]:.2f}"
        for who, key in (("broker", "broker_cores"), ("generator", "generator_cores"))
        if key in sample.figures
    ]
    return head + f"{text:24} " + (f"[dim]cores: {', '.join(cores)}[/]" if cores else "")


def show(results: Results, origin: report.Origin) -> None:
    main_table, details = report.rich_tables(results, origin)
    console.print(main_table)
    if console.width >= DETAILS_COLUMNS:
        console.print(details)
    for line in report.footnotes(origin):
        console.print(f"[dim]{escape(line)}[/]")
    for text in report.warnings(results, origin):
        console.print(f"[yellow]{escape(text)}[/]")
    for ours in BUILDS:
        verdicts = [judged.verdict for _, judged in results.judged(ours)]
        counted = ", ".join(
            f"[{report.COLOURS[v]}]{verdicts.count(v)} {v.value}[/]"
            for v in Verdict
            if v in verdicts
        )
        if counted and ours in origin.versions:
            console.print(f"goals, {ours}: {counted}")


def keep(samples: list[Sample], origin: report.Origin) -> None:
    """The raw samples of the last run, for whoever wants to look again."""
    data = {"origin": asdict(origin), "samples": [asdict(sample) for sample in samples]}
    (work_folder() / "last.json").write_text(json.dumps(data, indent=1) + "\n")


def earlier(anew: set[str], versions: Mapping[str, str]) -> list[Sample]:
    """What `keep` kept, but for rows that are measured anew.

    Raises `typer.BadParameter` where it is of other versions: one table is about the same brokers.
    """
    path = work_folder() / "last.json"
    if not path.exists():
        raise typer.BadParameter("--more: there is no run to go on from; measure without it first")
    kept = json.loads(path.read_text())
    samples = [Sample(**{**each, "notes": tuple(each["notes"])}) for each in kept["samples"]]
    samples = [sample for sample in samples if sample.scenario not in anew]
    for name in sorted({sample.broker for sample in samples}):
        was, now = kept["origin"]["versions"].get(name), versions.get(name, "not measured")
        if was != now:
            raise typer.BadParameter(
                f"--more: in the last run {name} was {was}, now it is {now}; "
                "measure those rows again, in one run, without --more"
            )
    return samples


if __name__ == "__main__":
    typer.run(main)
