"""`python -m benchmarks.survivors`: the kit at many brokers, bare and behind `flowguard proxy`.

Reports are kept as JSON in `.bench/survivors`, so that a part of the field can be run again;
`--write` makes the page, its picture and its table of all that are there.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from benchmarks import machine, pages
from benchmarks.brokers import HOST, BrokerFailed
from benchmarks.build import Unavailable, work_folder
from benchmarks.checks import Grid, Report
from flowguard.cli.descriptors import use_all_descriptors
from loadgen.command.kit_page import page
from loadgen.kit import EXPERIMENTS, Finding, KitReport

from .field import FIELD, OURS, version_of
from .picture import svg
from .standing import standing

KEY = "survivors"
BEHIND = "behind the proxy"
LIMIT_S = 400.0
PICTURED = ("mosquitto", "rabbitmq", "hivemq-ce", "moquette", "aedes", "amqtt", "mochi", "rumqttd")
console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def reports_folder() -> Path:
    folder = work_folder() / KEY
    folder.mkdir(exist_ok=True)
    return folder


def main(
    only: Annotated[str, typer.Option(help=f"Of {', '.join(FIELD)}, by comma.")] = "",
    bare: Annotated[bool, typer.Option(help="Without the proxy.")] = True,
    proxied: Annotated[bool, typer.Option(help="Behind the proxy.")] = True,
    clients: Annotated[int, typer.Option(min=10, help="Of the kit.")] = 1_000,
    write: Annotated[bool, typer.Option("--write", help="Write page, table and picture.")] = False,
    run: Annotated[bool, typer.Option(help="--no-run: only write, of what is there.")] = True,
) -> None:
    """The kit at many brokers. Exit code 1: not all of them could be had, or run."""
    names = [word.strip() for word in only.split(",") if word.strip()] or list(FIELD)
    use_all_descriptors()
    missing: dict[str, str] = {}
    versions: dict[str, str] = {}
    for name in names if run else ():
        try:
            versions[name] = version_of(name)
            console.print(f"{name} {versions[name]}")
        except Unavailable as error:
            missing[name] = str(error)
            console.print(f"[yellow]{name} cannot be had: {escape(str(error))}[/]")
    for name in versions:
        for behind in [False] * bare + [True] * (proxied and name != OURS):
            try:
                run_one(name, versions[name], clients, behind_proxy=behind)
            except (BrokerFailed, OSError, subprocess.TimeoutExpired) as error:
                missing[f"{name} {BEHIND}" if behind else name] = str(error)
                console.print(f"[red]{name} could not be run: {escape(str(error))}[/]")
    if write:
        write_all([KitReport.read(path) for path in sorted(reports_folder().glob("*.json"))])
    if missing:
        raise typer.Exit(1)


def run_one(name: str, version: str, clients: int, *, behind_proxy: bool) -> None:
    """One broker, bare or behind the proxy, in processes of its own."""
    title = f"{name} {version}" + (f", {BEHIND}" if behind_proxy else "")
    to = reports_folder() / f"{name}{'-proxied' if behind_proxy else ''}.json"
    with standing(FIELD[name], behind_proxy=behind_proxy) as broker:
        words = ["--name", title, "--clients", str(clients), "--json", str(to)]
        words += ["--restart-command", broker.restart_command]
        for pid in broker.pids:
            words += ["--pid", str(pid)]
        command = [sys.executable, "-m", "flowguard", "storm", "--kit", f"{HOST}:{broker.port}"]
        with console.status(f"{title} ..."):
            done = subprocess.run(
                [*command, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_S,
            )
    if done.returncode not in (0, 1):
        raise BrokerFailed(f"the kit ended with {done.returncode}: {done.stderr[-300:]}")
    verdicts = [str(finding.verdict) for finding in KitReport.read(to).findings]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    console.print(f"{title}: {counts}")


def write_all(reports: Sequence[KitReport]) -> None:
    """The page for browsers, the picture, and the table for readers of the repository."""
    ordered = sorted(reports, key=place)
    board = work_folder() / f"{KEY}.html"
    board.write_text(page(ordered))
    report = Report(
        KEY,
        "Survivors: the kit at many brokers",
        "`flowguard storm --kit` at a fresh process of each, broker and crowd on one machine. "
        "Memory is what the broker's processes, and the proxy's, added at most in an experiment.",
        (),
        tuple(grids(ordered)),
        tuple(sorted({f"{r.name}: {r.clients:,} clients, {r.made_at}" for r in ordered})),
        svg(ordered),
    )
    where = f"{pages.today()}. {machine.describe()}. flowguard {pages.commit()}."
    pages.write(report, "python -m benchmarks.survivors --write", where, pages.RESULTS)
    console.print(f"written: {pages.RESULTS / KEY}.md, its picture, and {board}")


def place(report: KitReport) -> tuple[int, bool]:
    """Ours first; then each broker, and the same behind the proxy."""
    name = re.split(r"[ ,]", report.name)[0]
    names = (OURS, *PICTURED)
    return names.index(name) if name in names else len(names), BEHIND in report.name


def grids(reports: Sequence[KitReport]) -> Iterable[Grid]:
    for experiment in EXPERIMENTS:
        found = [(r.name, f) for r in reports if (f := r.found(experiment.key)) is not None]
        header = (experiment.title, "verdict", experiment.figure, "memory MiB", "what clients saw")
        yield Grid(header, tuple((name, *cells(finding)) for name, finding in found))


def cells(finding: Finding) -> tuple[str, ...]:
    memory = "" if finding.memory is None else f"{finding.memory.growth_mib:+,.0f}"
    return str(finding.verdict), str(finding.figure), memory, finding.sentence


if __name__ == "__main__":
    typer.run(main)
