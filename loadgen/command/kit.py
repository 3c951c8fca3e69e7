"""`flowguard storm --kit` and `--compare`: experiments at a broker, and reports side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import trio
import typer
from rich.console import Console
from rich.text import Text

from flowguard.cli.signals import on_signals
from flowguard.errors import ConfigError
from loadgen.command.kit_page import page
from loadgen.command.kit_view import show_report, watch
from loadgen.command.results import STDOUT, write
from loadgen.kit import EXPERIMENTS, Kit, KitReport, Survival
from loadgen.kit.memory import PROCESSES
from loadgen.kit.plan import RESTART


def run_kit(kit: Kit, json_to: Path | None, html_to: Path | None) -> NoReturn:
    """Run the kit, show and write its report, and exit with 1 if an experiment failed or is
    unclear."""
    messages = Console(stderr=True)
    trio.run(_run, kit, messages)
    report = kit.report()
    show_report(report, messages if json_to == STDOUT else Console())
    write(json_to, report.model_dump_json(indent=2) + "\n")
    _write_page([report], html_to, messages)
    bad = {Survival.FAILED, Survival.UNCLEAR}
    is_whole = len(report.findings) == len(kit.experiments)
    raise typer.Exit(1 if not is_whole or any(f.verdict in bad for f in report.findings) else 0)


async def _run(kit: Kit, console: Console) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(on_signals, nursery.cancel_scope.cancel)
        nursery.start_soon(watch, kit, console)
        await kit.run()
        nursery.cancel_scope.cancel()


def compare(paths: Sequence[str], html_to: Path | None) -> NoReturn:
    """Show several reports on one page, and in the terminal."""
    messages = Console(stderr=True)
    try:
        if not paths:
            raise ConfigError("--compare A.json B.json ...: no report is named")
        reports = [KitReport.read(Path(path)) for path in paths]
    except ConfigError as error:
        messages.print(Text.assemble(("no comparison", "red"), f": {error}"))
        raise typer.Exit(2) from error
    for report in reports:
        show_report(report, Console())
    _write_page(reports, html_to, messages)
    raise typer.Exit


def experiments_of(only: str, restart_command: str | None) -> tuple[str, ...]:
    """Return the experiments of `only`, separated by commas, or all if it is empty. Raises
    ConfigError."""
    known = tuple(experiment.key for experiment in EXPERIMENTS)
    words = tuple(word.strip() for word in only.split(",") if word.strip())
    if unknown := [word for word in words if word not in known]:
        raise ConfigError(f"--only {', '.join(unknown)}: known experiments are {', '.join(known)}")
    if RESTART.key in words and restart_command is None:
        raise ConfigError(f"--only {RESTART.key} needs --restart-command COMMAND")
    return words or known


def require_processes(pids: Sequence[int]) -> None:
    """Raise ConfigError if a process does not exist, because its memory could not be watched."""
    if missing := [str(pid) for pid in pids if not (PROCESSES / str(pid)).is_dir()]:
        raise ConfigError(f"--pid {', '.join(missing)}: there is no such process")


def _write_page(reports: Sequence[KitReport], path: Path | None, messages: Console) -> None:
    if path is not None:
        write(path, page(reports))
        messages.print(Text(f"scoreboard: {path}"), soft_wrap=True)
