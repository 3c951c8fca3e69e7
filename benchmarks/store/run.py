"""All parts of a run: measured, shown, kept, and written into the page."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from subprocess import TimeoutExpired

from rich.console import Console
from rich.markup import escape

from benchmarks import machine, report
from benchmarks.brokers import BrokerFailed
from benchmarks.build import Unavailable, work_folder
from benchmarks.overload import page as pages
from benchmarks.overload.checks import Report, Reported
from benchmarks.runner import BadData

from . import drift, fetch, layouts, reconnect, restart
from .conditions import Conditions

PARTS: dict[str, Callable[[Conditions], Reported]] = {
    part.KEY: part.measure for part in (layouts, fetch, reconnect, restart, drift)
}


def run(
    parts: Sequence[str], conditions: Conditions, console: Console, page: Path | None, command: str
) -> tuple[bool, bool]:
    """Whether everything could be measured, and whether every bound was met.

    `page`: where the sections go; None: nowhere.
    """
    measured = passed = True
    for part in parts:
        try:
            with (
                console.status(f"store, {part} ..."),
                machine.pinned(conditions.generator_core),
            ):
                result = PARTS[part](conditions)
        except (BadData, BrokerFailed, Unavailable, OSError, TimeoutExpired) as error:
            console.print(f"[red]store, {part} could not be measured: {escape(str(error))}[/]")
            measured = False
            continue
        told = result.report()
        console.print(pages.terminal(told))
        passed &= told.passed
        assert is_dataclass(result)
        text = json.dumps(asdict(result), indent=1)
        (work_folder() / f"store-{part}.json").write_text(text + "\n")
        if page is not None:
            write(page, told, command)
    return measured, passed


def write(page: Path, told: Report, command: str) -> None:
    """Its section, in the place of the last one."""
    markers = (
        f"<!-- store {told.key}: begin, written by make -->",
        f"<!-- store {told.key}: end -->",
    )
    origin = f"{datetime.now(UTC).date().isoformat()}. {machine.describe()}. "
    origin += (
        f"flowguard {machine.commit() or 'without git'}; the disk syncs 4 KiB in "
        f"{machine.sync_ms():.2f} ms."
    )
    section = [markers[0], *pages.paragraphs(told, command, origin), markers[1]]
    report.write(page, "\n\n".join(section), markers)
