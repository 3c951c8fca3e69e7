"""The kit in the terminal: a table that fills while it runs, and its report."""

import trio
from rich import box
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from flowguard.lines import count
from loadgen.kit import Finding, Kit, KitReport, Survival

FRAME_S = 0.1
STYLES = {
    Survival.SURVIVED: "green",
    Survival.STRUGGLED: "yellow",
    Survival.FAILED: "bold red",
    Survival.UNCLEAR: "magenta",
}


async def watch(kit: Kit, console: Console) -> None:
    """Show progress until cancelled: a live table, or without a terminal a line per experiment."""
    if not console.is_terminal:
        await _print_lines(kit, console)
    current, since_s = kit.current, trio.current_time()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            now_s = trio.current_time()
            if kit.current is not current:
                current, since_s = kit.current, now_s
            live.update(_progress(kit, now_s - since_s), refresh=True)
            await trio.sleep(FRAME_S)


async def _print_lines(kit: Kit, console: Console) -> None:
    shown = 0
    try:
        while True:
            await trio.sleep(FRAME_S)
            shown += _print_from(shown, kit, console)
    finally:
        _print_from(shown, kit, console)


def _print_from(shown: int, kit: Kit, console: Console) -> int:
    fresh = kit.findings[shown:]
    for finding in fresh:
        console.print(_line(finding), highlight=False, soft_wrap=True)
    return len(fresh)


def show_report(report: KitReport, console: Console) -> None:
    """Show verdicts, figures and sentences of one broker."""
    spoken = f"MQTT {report.version}" if report.version else "no answer"
    title = f"{report.name} at {report.target}, {spoken}, {count(report.clients, 'client')}"
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("experiment", style="cyan", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("figure", justify="right")
    with_memory = any(finding.memory is not None for finding in report.findings)
    if with_memory:
        table.add_column("memory", justify="right")
    table.add_column("", ratio=1)
    for finding in report.findings:
        figure = Text.assemble(str(finding.figure), (f"\n{finding.figure.name}", "dim"))
        memory = "" if finding.memory is None else f"{finding.memory.growth_mib:+,.0f} MiB"
        cells = [finding.title, _verdict(finding), figure, *([memory] if with_memory else ())]
        table.add_row(*cells, Text(finding.sentence))
    console.print(table)


def _verdict(finding: Finding) -> Text:
    return Text(str(finding.verdict), style=STYLES[finding.verdict])


def _line(finding: Finding) -> Text:
    return Text.assemble(
        f"{finding.title}: ",
        _verdict(finding),
        f", {finding.figure.name} {finding.figure}. {finding.sentence}",
    )


def _progress(kit: Kit, elapsed_s: float) -> Table:
    grid = Table.grid(padding=(0, 2))
    found = {finding.experiment: finding for finding in kit.findings}
    for experiment in kit.experiments:
        if (finding := found.get(experiment.key)) is not None:
            grid.add_row("", experiment.title, _verdict(finding), str(finding.figure))
        elif experiment is kit.current:
            grid.add_row(Spinner("dots"), experiment.title, f"{elapsed_s:.0f} s", "")
        else:
            grid.add_row("", Text(experiment.title, style="dim"), "", "")
    grid.add_row("", Text("Ctrl-C: end, and show what was found", style="dim"), "", "")
    return grid
